"""A study: layers, and how to tune them. `study_reader` and `study_writer` read and write study files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.operation.operation import Operation
from autotune.operation.storage_types import TYPES
from autotune.problem import Layer, Problem
from autotune.resources import shipped
from autotune.trial import Config, Value

ADMITTED: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "fp32-class": ("fp32", "fp32-3xtf32"),
    "tf32": ("fp32", "fp32-3xtf32", "tf32"),
    "fp16": ("fp32", "fp32-3xtf32", "tf32", "fp16"),
    "fp16-acc16": ("fp32", "fp32-3xtf32", "tf32", "fp16", "fp16-acc16"),
    "bf16": ("fp32", "fp32-3xtf32", "tf32", "bf16"),
    "fp64": ("fp64",),
}
"""Maps a study's `accuracy` to the accuracy classes that may win."""
SAMPLERS = ("default", "random")
"""The values of a study's `sampler`: the project's own, and random. They are implemented in `search`."""
_SIXTEEN_BITS = ("fp16", "bf16")
SPILL_LIMIT_BYTES = 1024  # on an H200, no kernel that spills more came within 40 % of its layer's best


@dataclass(frozen=True, slots=True)
class Measure:
    """`[measure]`: how a kernel is timed."""

    cache: str = "cold"
    """cold: L2 is flushed before each sample; hot: it is not"""


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """`end_to_end = true`: how the batch may be split and copied. Every useful combination is timed."""

    streams: tuple[int, ...] = (1, 2, 4, 8, 10)
    """numbers of CUDA streams to try"""
    segments: tuple[int, ...] = (1, 2, 4, 8, 10, 20)
    """numbers of parts to split the batch into"""
    pinned: tuple[str, ...] = ("no", "yes")
    """`yes`: page-locked host memory, `no`: pageable"""


@dataclass(frozen=True, slots=True)
class Technique:
    """`[[technique]]`: a row of a ladder, which is a family with some of its parameters restricted to a few values."""

    name: str
    """name of the technique in the ladder"""
    template: str
    """the kernel family"""
    space: Mapping[str, tuple[Value, ...]]
    """parameter to the values that the technique allows"""
    report: str = ""
    """the report that describes the technique and gives its times"""
    reported_ms: Mapping[str, float] = field(default_factory=dict)
    """layer name to the milliseconds that the report gives, on the report's GPU"""
    reported: str = ""
    """other statements of the report about the technique"""
    trials: int | None = None
    """distinct evaluated configs per layer; None: the study's number"""

    def has(self, config: Config) -> bool:
        """Whether a config belongs to this technique."""
        values = config.params
        return config.template == self.template and all(values.get(name) in kept for name, kept in self.space.items())


@dataclass(frozen=True, slots=True)
class NamedRule:
    """`[[rule]]`: a threshold between two techniques, which `dispatch` ranks among its own rules."""

    name: str
    """name of the rule"""
    property: str
    """the property that the threshold tests"""
    threshold: int
    """the smallest value on the upper side"""
    below: str
    """the technique below the threshold"""
    above: str
    """the technique from the threshold on"""
    report: str = ""
    """the report that describes the rule; may be empty"""


@dataclass(frozen=True, slots=True)
class Study:
    """A study: layers, budget and search space."""

    name: str
    """name of the study in the database"""
    layers: tuple[Layer, ...]
    """the layers to tune"""
    path: Path | None = None
    """the study file; None when it was built in Python"""
    text: str = ""
    """the study file as read; empty when it was built in Python"""
    accuracy: str | None = None
    """a key of ADMITTED; None: the class of each layer's storage type"""
    trials: int = 200
    """distinct evaluated configs per layer"""
    time_budget_s: float | None = None
    """seconds per layer"""
    trials_total: int | None = None
    """distinct evaluated configs of all layers together"""
    time_budget_total_s: float | None = None
    """seconds for all layers together, finals included"""
    min_gain: float | None = None
    """stop when the next ten evaluations are expected to gain less than this fraction"""
    seed: int = 0
    """seed of the search"""
    sampler: str = "default"
    """search method, one of SAMPLERS"""
    warm_start: bool = True
    """whether the search starts with the configs that the cost model and the database predict to be fastest"""
    templates: tuple[str, ...] | None = None
    """families to search; None: every family that supports the layer"""
    workspace_limit_bytes: int = 1 << 30
    """bytes; configs that need more scratch memory are not evaluated"""
    spill_limit_bytes: int = SPILL_LIMIT_BYTES
    """bytes of spill stores and loads per thread; a compiled kernel that spills more is not run on a GPU"""
    prune: bool = True
    """whether the search skips configs that a family's `[prune]` rejects"""
    measure: Measure = Measure()
    """how kernels are timed"""
    space: Mapping[str, Mapping[str, tuple[Value, ...]]] | None = None
    """family to parameter to the values that are searched; None: all values"""
    end_to_end: EndToEnd | None = None
    """how to time from host memory to host memory; None: time kernels only"""
    techniques: tuple[Technique, ...] = ()
    """the rows of `autotune ladder`, in order; the first is the baseline"""
    rules: tuple[NamedRule, ...] = ()
    """rules that `autotune dispatch` ranks with its own"""

    @property
    def shown(self) -> str:
        """How messages refer to the study: by its file, or by its name if it is bundled or has no file."""
        if self.path is None:
            return self.name
        folder = shipped("studies")
        return str(self.path.relative_to(folder).with_suffix("") if self.path.is_relative_to(folder) else self.path)

    @property
    def measurement_mode(self) -> str:
        """How the study's kernels are verified and timed. This is part of each trial's identity."""
        return self.measure.cache

    @property
    def certain_trials(self) -> int:
        """The number of evaluations that each layer is sure to get, or 0 if another limit may end the search first."""
        ends = (self.time_budget_s, self.trials_total, self.time_budget_total_s, self.min_gain)
        return self.trials if all(end is None for end in ends) else 0

    def narrowed(self, technique: Technique) -> Study:
        """Return the study restricted to one technique's family, values and trials."""
        space = {technique.template: technique.space}
        return replace(self, templates=(technique.template,), space=space, trials=technique.trials or self.trials)

    def admitted(self, problem: Problem) -> tuple[str, ...]:
        """Return the accuracy classes that may win on this problem."""
        return admitted_classes(self.accuracy, problem.dtype)

    def informative(self, problem: Problem) -> tuple[str, ...]:
        """Return the accuracy classes whose trials may warm-start a search for this problem.

        These are the admitted classes. If the study admits one 16-bit class, the other type's class is added, because
        kernels treat both types alike.
        """
        return informative_classes(self.accuracy, problem.dtype)


def admitted_classes(accuracy: str | None, dtype: str) -> tuple[str, ...]:
    """Return the accuracy classes that may win in a study with this accuracy, on layers with this storage type."""
    return ADMITTED[accuracy or TYPES[dtype].accuracy]


def informative_classes(accuracy: str | None, dtype: str) -> tuple[str, ...]:
    """Return what `Study.informative` returns for layers with this storage type, in the same order for both 16-bit
    types.
    """
    admitted = {*admitted_classes(accuracy, dtype)}
    return tuple(sorted(admitted | {*_SIXTEEN_BITS} if admitted & {*_SIXTEEN_BITS} else admitted))


def distinct_layers(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Return the first layer of each distinct problem, with a count that sums up all layers with this problem."""
    found: dict[Problem, Layer] = {}
    for layer in layers:
        first = found.setdefault(layer.problem, replace(layer, count=0))
        found[layer.problem] = replace(first, count=first.count + layer.count)
    return tuple(found.values())


def operations_of(study: Study) -> tuple[Operation, ...]:
    """Return the operations of the study's layers, each once."""
    return tuple(dict.fromkeys(layer.problem.operation for layer in study.layers))


def unadmitted(accuracy: str | None, dtype: str) -> str:
    """Return why no kernel can win on layers with this storage type in a study with this accuracy, or "" if one can."""
    own = TYPES[dtype].accuracy
    if accuracy is None or own in ADMITTED[accuracy]:
        return ""
    return f"accuracy {accuracy} admits no kernel of {dtype} layers; give {own}, or leave accuracy out"
