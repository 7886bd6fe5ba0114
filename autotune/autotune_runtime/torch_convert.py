"""Replace a PyTorch network's convolutions by tuned kernels, if they are faster."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from . import load
from .activations import BY_WORD
from .convolution import Problem, sizes
from .declared import INTERFACES
from .interface import Library, LibraryError, find_libraries
from .layer_names import plain_name, unused_name
from .torch_benchmark import FEW_ROUNDS, ROUNDS, WRONG, Times, Work, race
from .torch_convolution import CONVOLUTION, Convolution, TunedConvolution
from .torch_example import convolutions, has_hooks, run
from .torch_layers import ConvLayer, Inference, read_network
from .torch_runtime import Runtime, TrainingMode
from .untuned_build import BuildFailed, UntunedBuild, can_build

NOT_CAPTURED = "is in no part of the network that torch.export captures and that ran once"
MARGIN = 0.02  # fraction by which a kernel must be faster; otherwise PyTorch's convolution stays


@dataclass(frozen=True, slots=True)
class Row:
    """The result for a convolution."""

    layer: str
    """its path in the network"""
    problem: Problem | None
    """the problem that was looked up in the library, including the fused operators after the convolution"""
    kernel: str
    """study.layer; empty if there is none"""
    tuned_us: float | None
    """time of a pass of the kernel; None if it was not timed"""
    torch_us: float | None
    """time of a pass of PyTorch's fastest way to do the same work, interleaved with the kernel's"""
    swapped: bool
    why: str
    origin: str = ""
    """where the kernel of an untuned network comes from: recorded results or the cost model"""

    @property
    def words(self) -> tuple[str, ...]:
        """Its line of the table."""
        work = ("", "", "")
        if self.problem is not None:
            work = (sizes(self.problem.geometry.x), sizes(self.problem.geometry.w), self.problem.epilogue)
        times = ("" if time_us is None else f"{time_us:.1f}" for time_us in (self.tuned_us, self.torch_us))
        kernel = f"{self.kernel} ({self.source})" if self.origin else self.kernel
        return (self.layer, *work, kernel, *times, "win" if self.swapped else "left", self.why)

    @property
    def source(self) -> str:
        """The first words of `origin`, such as cost model."""
        return self.origin.partition(",")[0]


@dataclass(frozen=True, slots=True)
class Report:
    """A row for each convolution; it prints as a table."""

    rows: tuple[Row, ...]
    folded: int = 0
    """number of batch norms that were folded into the convolutions before them"""

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
        """The last line of the table."""
        wins = [row.problem for row in self.rows if row.swapped and row.problem is not None]
        fused = Counter("residual" for problem in wins if problem.has_residual)
        fused.update(BY_WORD[problem.activation].name for problem in wins if problem.activation)
        parts = ", ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in fused.items())
        last = f"{len(wins)} of {len(self.rows)} convolutions run tuned kernels"
        sources = Counter(row.source for row in self.rows if row.swapped and row.origin)
        if sources:
            last += f" ({', '.join(f'{count} by {source}' for source, count in sources.items())})"
        norms = f"; {self.folded} batch norms folded" if self.folded else ""
        return f"{last}{f'; fused into them: {parts}' if parts else ''}{norms}"


def convert(
    module: nn.Module,
    example: object,
    *,
    library: str | Path | Sequence[str | Path] | None = None,
    margin: float = MARGIN,
    wait: bool = False,
) -> tuple[nn.Module, Report]:
    """A copy of a network in which tuned kernels compute the convolutions that they are faster at, and a report.

    `example` is a tensor on the GPU, a tuple of arguments, or the sizes of one tensor: kernels are chosen and timed for
    its shapes, with cudnn.benchmark on. Batch norms are folded into the convolutions before them, tuned or not. If the
    library has such kernels, a kernel also adds a tensor of the output's shape, as in a ResNet's blocks, and computes
    an activation, if nothing else reads the values in between. The copy is a `torch.fx.GraphModule`, or has such parts.
    No parameter of the copy requires gradients.

    A kernel is timed against the fastest way that PyTorch has to do the same work: the network's own operators, and
    the fused operators of cuDNN that `torch.compile` uses. PyTorch's kernels compute what the kernel does not. If the
    kernel that computes most does not win, one that computes less is tried. All run from CUDA graphs with cold caches,
    as with `torch.compile(mode="reduce-overhead")`.

    `library`: the path of a library or of an exported folder, or several; None: the libraries in the folder of this
    package. `margin`: fraction by which a kernel must be faster.

    If there is no library, autotune chooses kernels without tuning: recorded ones of this GPU, and those that its cost
    model predicts to be fastest. All cores compile them in another process, and the user's cache folder keeps them.
    Until they are ready, the copy, an UntunedNetwork, runs the network as it is; with `wait`, this function waits. A
    kernel must also agree with PyTorch's convolution on the example.

    Raises TrainingMode for a network in training mode, LibraryError if a library fails, BuildFailed if
    autotune cannot build one, and FileNotFoundError if there is no library and autotune is not installed.
    """
    with torch.inference_mode(mode=False):  # which makes tensors whose changes are not counted
        network = read_network(module, example)
        try:
            return swap(network, libraries_of(library), margin)
        except FileNotFoundError:
            if library is not None or not can_build():
                raise
        build = untuned_build(network)
        if build is None or wait or build.done():
            return swap_untuned(network, build, margin)
        pending = UntunedNetwork(module, network, build, margin)
        return pending, pending.report


def swap_or_build(
    network: Inference, libraries: Mapping[str, Library] | None, margin: float
) -> tuple[nn.Module, Report]:
    """`swap` by libraries, or without any by untuned kernels, once they are compiled."""
    if libraries is None:
        return swap_untuned(network, untuned_build(network), margin)
    return swap(network, libraries, margin)


def untuned_build(network: Inference) -> UntunedBuild | None:
    """Begin to build libraries for a network; None if none of its convolutions can run a kernel."""
    problems: dict[Problem, str] = {}
    taken: set[str] = set()
    device = runtime = None
    for layer in network.layers:
        here = CONVOLUTION.runtime_of(layer.conv.weight.device) if layer.conv is not None else None
        if layer.conv is None or here is None or not layer.problems:
            continue
        device, runtime = layer.conv.weight.device, here
        if layer.problems[0] not in problems:
            problems[layer.problems[0]] = unused_name(plain_name(layer.name) or "layer", taken)
    if device is None or runtime is None:
        return None
    accuracy = None
    if all(problem.geometry.dtype == "f32" for problem in problems):
        accuracy = "tf32" if _tf32_is_allowed() else "fp32-class"
    return UntunedBuild(problems, runtime.name(device), runtime.model(device), accuracy)


def swap_untuned(network: Inference, build: UntunedBuild | None, margin: float) -> tuple[nn.Module, Report]:
    """`swap` by libraries that may have to be waited for, and whose kernels are verified on the example."""
    if build is None:
        return swap(network, {}, margin)
    origins = build.wait()
    return swap(network, libraries_of(build.folder), margin, origins)


class UntunedNetwork(nn.Module):
    """A network that PyTorch runs until its kernels are compiled; the next call then converts it, which takes seconds.

    Wait for the kernels before you compile it by `torch.compile` or capture it in a CUDA graph.
    """

    def __init__(self, module: nn.Module, network: Inference, build: UntunedBuild, margin: float) -> None:
        super().__init__()
        self.network = module
        """the network as it is, and later its converted copy"""
        why = "its kernel is being compiled; the network's `report` will say more"
        self.report = Report(
            tuple(
                Row(layer.name, layer.problem, "", None, None, swapped=False, why=layer.why_not or why)
                for layer in network.layers
            ),
            len(network.folded),
        )
        self._convert: Callable[[], tuple[nn.Module, Report]] | None = partial(swap_untuned, network, build, margin)
        self._build = build

    @property
    def ready(self) -> bool:
        """Whether the next call runs kernels."""
        return self._build.done()

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the network."""
        if self._convert is not None and self._build.done() and not torch.compiler.is_compiling():
            convert_now, self._convert = self._convert, None
            try:
                with torch.inference_mode(mode=False):
                    self.network, self.report = convert_now()
            except BuildFailed as error:
                warnings.warn(f"{error}; PyTorch runs the network", RuntimeWarning, stacklevel=2)
            else:
                print(f"autotune: {self.report.summary}", file=sys.stderr)
        return self.network(*args, **kwargs)

    def train(self, mode: bool = True) -> UntunedNetwork:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Raise TrainingMode unless `mode` is False."""
        if mode:
            raise TrainingMode("a converted network is for inference alone: train the network it was converted from")
        return super().train(mode)


def libraries_of(given: str | Path | Sequence[str | Path] | None) -> dict[str, Library]:
    """The libraries of convolutions at these paths, by operation, as `convert` takes them.

    Raises FileNotFoundError if a path or, without paths, every library is missing.
    """
    paths = [Path(given)] if isinstance(given, (str, Path)) else [Path(each) for each in given or ()]
    found = [*find_libraries(INTERFACES).values()] if given is None else []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no library {path}")
        found += find_libraries(INTERFACES, path).values() if path.is_dir() else [path]
    libraries = [load(str(path.resolve())) for path in found]
    return {library.interface.name: library for library in libraries}


def swap(
    network: Inference, libraries: Mapping[str, Library], margin: float, origins: Mapping[str, str] | None = None
) -> tuple[nn.Module, Report]:
    """`convert` of a network that was read, by libraries by operation.

    `origins` of an untuned network are where its kernels come from, by name; their results are compared with PyTorch's
    on the example.
    """
    whole = any(not each.part.path for each in network.parts)
    left = [
        Row(name, None, "", None, None, swapped=False, why="has forward hooks" if has_hooks(part) else NOT_CAPTURED)
        for name, part in ({} if whole else convolutions(network.network)).items()
        if not any(name.startswith(f"{each.part.path}.") for each in network.parts)
    ]
    judge = _Judge(libraries, margin, ROUNDS if origins is None else FEW_ROUNDS)
    rows: list[Row] = []
    places: dict[TunedConvolution, int] = {}
    with torch.no_grad(), _cudnn_benchmark():
        for part in network.parts:
            judged = [judge.row(layer) for layer in part.layers]
            for at, (layer, row) in enumerate(zip(part.layers, judged, strict=True), len(rows)):
                if row.swapped and row.problem is not None and layer.conv is not None:
                    tuned = judge.tuned(layer.conv, row.problem)
                    places[tuned] = at
                    part.take(layer, row.problem, tuned)
            rows += judged
        made = network.finish()
        if origins is not None:
            rows = [replace(row, origin=origins.get(row.kernel, "")) for row in rows]
            for tuned in disagreements(made, network.arguments, places):
                tuned.leave_to_pytorch()
                why = "computes something different from PyTorch on the example"
                rows[places[tuned]] = replace(rows[places[tuned]], swapped=False, why=why)
    return made, Report((*rows, *left), len(network.folded))


def disagreements(
    network: nn.Module, arguments: tuple[object, ...], tuned: Iterable[TunedConvolution]
) -> list[TunedConvolution]:
    """The modules whose results differ from PyTorch's, on the tensors that they get in a run of the network."""
    wrong: list[TunedConvolution] = []

    def compare(module: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        assert isinstance(module, TunedConvolution)  # noqa: S101 - that is what the hook is registered for
        expected = module.by_pytorch(*inputs).float()
        if expected.isfinite().all() and not (y.float() - expected).abs().max() <= WRONG * expected.abs().max():
            wrong.append(module)

    hooks = [module.register_forward_hook(compare) for module in tuned]
    try:
        run(network, arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return wrong


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _Judge:
    """Decides which convolutions to replace; those with the same problem are timed once."""

    def __init__(self, libraries: Mapping[str, Library], margin: float, rounds: int) -> None:
        self._margin, self._libraries, self._rounds = margin, libraries, rounds
        self._times: dict[Work, Times | None] = {}

    def tuned(self, conv: Convolution, problem: Problem) -> TunedConvolution:
        """A convolution by its operation's library."""
        return TunedConvolution(conv, problem, self._libraries[problem.operation].path)

    def row(self, layer: ConvLayer) -> Row:
        """Decide about a layer."""
        if layer.problem is None or layer.conv is None:
            return Row(layer.name, None, "", None, None, swapped=False, why=layer.why_not)
        device = layer.conv.weight.device
        runtime = CONVOLUTION.runtime_of(device)
        if runtime is None:
            return Row(layer.name, layer.problem, "", None, None, swapped=False, why=f"is on {device}, not on a GPU")
        with runtime.current(device):
            answers = [(problem, *self._serves(problem)) for problem in layer.problems]
        served = [(problem, kernel) for problem, kernel, why_not in answers if not why_not]
        if not served:
            problem, kernel, why_not = answers[0]
            return Row(layer.name, problem, kernel, None, None, swapped=False, why=why_not)
        rows: list[Row] = []
        for problem, kernel in served:
            rows.append(self._raced(layer, layer.conv, problem, kernel, runtime))
            if rows[-1].swapped:
                return rows[-1]
        return rows[0]

    def _raced(self, layer: ConvLayer, conv: Convolution, problem: Problem, kernel: str, runtime: Runtime) -> Row:
        """Decide about a layer, given the problem that the kernel would compute."""
        work = Work(problem, layer.residual, layer.activation)
        if work not in self._times:
            self._times[work] = race(work, conv, lambda copy: self.tuned(copy, problem), runtime, self._rounds)
        times = self._times[work]
        if times is None:
            why = "computes something different from PyTorch"
            return Row(layer.name, problem, kernel, None, None, swapped=False, why=why)
        rival, rival_us = times.rivals[0]
        ratio = rival_us / times.tuned_us
        why = (
            f"{ratio:.2f} times as fast as {rival}" if ratio > 1 else f"takes {1 / ratio:.2f} times as long as {rival}"
        )
        return Row(layer.name, problem, kernel, times.tuned_us, rival_us, swapped=ratio > 1 + self._margin, why=why)

    def _serves(self, problem: Problem) -> tuple[str, str]:
        """The kernel for a problem on the current device, or None, and why it cannot be used, or an empty text."""
        library = self._libraries.get(problem.operation)
        if library is None:
            return "", f"there is no library of {problem.operation}"
        declared = library.interface.problem(problem.values)
        try:
            library.workspace_bytes(declared)
        except LibraryError as error:
            return "", str(error)
        name = library.kernel_name(declared) or ""
        accuracy = next(kernel.accuracy for kernel in library.kernels() if kernel.name == name)
        if accuracy == "tf32" and not _tf32_is_allowed():
            return name, "computes in TF32, which torch.backends.cudnn does not allow for convolutions"
        if accuracy == "fp16-acc16":
            return name, "sums in half precision, which PyTorch's convolution does not"
        return name, ""


def _tf32_is_allowed() -> bool:
    """Whether PyTorch may use TF32; after its newer switch was used the older one cannot be read."""
    newer = getattr(torch.backends.cudnn, "conv", None)
    return bool(torch.backends.cudnn.allow_tf32 if newer is None else newer.fp32_precision == "tf32")
