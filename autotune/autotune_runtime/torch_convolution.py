"""The PyTorch operator `autotune_runtime::conv2d`, with PyTorch's conventions: shapes are NCHW, however x is stored."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from . import find_library, load
from .activations import BY_WORD
from .conv2d import Problem, epilogue_name
from .declared import INTERFACE
from .interface import DeclaredProblem, Library
from .torch_operator import Operator, Tensors

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_NAME = "autotune_runtime"  # prefix of error messages


@dataclass(frozen=True, slots=True)
class Convolution:
    """The arguments for an exported library's kernel.

    As text they are one argument of the operator. PyTorch's dispatcher takes 0.3 us for each argument, and Inductor
    writes the text into the code that it generates.
    """

    path: str
    """path of the library"""
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    activation: str = ""
    """its word; empty: none"""
    channels_last: bool = False
    """the kernel is for NHWC, and so is the output"""
    or_pytorch: bool = False
    """problems without a kernel are computed by PyTorch's convolution, with one warning"""

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        """Stride, padding, dilation and groups, as arguments of PyTorch's operators."""
        pairs = ((self.stride_h, self.stride_w), (self.pad_h, self.pad_w), (self.dilation_h, self.dilation_w))
        return (*pairs, self.groups)

    @property
    def text(self) -> str:
        """As text, which `convolution_of` parses."""
        return json.dumps(asdict(self))

    @property
    def library(self) -> Library:
        """The library that has the kernels."""
        return load(self.path)

    def y_shape(self, x: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
        """[N, K, P, Q]. Raises ValueError for other than four dimensions."""
        if x.dim() != 4 or weight.dim() != 4:
            raise ValueError(
                f"{_NAME}: expected x [N, C, H, W] and weight [K, C/groups, R, S], got {_sizes((x, weight))}"
            )
        stride, padding, dilation, _ = self.sizes
        p, q = (
            (x.shape[axis + 2] + 2 * padding[axis] - dilation[axis] * (weight.shape[axis + 2] - 1) - 1) // stride[axis]
            + 1
            for axis in (0, 1)
        )
        return (x.shape[0], weight.shape[0], p, q)

    def problem(self, launched: Tensors, weights: Tensors) -> DeclaredProblem:
        """The problem for x, z, filters and bias."""
        (x, z), (weight, bias) = launched, weights
        assert x is not None and weight is not None  # noqa: PT018, S101 - as the schema says
        epilogue = "none" if bias is None else epilogue_name(residual=z is not None, activation=self.activation)
        k, _, r, s = weight.shape
        stride, padding, dilation, groups = self.sizes
        sizes = (*x.shape, k, r, s, *stride, *padding, *dilation, groups)
        return Problem.of(sizes, DTYPES[x.dtype], "nhwc" if self.channels_last else "nchw", epilogue).declared

    def made(self, launched: Tensors, weights: Tensors, device: torch.device) -> dict[str, Tensor]:
        """An output [N, K, P, Q] without values. Raises ValueError if the tensors do not match."""
        (x, z), (weight, bias) = launched, weights
        assert x is not None and weight is not None  # noqa: PT018, S101 - as the schema says
        y_shape = self.y_shape(x, weight)
        self._check(x, weight, bias, z, y_shape)
        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        return {"y": torch.empty(y_shape, dtype=x.dtype, device=device, memory_format=memory_format)}

    @property
    def instead(self) -> Callable[[Tensors, Tensors], Tensor] | None:
        """PyTorch's convolution, if it may replace a missing kernel."""
        return self._by_pytorch if self.or_pytorch else None

    def _by_pytorch(self, launched: Tensors, weights: Tensors) -> Tensor:
        """The same by PyTorch's operators, in the layout of a kernel."""
        (x, z), (weight, bias) = launched, weights
        assert x is not None  # noqa: S101 - as the schema says
        y = functional.conv2d(x, weight, bias, *self.sizes)
        y = activated(y if z is None else y.add_(z), self.activation)
        return self.made(launched, weights, x.device)["y"].copy_(y)

    def _check(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, y_shape: tuple[int, ...]
    ) -> None:
        tensors = [tensor for tensor in (x, weight, bias, z) if tensor is not None]
        if any(tensor.dtype != weight.dtype for tensor in tensors) or x.dtype not in DTYPES:
            dtypes = ", ".join(str(tensor.dtype) for tensor in tensors)
            raise ValueError(
                f"{_NAME}: x, weight, bias and z must be of one dtype of {', '.join(map(str, DTYPES))}: {dtypes}"
            )
        if any(tensor.device != x.device for tensor in tensors):
            raise ValueError(f"{_NAME}: not on one device: {', '.join(str(tensor.device) for tensor in tensors)}")
        if x.shape[1] != weight.shape[1] * self.groups:
            raise ValueError(
                f"{_NAME}: x does not have the channels of weight in {self.groups} groups: {_sizes(tensors)}"
            )
        if self.activation and self.activation not in BY_WORD:
            expected = ", ".join(BY_WORD)
            raise ValueError(f"{_NAME}: activation {self.activation!r}: expected one of {expected}, or nothing")
        if bias is None and (self.activation or z is not None):
            what = self.activation or "z"
            raise ValueError(f"{_NAME}: {what} needs a bias: the library has no epilogue with it that has none")
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            raise ValueError(f"{_NAME}: expected bias [K], got {_sizes(tensors)}")
        if z is not None and z.shape != y_shape:
            raise ValueError(f"{_NAME}: expected z as large as the output, {[*y_shape]}, got {[*z.shape]}")


def activated(y: Tensor, word: str) -> Tensor:
    """Apply an activation to a tensor in place; return it unchanged for the word identity, and for none."""
    if word not in BY_WORD:
        return y
    made: Tensor = _in_place(word)(y, **BY_WORD[word].options)
    return made


@functools.cache
def _in_place(word: str) -> Callable[..., Tensor]:
    """PyTorch's operator with its overload, which is then not looked up in each call."""
    overload: Callable[..., Tensor] = getattr(torch.ops.aten, f"{BY_WORD[word].aten}_").default
    return overload


@functools.cache
def convolution_of(text: Hashable) -> Convolution:
    """Parse a convolution from its text."""
    return Convolution(**json.loads(str(text)))


def _sizes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors)


def _split(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: str
) -> tuple[Tensors, Tensors, Hashable]:
    return (x, z), (weight, bias), convolution


_NAMESPACE = (__package__ or _NAME).replace(".", "_")
"""autotune_runtime in an exported folder; autotune's own copy has another name, so that both can be in one process."""
CONV2D = Operator(
    INTERFACE,
    _NAMESPACE,
    "conv2d(Tensor x, Tensor weight, Tensor? bias, Tensor? z, str convolution) -> Tensor",
    _split,
    convolution_of,
)
"""The operator itself; `conv2d` has a more convenient signature."""


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    activation: str = "",
    channels_last: bool = False,
    library: str | None = None,
) -> Tensor:
    """`torch.nn.functional.conv2d`, then the addition of z and an activation, by the library's kernel for x's shape.

    x, weight, bias and z have one dtype and device, and z has the output's shape [N, K, P, Q]; `activation` is a word
    such as relu; both need a bias. `channels_last`: the kernel is for NHWC, and so is the output. `library` is a path;
    None: the one that `find_library` finds. Raises LibraryError if the library has no kernel, TrainingMode if gradients
    are required.
    """
    path = str(find_library()) if library is None else library
    (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = stride, padding, dilation
    sizes = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups)
    return cast("Tensor", CONV2D(x, weight, bias, z, Convolution(path, *sizes, activation, channels_last).text))
