"""Compute layers without filters, with PyTorch or with operators such as `autotune_runtime::norm`.

The modules take tensors with PyTorch's shapes, such as images [N, C, ...]. The operators take a kernel's arrays, with
the channels as the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .activations import BY_WORD
from .fusion import LayerProblem
from .network_interfaces import BY_NAME
from .plain_problems import (
    MOST_TENSORS,
    AvgPoolProblem,
    BatchNormProblem,
    ConcatProblem,
    GateProblem,
    MaxPoolProblem,
    MeanProblem,
    NormProblem,
    PlainProblem,
)
from .torch_call import STORED, Call, Choice
from .torch_convolution import activated
from .torch_exact import MOST_ELEMENTS
from .torch_operator import Instead, Operator
from .torch_runtime import TunedModule

_EPS = 1e-5  # epsilon of a batch norm, which must not be 0
_ANY = Choice()


class Plain(TunedModule):
    """A layer without filters, computed by PyTorch or by a library's kernels.

    The operator chooses a kernel in the first call with a given shape. PyTorch computes shapes without a kernel, and
    inputs with other dtypes or on another type of device. The module notices the same changes of parameters as a
    TunedConvolution.
    """

    operator: ClassVar[Operator]
    tolerance: ClassVar[float]
    """relative error of a kernel's results before rounding, from `errors` in the operation's declaration"""

    def __init__(
        self,
        problem: PlainProblem,
        weight: nn.Parameter | None,
        bias: nn.Parameter | None,
        device: torch.device,
        library: str | Path | None = None,
        choice: Choice = _ANY,
    ) -> None:
        """Create a layer with the problem's epilogue. `library` contains the kernels; with None, PyTorch
        computes it.
        """
        super().__init__()
        self.weight, self.bias, self.device = weight, bias, device
        self.problem = problem
        self._dtype = STORED[problem.dtype]
        if library is not None:
            self._call = Call(str(library), tuple(problem.arguments.items()), choice=choice).text
        self.eval()

    def tuned(self, epilogue: str, library: str | Path, choice: Choice = _ANY) -> Self:
        """Return the same layer, with this epilogue and computed by a library's kernels."""
        problem = replace(self.problem, epilogue=epilogue)
        return type(self)(problem, self.weight, self.bias, self.device, library, choice)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Compute y from the tensors described by `problem.inputs`."""
        weights = self.weights()
        fits = all(each.dtype == self._dtype for each in tensors)
        fits = fits and all(each is None or each.dtype == self.weights_dtype for each in weights)
        if not self._call or not fits or self.operator.runtime_of(tensors[0].device) is None:
            return self.by_pytorch(*tensors)
        arrays = self.arrays(tensors)
        y: object = None
        if not torch.compiler.is_dynamo_compiling():
            y = self.operator.call_cached(self._call, arrays, weights)
        if y is None:
            y = self.operator(arrays[0], *weights, *arrays[1:], self._call)
        return self.shaped(cast("Tensor", y), tensors[0])

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        """View the kernel's output as [N, C, ...] with the spatial sizes of x."""
        return y.view(x.shape[0], *x.shape[2:], y.shape[-1]).movedim(-1, 1)

    def by_pytorch(self, *tensors: Tensor) -> Tensor:
        """Compute the same result with PyTorch's operators."""
        return activated(self.computed(tensors, self.weight, self.bias), self.problem.activation)

    def computed(self, tensors: tuple[Tensor, ...], *weights: Tensor | None) -> Tensor:
        """Compute the layer without its activation, with PyTorch's operators and these weights."""
        raise NotImplementedError

    def arrays(self, tensors: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Return the arrays of a call: images [N, pixels, C]."""
        return [each.movedim(1, -1).reshape(len(each), -1, each.shape[1]) for each in tensors]

    def first_sizes(self, problem: LayerProblem) -> tuple[int, ...]:
        """Return the sizes of the first array that the operator gets for a problem, without the first axis."""
        inputs = tuple(torch.empty([size or 0 for size in shape], device="meta") for shape in problem.inputs)
        first, *_ = self.arrays(inputs)
        return () if first is None else tuple(first.shape[1:])

    def weights(self) -> tuple[Tensor | None, ...]:
        """Return the weights of a call."""
        return ()

    @property
    def weights_dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._dtype

    def error(self, *tensors: Tensor, y: Tensor, bounds: tuple[float, float]) -> float:
        """Return the largest error in results y, compared with PyTorch in float64, as a fraction of the allowed error.

        Before activation and rounding, the allowed relative error is `bounds[0]` times the operation's tolerance.
        """
        step = max(1, MOST_ELEMENTS // max(1, *(each[0].numel() for each in (*tensors, y))))
        parts = zip(*(each.split(step) for each in (*tensors, y)), strict=True)
        return max(self._error(*part, bound=bounds[0]) for part in parts)

    def _error(self, *tensors: Tensor, bound: float) -> float:
        *inputs, y = tensors
        one = torch.ones((), dtype=torch.float64, device=y.device)
        weight, bias = (None if each is None else each.double() for each in (self.weight, self.bias))
        exact = self.computed(tuple(each.double() for each in inputs), weight, bias)
        axes = (-1, *(1,) * (y.dim() - 2)) if self.problem.layout == "nhwc" else (-1,)
        sizes = [each.abs().view(axes) for each in (one if weight is None else weight, bias) if each is not None]
        allowed = sum(sizes, exact.abs()).mul_(bound * self.tolerance)
        of, word = torch.finfo(y.dtype), self.problem.activation
        if word:
            exact = activated(exact, word)
            allowed = BY_WORD[word].steepest * allowed + 8 * 2.0**-24
        allowed += of.eps / 2 * exact.abs() + of.tiny * of.eps
        return float((y.double() - exact).abs().div_(allowed).amax().nan_to_num(nan=torch.inf))

    def extra_repr(self) -> str:
        """Return the text that `print` shows in parentheses."""
        of = self.problem
        return ", ".join((*filter(None, of.shapes), *map(str, of.arguments.values())))


def normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, problem: NormProblem) -> Tensor:
    """Compute PyTorch's norm of x [N, C, ...], or of the rows of x [..., C] if the problem has no groups."""
    eps = problem.eps_e12 * 1e-12
    if problem.groups is not None:
        return functional.group_norm(x, problem.groups, weight, bias, eps)
    if problem.second:
        rows = normalised(x.movedim(1, -1), weight, bias, replace(problem, second=False))
        return rows.movedim(-1, 1)
    rows, shape = x.reshape(-1, problem.channels), (problem.channels,)
    if problem.kind == "rms":
        y = functional.rms_norm(rows, shape, weight, eps).view(x.shape)
        return y if bias is None else y + bias
    return functional.layer_norm(rows, shape, weight, bias, eps).view(x.shape)


def _norm_by_pytorch(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    x, named = tensors["x"], dict(call.arguments)
    images = x.movedim(-1, 1)  # rows are images of one pixel
    groups = None if named["kind"] == "rms" else int(named["groups"])
    problem = NormProblem(
        x=tuple(images.shape),
        dtype="",
        epilogue=str(named["epilogue"]),
        channels=x.shape[-1],
        groups=groups,
        eps_e12=int(named["eps_e12"]),
        kind=str(named["kind"]),
    )
    y = normalised(x if groups is None else images, tensors.get("weight"), tensors.get("bias"), problem)
    return activated((y if groups is None else y.movedim(1, -1)).contiguous(), problem.activation)


class Norm(Plain):
    """A layer norm, group norm or RMS norm."""

    problem: NormProblem
    operator = Operator(BY_NAME["norm"], "norm", _norm_by_pytorch)
    tolerance = 2e-5

    def computed(self, tensors: tuple[Tensor, ...], *weights: Tensor | None) -> Tensor:
        """Compute PyTorch's norm."""
        (x,), (weight, bias) = tensors, weights
        return normalised(x, weight, bias, self.problem)

    def arrays(self, tensors: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Return the images [N, pixels, C], or rows as images of one pixel."""
        (x,), of = tensors, self.problem
        last = x.movedim(1, -1) if of.layout == "nhwc" else x
        return [last.reshape(-1, 1, of.channels) if of.groups is None else last.reshape(len(x), -1, of.channels)]

    def weights(self) -> tuple[Tensor | None, ...]:
        """Return the channels' weights and biases."""
        return self.weight, self.bias

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        """View the kernel's output in the shape of x."""
        return super().shaped(y, x) if self.problem.layout == "nhwc" else y.view(x.shape)


def concatenated(tensors: tuple[Tensor, ...], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Concatenate tensors [N, C, ...] with PyTorch and, if there is a weight, apply a batch norm to the result."""
    y = torch.cat(tensors, 1)
    if weight is None:
        return y
    mean, variance = torch.zeros_like(weight), torch.full_like(weight, 1 - _EPS)
    return functional.batch_norm(y, mean, variance, weight, bias, eps=_EPS)


def _concat_by_pytorch(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    given = tuple(tensors[name] for i in range(MOST_TENSORS) if (name := f"x{i}") in tensors)
    problem = ConcatProblem(x=(), dtype="", epilogue=str(dict(call.arguments)["epilogue"]), channels=())
    return activated(concatenated(given, tensors.get("weight"), tensors.get("bias")), problem.activation)


class Concat(Plain):
    """A concatenation, with a scale and shift if a batch norm follows."""

    problem: ConcatProblem
    operator = Operator(BY_NAME["concat"], "concat", _concat_by_pytorch)
    tolerance = 1e-5

    def computed(self, tensors: tuple[Tensor, ...], *weights: Tensor | None) -> Tensor:
        """Compute PyTorch's concatenation and batch norm."""
        return concatenated(tensors, *weights)

    def arrays(self, tensors: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Return the tensors as [pixels of all images, C_i], followed by None for each unused array of a kernel."""
        rows = [each.movedim(1, -1).reshape(-1, each.shape[1]) for each in tensors]
        return [*rows, *[None] * (MOST_TENSORS - len(rows))]

    def weights(self) -> tuple[Tensor | None, ...]:
        """Return the channels' scales and shifts."""
        return self.weight, self.bias

    @property
    def weights_dtype(self) -> torch.dtype:
        """The dtype of the scale and the shift."""
        return torch.float32


def _pooled(pool: Callable[..., Tensor]) -> Instead:
    """Return a function that computes a call with one of PyTorch's pools, in the arrays' layout."""

    def pooled(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
        named, x = dict(call.arguments), tensors["x"]
        window, stride, padding = (
            tuple(int(named[f"{name}{axis}"]) for axis in axes)
            for name, axes in (("", "rs"), ("stride_", "hw"), ("pad_", "hw"))
        )
        if named["layout"] == "nchw":
            return pool(x, window, stride, padding)
        return pool(x.movedim(-1, 1), window, stride, padding).movedim(1, -1).contiguous()

    return pooled


class MaxPool(Plain):
    """The maximum of each window of images."""

    problem: MaxPoolProblem
    operator = Operator(BY_NAME["max_pool2d"], "max_pool2d", _pooled(functional.max_pool2d))
    tolerance = 0.0

    def computed(self, tensors: tuple[Tensor, ...], *_: Tensor | None) -> Tensor:
        """Compute PyTorch's pool."""
        of = self.problem
        pool = functional.avg_pool2d if isinstance(of, AvgPoolProblem) else functional.max_pool2d
        return pool(*tensors, of.window, of.stride, of.padding)

    def arrays(self, tensors: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Return the images [N, H, W, C]."""
        return [each.movedim(1, -1) for each in tensors]

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002 - of the kernel's own size
        """View the kernel's output as [N, C, P, Q]."""
        return y.movedim(-1, 1)


class AvgPool(MaxPool):
    """The mean of each window of images; padding counts as zeros."""

    operator = Operator(BY_NAME["avg_pool2d"], "avg_pool2d", _pooled(functional.avg_pool2d))
    tolerance = 1e-5


class Mean(Plain):
    """The mean over the pixels of each image and channel."""

    problem: MeanProblem
    operator = Operator(BY_NAME["pixel_mean"], "pixel_mean", lambda _, tensors: tensors["x"].mean(1))
    tolerance = 1e-5

    def computed(self, tensors: tuple[Tensor, ...], *_: Tensor | None) -> Tensor:
        """Compute PyTorch's mean."""
        (x,) = tensors
        return x.mean(tuple(range(2, x.dim())), self.problem.keeps_axes)

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        """View the kernel's output as [N, C, 1, ...] or [N, C]."""
        return y.view(*y.shape, *(1,) * (x.dim() - 2)) if self.problem.keeps_axes else y


def _gated_by_pytorch(_: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    return (tensors["x"] * tensors["gate"][:, None]).contiguous()


class Gate(Plain):
    """The product of images and a factor per image and channel."""

    problem: GateProblem
    operator = Operator(BY_NAME["gate"], "gate", _gated_by_pytorch)
    tolerance = 1e-6

    def computed(self, tensors: tuple[Tensor, ...], *_: Tensor | None) -> Tensor:
        """Compute PyTorch's product."""
        x, gate = tensors
        return x * gate

    def arrays(self, tensors: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Return the images [N, pixels, C] and the factors [N, C]."""
        x, gate = tensors
        return [*super().arrays((x,)), gate.flatten(1)]


MODULES: Mapping[type[PlainProblem], type[Plain]] = {
    NormProblem: Norm,
    ConcatProblem: Concat,
    BatchNormProblem: Concat,
    MaxPoolProblem: MaxPool,
    AvgPoolProblem: AvgPool,
    MeanProblem: Mean,
    GateProblem: Gate,
}
"""The module class for each class of problems."""
OPERATORS: Mapping[str, Operator] = {each.operator.interface.name: each.operator for each in MODULES.values()}
"""Operators by the names of their operations."""
