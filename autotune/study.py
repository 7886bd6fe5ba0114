"""The file a user writes: a study names layers and how to tune them. TOML -> `Study`."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeGuard

from autotune.errors import StudyError
from autotune.family.template import check_keys
from autotune.problem import Conv2dProblem, Layer
from autotune.shipped import shipped
from autotune.trial import END_TO_END, Config, Value

ADMITTED: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "fp32-class": ("fp32", "fp32-3xtf32"),
    "tf32": ("fp32", "fp32-3xtf32", "tf32"),
    "fp16": ("fp32", "fp32-3xtf32", "tf32", "fp16"),
    "fp16-acc16": ("fp32", "fp32-3xtf32", "tf32", "fp16", "fp16-acc16"),
    "bf16": ("fp32", "fp32-3xtf32", "tf32", "bf16"),
}
"""A study's `accuracy` to the accuracy classes that may win."""
SAMPLERS = ("default", "random", "tpe", "tpe_ordinal", "nsgaii", "cmaes")
"""What a study's `sampler` may be: this project's own, chance, and Optuna's; `search` has them."""
_DEFAULT_ACCURACY = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_SIZES = ("n", "c", "h", "w", "k", "r", "s")
_PAIRS = ("stride", "pad", "dilation")
_LAYER_KEYS = {"name", *_SIZES, *_PAIRS, "groups", "dtype", "layout", "epilogue", "count"}
_STUDY_KEYS = {
    *("name", "accuracy", "trials", "time_budget_s", "seed", "sampler", "templates", "workspace_limit_bytes"),
    "spill_limit_bytes",
    *("measure", "space", "layer", "technique", "rule", "span", "warm_start", "prior", "stop_below"),
}
SPILL_LIMIT_BYTES = 1024  # on an H200 no kernel with more came within 40 % of its layer's best
LARGEST = 2**63 - 1  # a whole number in SQLite
_RULE_KEYS = {"name", "property", "threshold", "below", "above", "report"}
_TECHNIQUE_KEYS = {"name", "template", "space", "report", "reported_ms", "reported"}


@dataclass(frozen=True, slots=True)
class Measure:
    """`[measure]`: how a kernel is timed."""

    cache: str = "cold"
    """cold: the L2 cache is written over before each sample; hot: it is left as the last run left it"""


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """`span = "end_to_end"`: how the batch may be cut and moved. Every combination that makes sense is timed."""

    streams: tuple[int, ...] = (1, 2, 4, 8, 10)
    segments: tuple[int, ...] = (1, 2, 4, 8, 10, 20)
    pinned: tuple[str, ...] = ("no", "yes")


@dataclass(frozen=True, slots=True)
class Technique:
    """`[[technique]]`: a line of a ladder, one family with some of its parameters kept to a few values."""

    name: str
    template: str
    space: Mapping[str, tuple[Value, ...]]
    report: str = ""
    """where the technique and its reported times come from"""
    reported_ms: Mapping[str, float] = field(default_factory=dict)
    """layer name to the milliseconds that the report gives, on the report's GPU"""
    reported: str = ""
    """what else the report says of it"""

    def has(self, config: Config) -> bool:
        """Whether a config is one of this technique's."""
        values = config.values()
        return config.template == self.template and all(values.get(name) in kept for name, kept in self.space.items())


@dataclass(frozen=True, slots=True)
class NamedRule:
    """`[[rule]]`: a rule of one threshold between two techniques, to be ranked among those that `dispatch` tries."""

    name: str
    property: str
    threshold: int
    """the least value on the upper side"""
    below: str
    """a technique's name"""
    above: str
    report: str = ""


@dataclass(frozen=True, slots=True)
class Study:
    """A study file: layers, budget and what may be searched."""

    name: str
    layers: tuple[Layer, ...]
    path: Path | None = None
    text: str = ""
    accuracy: str | None = None
    """a key of ADMITTED; None: the class of each layer's storage type"""
    trials: int = 200
    """distinct evaluated configs per layer"""
    time_budget_s: float | None = None
    """seconds per layer"""
    stop_below: float | None = None
    """stop when the next ten evaluations are expected to gain less than this fraction"""
    seed: int = 0
    sampler: str = "default"
    warm_start: bool = True
    """whether the best configs of like layers and devices in the database come first"""
    prior: bool = False
    """whether configs with the smallest estimates from their launch geometry come first"""
    templates: tuple[str, ...] | None = None
    workspace_limit_bytes: int = 1 << 30
    spill_limit_bytes: int = SPILL_LIMIT_BYTES
    """spill stores and loads a thread, beyond which a compiled kernel is not run on a GPU"""
    measure: Measure = Measure()
    space: Mapping[str, Mapping[str, tuple[Value, ...]]] | None = None
    end_to_end: EndToEnd | None = None
    """None: kernels only"""
    techniques: tuple[Technique, ...] = ()
    """what `autotune ladder` climbs, in order; the first is the baseline"""
    rules: tuple[NamedRule, ...] = ()
    """what `autotune dispatch` ranks among the rules that it tries"""

    def narrowed(self, technique: Technique) -> Study:
        """The study with nothing but one technique's family and values."""
        return replace(self, templates=(technique.template,), space={technique.template: technique.space})

    def admitted(self, problem: Conv2dProblem) -> tuple[str, ...]:
        """Accuracy classes that may win on this problem."""
        return ADMITTED[self.accuracy or _DEFAULT_ACCURACY[problem.dtype]]


def study_names() -> tuple[str, ...]:
    """Names of the shipped studies."""
    return tuple(sorted(str(path.relative_to(shipped("studies")).with_suffix("")) for path in _shipped_files()))


def _shipped_files() -> list[Path]:
    return list(shipped("studies").rglob("*.toml"))


def find_study(name: str) -> Path:
    """A study's file: a path as given, else a shipped study of that name. Raises StudyError when there is neither."""
    path = Path(name)
    if os.path.isfile(path):  # which takes names that no file can have
        return path
    if os.path.isdir(path):
        raise StudyError(f"{name}: is a directory; give a study file inside it")
    inside = shipped("studies") / f"{name}.toml"
    if not path.suffix and os.path.isfile(inside):
        return inside
    raise StudyError(f"{name}: no such study file; shipped studies are {', '.join(study_names())}")


def load_study(path: Path) -> Study:
    """Read a study file. Raises StudyError: path, line or dotted key, what was expected."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors put a mark in front
        content: dict[str, object] = tomllib.loads(text)
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: is not UTF-8 text: {error.reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path}: is not TOML: {error}") from None
    except RecursionError:
        raise StudyError(f"{path}: is nested too deeply; a study has tables in tables at most") from None
    return _Reader(path).study(content, text)


def _is_time(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number above 0 that a float can be."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= sys.float_info.max


class _Reader:
    """Reads a study's tables with errors that name path and dotted key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, key: str, what: str) -> StudyError:
        return StudyError(f"{self.path}: {key}: {what}")

    def study(self, content: Mapping[str, object], text: str) -> Study:
        check_keys(content, _STUDY_KEYS, self.error)
        name = self.word(content, "name", self.path.stem)
        if not name or any(not (letter.isalnum() or letter in "-_") for letter in name):
            raise self.error("name", f"{name!r}: expected letters, digits, - and _ (a layer is named study.layer)")
        accuracy = self.word(content, "accuracy", "") or None
        if accuracy is not None and accuracy not in ADMITTED:
            raise self.error("accuracy", f"{accuracy!r}: expected one of {', '.join(ADMITTED)}")
        layers = self.layers(content.get("layer"))
        space = self.space(content.get("space", {}))
        techniques = self.techniques(content.get("technique", []), {layer.name for layer in layers})
        return Study(
            name=name,
            layers=layers,
            path=self.path,
            text=text,
            accuracy=accuracy,
            trials=self.whole(content, "trials", 200, least=1),
            time_budget_s=self.seconds(content),
            stop_below=self.fraction(content, "stop_below"),
            seed=self.whole(content, "seed", 0, least=0),
            sampler=self.word(content, "sampler", "default"),
            warm_start=self.flag(content, "warm_start", default=True),
            prior=self.flag(content, "prior", default=False),
            templates=self.templates(content.get("templates")),
            workspace_limit_bytes=self.whole(content, "workspace_limit_bytes", 1 << 30, least=0),
            spill_limit_bytes=self.whole(content, "spill_limit_bytes", SPILL_LIMIT_BYTES, least=0),
            measure=self.measure(content.get("measure", {})),
            space={family: kept for family, kept in space.items() if family != END_TO_END},
            end_to_end=self.end_to_end(content, space.get(END_TO_END)),
            techniques=techniques,
            rules=self.rules(content.get("rule", []), {technique.name for technique in techniques}),
        )

    def below(self, table: str) -> Callable[[str, str], StudyError]:
        """Errors about the keys of one table."""
        return lambda key, what: self.error(f"{table}.{key}", what)

    def whole(self, table: Mapping[str, object], key: str, default: int, *, least: int, where: str = "") -> int:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(where + key, f"expected a whole number, got {value!r}")
        if value < least:
            raise self.error(where + key, f"{value} is too small: expected at least {least}")
        if value > LARGEST:
            raise self.error(where + key, f"{value} is too large: expected at most {LARGEST}")
        return value

    def word(self, table: Mapping[str, object], key: str, default: str, *, where: str = "") -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            raise self.error(where + key, f"expected a string, got {value!r}")
        return value

    def flag(self, table: Mapping[str, object], key: str, *, default: bool) -> bool:
        value = table.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {value!r}")
        return value

    def fraction(self, table: Mapping[str, object], key: str) -> float | None:
        """A key that is absent or between 0 and 1."""
        value = table.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
            raise self.error(key, f"expected a fraction between 0 and 1, got {value!r}")
        return float(value)

    def seconds(self, content: Mapping[str, object]) -> float | None:
        value = content.get("time_budget_s")
        if value is None:
            return None
        if not _is_time(value):
            raise self.error("time_budget_s", f"expected seconds above 0, got {value!r}")
        return float(value)

    def templates(self, value: object) -> tuple[str, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or not value or any(not isinstance(item, str) for item in value):
            raise self.error("templates", f"expected a list of family names, got {value!r}")
        return tuple(dict.fromkeys(value))

    def measure(self, value: object) -> Measure:
        if not isinstance(value, dict):
            raise self.error("measure", "expected a table [measure]")
        check_keys(value, {"cache"}, self.below("measure"))
        cache = self.word(value, "cache", "cold", where="measure.")
        if cache not in ("cold", "hot"):
            raise self.error("measure.cache", f"{cache!r}: expected cold or hot")
        return Measure(cache)

    def space(self, value: object) -> Mapping[str, Mapping[str, tuple[Value, ...]]]:
        if not isinstance(value, dict) or any(not isinstance(family, dict) for family in value.values()):
            raise self.error("space", "expected tables [space.FAMILY]")
        return {family: self.kept(params, f"space.{family}") for family, params in value.items()}

    def end_to_end(
        self, content: Mapping[str, object], narrowed: Mapping[str, tuple[Value, ...]] | None
    ) -> EndToEnd | None:
        span = self.word(content, "span", "kernel")
        if span not in ("kernel", END_TO_END):
            raise self.error("span", f"{span!r}: expected kernel or {END_TO_END}")
        where = f"space.{END_TO_END}"
        if span == "kernel":
            if narrowed is not None:
                raise self.error(where, f'has no effect without span = "{END_TO_END}"')
            return None
        kept = narrowed or {}
        check_keys(kept, {field.name for field in fields(EndToEnd)}, self.below(where))
        counts: dict[str, tuple[int, ...]] = {}
        for name in ("streams", "segments"):
            values = kept.get(name, getattr(EndToEnd(), name))
            counts[name] = tuple(int(value) for value in values if type(value) is int and value >= 1)
            if len(counts[name]) < len(values):
                raise self.error(f"{where}.{name}", f"expected whole numbers of at least 1, got {list(values)}")
        pinned = tuple(str(value) for value in kept.get("pinned", EndToEnd().pinned))
        if not set(pinned) <= {"no", "yes"}:
            raise self.error(f"{where}.pinned", f'expected "yes", "no" or both, got {list(pinned)}')
        return EndToEnd(counts["streams"], counts["segments"], pinned)

    def kept(self, params: Mapping[str, object], where: str) -> Mapping[str, tuple[Value, ...]]:
        narrowed: dict[str, tuple[Value, ...]] = {}
        for name, kept in params.items():
            items = kept if isinstance(kept, list) else [kept]
            values = [item for item in items if isinstance(item, (int, str))]
            if not values or len(values) < len(items):
                raise self.error(f"{where}.{name}", f"expected a value or a list of values, got {kept!r}")
            narrowed[name] = tuple(dict.fromkeys(values))
        return narrowed

    def techniques(self, value: object, layers: set[str]) -> tuple[Technique, ...]:
        if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
            raise self.error("technique", "expected [[technique]] tables")
        found: list[Technique] = []
        for index, table in enumerate(value):
            where = f"technique[{index}]"
            check_keys(table, _TECHNIQUE_KEYS, self.below(where))
            for key in ("name", "template"):
                if key not in table:
                    raise self.error(f"{where}.{key}", "missing")
            space, reported = table.get("space", {}), table.get("reported_ms", {})
            if not isinstance(space, dict):
                raise self.error(f"{where}.space", "expected a table of parameters and values")
            if not isinstance(reported, dict) or not all(_is_time(ms) for ms in reported.values()):
                raise self.error(f"{where}.reported_ms", "expected a table of layer names and milliseconds above 0")
            for name in reported:
                if name not in layers:
                    raise self.error(f"{where}.reported_ms.{name}", f"no such layer; there are {', '.join(layers)}")
            technique = Technique(
                name=self.word(table, "name", "", where=f"{where}."),
                template=self.word(table, "template", "", where=f"{where}."),
                space=self.kept(space, f"{where}.space"),
                report=self.word(table, "report", "", where=f"{where}."),
                reported_ms={name: float(ms) for name, ms in reported.items()},
                reported=self.word(table, "reported", "", where=f"{where}."),
            )
            if technique.name in {other.name for other in found}:
                raise self.error(f"{where}.name", f"{technique.name!r} stands twice")
            found.append(technique)
        return tuple(found)

    def rules(self, value: object, techniques: set[str]) -> tuple[NamedRule, ...]:
        if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
            raise self.error("rule", "expected [[rule]] tables")
        found = []
        for index, table in enumerate(value):
            where = f"rule[{index}]"
            check_keys(table, _RULE_KEYS, self.below(where))
            for key in sorted(_RULE_KEYS - {"report"}):
                if key not in table:
                    raise self.error(f"{where}.{key}", "missing")
            words = {key: self.word(table, key, "", where=f"{where}.") for key in sorted(_RULE_KEYS - {"threshold"})}
            for side in ("below", "above"):
                if words[side] not in techniques:
                    raise self.error(
                        f"{where}.{side}",
                        f"no technique named {words[side]!r}; there are {', '.join(techniques) or 'none'}",
                    )
            found.append(NamedRule(**words, threshold=self.whole(table, "threshold", 0, least=0, where=f"{where}.")))
        return tuple(found)

    def layers(self, value: object) -> tuple[Layer, ...]:
        if not isinstance(value, list) or not value or any(not isinstance(item, dict) for item in value):
            raise self.error("layer", "expected at least one [[layer]]")
        layers: list[Layer] = []
        for index, item in enumerate(value):
            layer = self.layer(item, index)
            if layer.name in {other.name for other in layers}:
                raise self.error(f"layer[{index}].name", f"{layer.name!r} stands twice; give each layer its own name")
            layers.append(layer)
        return tuple(layers)

    def layer(self, table: Mapping[str, object], index: int) -> Layer:
        label = table.get("name")
        where = f"layer[{index}]" if not isinstance(label, str) else f"layer[{index}] ({label})"
        check_keys(table, _LAYER_KEYS, self.below(where))
        for key in ("name", *_SIZES):
            if key not in table:
                raise self.error(f"{where}.{key}", "missing")
        name = self.word(table, "name", "", where=f"{where}.")
        if not name or any(not (letter.isalnum() or letter in "-_") for letter in name):
            raise self.error(f"{where}.name", f"{name!r}: expected letters, digits, - and _")
        sizes = {key: self.whole(table, key, 0, least=1, where=f"{where}.") for key in _SIZES}
        pairs: dict[str, int] = {}
        for key, default in (("stride", 1), ("pad", 0), ("dilation", 1)):
            height, width = self.pair(table, key, default, f"{where}.{key}")
            pairs[f"{key}_h"], pairs[f"{key}_w"] = height, width
        groups = self.whole(table, "groups", 1, least=1, where=f"{where}.")
        dtype = self.word(table, "dtype", "f32", where=f"{where}.")
        layout = self.word(table, "layout", "nchw", where=f"{where}.")
        epilogue = self.word(table, "epilogue", "none", where=f"{where}.")
        try:
            problem = Conv2dProblem(**sizes, **pairs, groups=groups, dtype=dtype, layout=layout, epilogue=epilogue)
        except StudyError as error:
            raise self.error(where, str(error)) from None
        return Layer(name, problem, self.whole(table, "count", 1, least=1, where=f"{where}."))

    def pair(self, table: Mapping[str, object], key: str, default: int, where: str) -> tuple[int, int]:
        value = table.get(key, default)
        match value if isinstance(value, list) else [value, value]:
            case [int(height), int(width)] if not (isinstance(height, bool) or isinstance(width, bool)):
                return height, width
        raise self.error(where, f"expected a whole number, or two as [height, width], got {value!r}")
