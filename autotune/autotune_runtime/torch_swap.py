"""Decide for each layer of a captured network whether a library's kernel replaces it, and report these decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from . import load
from .activations import BY_WORD
from .convolution import FilterGradient, Problem
from .declared import INTERFACES
from .fusion import LayerProblem
from .interface import Library, find_libraries
from .torch_benchmark import THOROUGH, Effort, Times, Work, race, race_apart
from .torch_call import Choice, usable_kernel
from .torch_convolution import Convolution, TunedConvolution
from .torch_example import convolutions, has_hooks
from .torch_layers import Inference, Layer
from .torch_plain import Plain
from .torch_runtime import Runtime

NOT_CAPTURED = (
    "is in no part of the network that torch.export captures and that ran once; "
    "torch.compile(network, backend='autotune') may reach it"
)
MARGIN = 0.02  # fraction by which a kernel must be faster to replace PyTorch's operator

Tuned: TypeAlias = TunedConvolution | Plain


@dataclass(frozen=True, slots=True)
class Row:
    """The decision about one layer: a row of the report."""

    layer: str
    """path of the layer in the network"""
    problem: LayerProblem | FilterGradient | None
    """the problem that was looked up in the library, including the fused operators after the layer"""
    kernel: str
    """name of the kernel, in the form study.layer; empty if there is none"""
    tuned_us: float | None
    """time of a pass with the kernel; None if the kernel was not timed"""
    torch_us: float | None
    """time of a pass of PyTorch's fastest alternative for the same work, measured interleaved with the kernel"""
    swapped: bool
    why: str
    origin: str = ""
    """where the kernel of an untuned network comes from: recorded results or the cost model"""
    kind: str = "convolution"
    """kind of the layer, such as convolution"""

    @property
    def words(self) -> tuple[str, ...]:
        """The row's cells in the printed table."""
        work = ("", "", "")
        if self.problem is not None:
            work = (*self.problem.shapes, self.problem.epilogue)
        times = ("" if time_us is None else f"{time_us:.1f}" for time_us in (self.tuned_us, self.torch_us))
        kernel = f"{self.kernel} ({self.source})" if self.origin else self.kernel
        return (self.layer, *work, kernel, *times, "win" if self.swapped else "left", self.why)

    @property
    def source(self) -> str:
        """The first words of `origin`, such as cost model."""
        return self.origin.partition(",")[0]


@dataclass(frozen=True, slots=True)
class Report:
    """A row for each layer. When printed, it is a table."""

    rows: tuple[Row, ...]
    folded: int = 0
    """number of batch norms that were folded into convolutions"""

    def __str__(self) -> str:
        head = ("layer", "x", "filters", "epilogue", "kernel", "tuned us", "PyTorch us", "", "why")
        table = [head, *(row.words for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        return "\n".join([*lines, self.summary])

    @property
    def summary(self) -> str:
        """The table's last line."""
        wins = [row.problem for row in self.rows if row.swapped and row.problem is not None]
        fused = Counter("residual" for problem in wins if problem.has_residual)
        fused.update(BY_WORD[problem.activation].name for problem in wins if problem.activation)
        parts = ", ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in fused.items())
        kinds = Counter(row.kind for row in self.rows)
        swapped = Counter(row.kind for row in self.rows if row.swapped)
        counts = [f"{swapped[kind]} of {kinds[kind]} {kind}s" for kind in dict.fromkeys(("convolution", *kinds))]
        *first, last = counts
        last = " and ".join(filter(None, (", ".join(first), last))) + " run tuned kernels"
        sources = Counter(row.source for row in self.rows if row.swapped and row.origin)
        if sources:
            last += f" ({', '.join(f'{count} by {source}' for source, count in sources.items())})"
        folded = f"; {self.folded} batch norms folded" if self.folded else ""
        return f"{last}{f'; fused into them: {parts}' if parts else ''}{folded}"


def libraries_of(given: str | Path | Sequence[str | Path] | None) -> dict[str, Library]:
    """Load the libraries at the paths that `convert` accepts, and return them by operation.

    Raises FileNotFoundError if a path is missing or, without paths, every library.
    """
    paths = [Path(given)] if isinstance(given, (str, Path)) else [Path(each) for each in given or ()]
    found = [*find_libraries(INTERFACES).values()] if given is None else []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no library {path}")
        found += find_libraries(INTERFACES, path).values() if path.is_dir() else [path]
    libraries = [load(str(path.resolve())) for path in found]
    return {library.interface.name: library for library in libraries}


@dataclass(frozen=True, slots=True)
class Swapped:
    """A converted network."""

    network: nn.Module
    report: Report
    tuned: Mapping[int, Tuned]
    """index of a row in the report -> the module that runs the row's kernel"""


def swap(
    network: Inference,
    libraries: Mapping[str, Library],
    margin: float,
    effort: Effort = THOROUGH,
    times: dict[str, Times | None] | None = None,
    *,
    compiled: bool = False,
) -> Swapped:
    """Convert a captured network with libraries, given by operation.

    `effort` is the length of a race. `times` contains the results of earlier races, which aren't run again, by the
    `repr` of their Work; this conversion's results are added to it. With `compiled`, Inductor compiles the converted
    network.
    """
    whole = any(not each.part.path for each in network.parts)
    left = [
        Row(name, None, "", None, None, swapped=False, why="has forward hooks" if has_hooks(part) else NOT_CAPTURED)
        for name, part in ({} if whole else convolutions(network.network)).items()
        if not any(name.startswith(f"{each.part.path}.") for each in network.parts)
    ]
    judge = _Judge(libraries, margin, effort, {} if times is None else times, compiled=compiled)
    rows: list[Row] = []
    tuned: dict[int, Tuned] = {}
    with torch.no_grad(), cudnn_benchmark():
        for part in network.parts:
            judged = [judge.way(layer) for layer in part.layers]
            inside = {each.node: row for layer, row in judged if row.swapped for each in layer.inner}
            for layer, row in judged:
                by = inside.get(layer.node)
                rows.append(replace(_inside(row, by), kind=layer.kind))
                if by is not None or not row.swapped or layer.module is None:
                    continue
                if isinstance(row.problem, LayerProblem):
                    at, elsewhere = len(rows) - 1, layer.elsewhere_of(row.problem)
                    rows += [replace(judge.row(layer, (problem,)), kind=layer.kind) for problem in elsewhere]
                    wins = [position for position in range(at, len(rows)) if rows[position].swapped]
                    problems = zip((row.problem, *elsewhere), rows[at:], strict=True)
                    raced = tuple(layer.module.first_sizes(problem) for problem, each in problems if each.swapped)
                    choice = Choice(tf32_is_allowed(linear=layer.is_linear), margin, raced, layer.is_linear)
                    module = layer.module.tuned(row.problem.epilogue, libraries[row.problem.operation].path, choice)
                    part.take(layer, row.problem, module)
                    tuned |= dict.fromkeys(wins, module)
        return Swapped(network.finish(), Report((*rows, *left), len(network.folded)), tuned)


def _inside(row: Row, by: Row | None) -> Row:
    """Return a layer's row. `by` is the row of a later layer whose kernel computes this one too, if any."""
    return row if by is None else replace(row, kernel=by.kernel, swapped=True, why=f"in the kernel of {by.layer}")


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Make cuDNN choose algorithms by timing them inside the block."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _Judge:
    """Decides which layers to replace. Layers with the same problem are timed once."""

    def __init__(
        self,
        libraries: Mapping[str, Library],
        margin: float,
        effort: Effort,
        times: dict[str, Times | None],
        *,
        compiled: bool,
    ) -> None:
        self._margin, self._libraries, self._effort, self._times = margin, libraries, effort, times
        self._compiled = compiled

    def way(self, layer: Layer) -> tuple[Layer, Row]:
        """Return the first way to compute a layer with a kernel that wins, and its row.

        If no kernel wins, return the last way, which has no operators in front of the layer.
        """
        slower = ""
        for way in layer.ways:
            row = self.row(way)
            if row.swapped:
                times = self._apart(way, row)
                if times is None or times.tuned_us < times.rivals[0][1]:
                    break
                other = way.inner[0].name if way.inner else "its pixel shuffle"
                both = f"{times.tuned_us:.1f} us, and two kernels {times.rivals[0][1]:.1f} us"
                slower += f"; a kernel that also computes {other} takes {both}"
        return way, replace(row, why=row.why + slower)

    def _apart(self, way: Layer, row: Row) -> Times | None:
        """Time a convolution's kernel that also computes a layer in front of it or a pixel shuffle after it against a
        kernel for the convolution and one for the other operator.

        Returns None if there are no such kernels. PyTorch computes separate pixel shuffles.
        """
        shuffle = row.problem.shuffle if isinstance(row.problem, Problem) else 1
        if way.otherwise is None or not (way.inner or shuffle > 1):
            return None
        module, alone = way.module, self._tuned(way.otherwise)
        inner = nn.PixelShuffle(shuffle) if shuffle > 1 else self._tuned(way.inner[0])
        if not isinstance(module, Convolution) or inner is None or not isinstance(alone, TunedConvolution):
            return None
        assert isinstance(row.problem, Problem)  # noqa: S101 - that of a convolution
        runtime = module.operator.runtime_of(module.device)
        work = Work(row.problem, way.residual, way.activation)
        if runtime is not None and (key := f"{work!r}, kernels for each") not in self._times:
            library = self._libraries[row.problem.operation].path
            self._times[key] = race_apart(work, module, library, inner, alone, runtime, self._effort)
        return self._times[key]

    def _tuned(self, layer: Layer) -> Tuned | None:
        """Return the module that runs a layer's kernel, or None if PyTorch computes the layer."""
        row = self.row(layer)
        if not row.swapped or layer.module is None or not isinstance(row.problem, LayerProblem):
            return None
        return layer.module.tuned(row.problem.epilogue, self._libraries[row.problem.operation].path)

    def row(self, layer: Layer, problems: Sequence[LayerProblem] = ()) -> Row:
        """Decide about a layer. `problems` are the problems that a kernel may compute, by default `layer.problems`."""
        if layer.problem is None or layer.module is None:
            return Row(layer.name, None, "", None, None, swapped=False, why=layer.why_not)
        device = layer.module.device
        runtime = layer.module.operator.runtime_of(device)
        if runtime is None:
            return Row(layer.name, layer.problem, "", None, None, swapped=False, why=f"is on {device}, not on a GPU")
        tf32 = tf32_is_allowed(linear=layer.is_linear)
        with runtime.current(device):
            answers = [(each, *serves(self._libraries, each, tf32=tf32)) for each in problems or layer.problems]
        served = [(problem, kernel) for problem, kernel, why_not in answers if not why_not]
        if not served:
            problem, kernel, why_not = answers[0]
            return Row(layer.name, problem, kernel, None, None, swapped=False, why=why_not)
        rows: list[Row] = []
        for problem, kernel in served:
            rows.append(self._raced(layer, layer.module, problem, kernel, runtime))
            if rows[-1].swapped:
                return rows[-1]
        return rows[0]

    def _raced(
        self, layer: Layer, module: Convolution | Plain, problem: LayerProblem, kernel: str, runtime: Runtime
    ) -> Row:
        """Decide about a layer by racing one problem's kernel against PyTorch."""
        work = Work(problem, layer.residual, layer.activation, self._compiled, layer.is_linear)
        if (key := repr(work)) not in self._times:
            self._times[key] = race(work, module, self._libraries[problem.operation].path, runtime, self._effort)
        row = Row(layer.name, problem, kernel, None, None, swapped=False, why="")
        return with_times(row, self._times[key], self._margin)


def with_times(row: Row, times: Times | None, margin: float) -> Row:
    """Return a kernel's row completed with the race's result. The kernel must win by `margin`."""
    if times is None:
        return replace(row, why="computes something different from PyTorch")
    rival, rival_us = times.rivals[0]
    ratio = rival_us / times.tuned_us
    why = f"{ratio:.2f} times as fast as {rival}" if ratio > 1 else f"takes {1 / ratio:.2f} times as long as {rival}"
    return replace(row, tuned_us=times.tuned_us, torch_us=rival_us, swapped=ratio > 1 + margin, why=why)


def serves(
    libraries: Mapping[str, Library], problem: LayerProblem | FilterGradient, *, tf32: bool, training: bool = False
) -> tuple[str, str]:
    """Call `usable_kernel` for a problem with the library of its operation.

    If there is no such library, the name is empty and the reason says so.
    """
    library = libraries.get(problem.operation)
    if library is None:
        return "", f"there is no library of {problem.operation}"
    declared = library.interface.problem(problem.values)
    return usable_kernel(library, declared, tf32=tf32, training=training)


def tf32_is_allowed(*, linear: bool = False) -> bool:
    """Return whether PyTorch may use TF32 for convolutions or, if `linear`, for linear layers.

    PyTorch's older switches can't be read once the newer ones have been set, so the newer ones are read if they exist.
    """
    older, newer = torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None)
    if linear:
        older, newer = torch.backends.cuda.matmul, torch.backends.cuda.matmul
    precision = getattr(newer, "fp32_precision", None)
    return bool(older.allow_tf32 if precision is None else precision == "tf32")
