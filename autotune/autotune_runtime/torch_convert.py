"""Replace a PyTorch network's convolutions by tuned kernels, if they are faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from . import find_library, load
from .activations import BY_WORD
from .conv2d import Problem
from .interface import Library, LibraryError
from .torch_benchmark import Times, Work, race
from .torch_convolution import CONV2D, Convolution, activated
from .torch_example import convolutions, has_hooks
from .torch_layers import ConvLayer, Inference, read_network
from .torch_runtime import Runtime, TrainingMode

NOT_CAPTURED = "is in no part of the network that torch.export captures and that ran once"
MARGIN = 0.02  # fraction by which a kernel must be faster; otherwise PyTorch's convolution stays


class TunedConv2d(nn.Conv2d):
    """A convolution that runs a library's kernel on images of the shape it was made for, any number of them.

    Where its problem has a residual it takes that as a second argument, and adds it before its activation. It has the
    parameters of the `nn.Conv2d` that it replaces, under the same names. Images of another shape or on another type of
    device go through PyTorch's convolution, and so do residuals of another shape than the output's, all images once the
    filters were cast to another dtype (`network.half()`), and, with one warning, as many images at once as the kernel
    refuses. A change of the parameters in place, or by `load_state_dict`, is noticed; one through `.data` is not.
    """

    def __init__(self, conv: nn.Conv2d, problem: Problem, library: str) -> None:
        """Take over a convolution's parameters; `problem` determines shapes, layout and epilogue."""
        sizes = (conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation)
        super().__init__(*sizes, conv.groups, bias=conv.bias is not None, device="meta")
        self.weight, self.bias = conv.weight, conv.bias
        zeros = conv.weight.new_zeros(conv.out_channels) if conv.bias is None and problem.epilogue != "none" else None
        self.register_buffer("zeros", zeros, persistent=False)  # a bias, for a kernel that takes one
        self.problem = problem
        self._x_sizes, self._dtype = (problem.c, problem.h, problem.w), conv.weight.dtype
        self._z_sizes = (problem.k, problem.p, problem.q)
        self._convolution = Convolution(
            library,
            *(problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w),
            *(problem.dilation_h, problem.dilation_w, problem.groups, problem.activation),
            channels_last=problem.layout == "nhwc",
            or_pytorch=True,
        ).text
        self.eval()

    def forward(self, input: Tensor, z: Tensor | None = None) -> Tensor:  # noqa: A002 - nn.Conv2d's name, by which it may be called
        """Compute y [N, K, P, Q] from images [N, C, H, W] and the residual z [N, K, P, Q]."""
        x, own = input, self._parameters
        weight, bias = own.get("weight"), own.get("bias")  # reading each as an attribute would take 0.8 us
        if weight is None or bias is None:
            weight, bias = self.weight, self.zeros if self.bias is None else self.bias
        if not torch.compiler.is_dynamo_compiling():
            y = CONV2D.call_cached(self._convolution, (x, z), (weight, bias))
            if y is not None:
                return y
        tuned = x.shape[1:] == self._x_sizes and weight.dtype == self._dtype and CONV2D.runtime_of(x.device) is not None
        if tuned and (z is None or z.shape == (x.shape[0], *self._z_sizes)):
            made: Tensor = CONV2D(x, weight, bias, z, self._convolution)
            return made
        y = super().forward(x)
        return activated(y if z is None else y + z, self.problem.activation)

    def train(self, mode: bool = True) -> TunedConv2d:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Raise TrainingMode unless `mode` is False."""
        if mode:
            raise TrainingMode("a TunedConv2d is for inference alone: train the network that it was converted from")
        return super().train(mode)

    def extra_repr(self) -> str:
        """What `print` shows."""
        p = self.problem
        return f"{super().extra_repr()}, tuned for {p.layout} images of {p.h} x {p.w}, epilogue {p.epilogue}"


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

    @property
    def words(self) -> tuple[str, ...]:
        """Its line of the table."""
        p = self.problem
        sizes = ("", "", "")
        if p is not None:
            sizes = (f"{p.n}x{p.c}x{p.h}x{p.w}", f"{p.k}x{p.c // p.groups}x{p.r}x{p.s}", p.epilogue)
        times = ("" if time_us is None else f"{time_us:.1f}" for time_us in (self.tuned_us, self.torch_us))
        return (self.layer, *sizes, self.kernel, *times, "win" if self.swapped else "left", self.why)


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
        wins = [row.problem for row in self.rows if row.swapped and row.problem is not None]
        fused = Counter("residual" for problem in wins if problem.has_residual)
        fused.update(BY_WORD[problem.activation].name for problem in wins if problem.activation)
        parts = ", ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in fused.items())
        last = f"{len(wins)} of {len(self.rows)} convolutions run tuned kernels"
        norms = f"; {self.folded} batch norms folded" if self.folded else ""
        return "\n".join([*lines, f"{last}{f'; fused into them: {parts}' if parts else ''}{norms}"])


def convert(
    module: nn.Module,
    example: object,
    *,
    library: str | Path | None = None,
    margin: float = MARGIN,
) -> tuple[nn.Module, Report]:
    """A copy of a network in which tuned kernels run the convolutions that they are faster at, and what became of each.

    `example` is a tensor on the GPU, a tuple of arguments, or the sizes of one tensor: kernels are chosen and timed for
    its shapes, with cudnn.benchmark on. Batch norms are folded into the convolutions before them, tuned or not. Biases
    are part of the kernels. So are, if the library has such kernels, an
    addition of a tensor as large that alone reads a convolution's output, as in a ResNet's blocks, and an activation
    that alone reads the output or the sum. The copy is then a `torch.fx.GraphModule`; a network that cannot be traced
    keeps its additions. No parameter of the copy requires gradients.

    A kernel races against the fastest way that PyTorch has to do the same work: the network's own operators, and the
    fused operators of cuDNN that `torch.compile` takes, residual and ReLU included. What the kernel does not fuse,
    PyTorch's kernels do behind it. Where the kernel that fuses most does not win, one that fuses less is tried. All are
    replayed from CUDA graphs, as `torch.compile(mode="reduce-overhead")` runs them, on arrays that no cache holds.

    `library` None: the one that `find_library` finds. `margin`: fraction by which a kernel must be faster.

    Raises TrainingMode for a network in training mode, LibraryError when the library fails.
    """
    with torch.inference_mode(mode=False):  # which makes tensors whose changes are not counted
        found = read_network(module, example)
        path = str(find_library() if library is None else Path(library).resolve())
        return swap(found, path, margin)


def swap(found: Inference, path: str, margin: float) -> tuple[nn.Module, Report]:
    """`convert` of a network that was read, by the library at a path."""
    whole = any(not each.part.path for each in found.parts)
    left = [
        Row(name, None, "", None, None, swapped=False, why="has forward hooks" if has_hooks(part) else NOT_CAPTURED)
        for name, part in ({} if whole else convolutions(found.network)).items()
        if not any(name.startswith(f"{each.part.path}.") for each in found.parts)
    ]
    judge = _Judge(path, margin)
    rows: list[Row] = []
    with torch.no_grad(), _cudnn_benchmark():
        for part in found.parts:
            judged = [judge.row(layer) for layer in part.layers]
            for layer, row in zip(part.layers, judged, strict=True):
                if row.swapped and row.problem is not None:
                    part.take(layer, row.problem, TunedConv2d(layer.conv, row.problem, path))
            rows += judged
    return found.finish(), Report((*rows, *left), len(found.folded))


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

    def __init__(self, path: str, margin: float) -> None:
        self._margin = margin
        self._path = path
        self._library: Library = load(path)
        self._accuracy = {kernel.name: kernel.accuracy for kernel in self._library.kernels()}
        self._times: dict[Work, Times | None] = {}

    def row(self, layer: ConvLayer) -> Row:
        """Decide about a layer."""
        if layer.problem is None:
            return Row(layer.name, None, "", None, None, swapped=False, why=layer.why_not)
        device = layer.conv.weight.device
        runtime = CONV2D.runtime_of(device)
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
            rows.append(self._raced(layer, problem, kernel, runtime))
            if rows[-1].swapped:
                return rows[-1]
        return rows[0]

    def _raced(self, layer: ConvLayer, problem: Problem, kernel: str, runtime: Runtime) -> Row:
        """Decide about a layer, given the problem that the kernel would compute."""
        work = Work(problem, layer.residual, layer.activation)
        if work not in self._times:
            self._times[work] = race(work, layer.conv, lambda conv: TunedConv2d(conv, problem, self._path), runtime)
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
        try:
            self._library.workspace_bytes(problem.declared)
        except LibraryError as error:
            return "", str(error)
        name = self._library.kernel_name(problem.declared) or ""
        accuracy = self._accuracy[name]
        if accuracy == "tf32" and not _tf32_is_allowed():
            return name, "computes in TF32, which torch.backends.cudnn does not allow for convolutions"
        if accuracy == "fp16-acc16":
            return name, "sums in half precision, which PyTorch's convolution does not"
        return name, ""


def _tf32_is_allowed() -> bool:
    """Whether PyTorch may use TF32; after its newer switch was used the older one cannot be read."""
    newer = getattr(torch.backends.cudnn, "conv", None)
    return bool(torch.backends.cudnn.allow_tf32 if newer is None else newer.fp32_precision == "tf32")
