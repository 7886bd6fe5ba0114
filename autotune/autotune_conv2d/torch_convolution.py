"""What a convolution is besides its tensors, and which tensors fit it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from .library import Problem, epilogue_name
from .torch_activations import BY_WORD

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_NAME = "autotune_conv2d"  # that errors begin with


@dataclass(frozen=True, slots=True)
class Convolution:
    """What an exported library's kernel is asked for. As a text it is one argument of the operator.

    PyTorch's dispatcher takes 0.3 us for each argument, and Inductor writes the text into the code that it makes.
    """

    library: str
    """path"""
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
    """the kernel is one for NHWC, and so is what is returned"""
    or_pytorch: bool = False
    """what no kernel serves is computed by PyTorch's convolution, with one warning"""

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        """Stride, padding, dilation and groups, as PyTorch's operators take them."""
        pairs = ((self.stride_h, self.stride_w), (self.pad_h, self.pad_w), (self.dilation_h, self.dilation_w))
        return (*pairs, self.groups)

    @property
    def text(self) -> str:
        """Read back by `convolution_of`."""
        return json.dumps(asdict(self))

    @property
    def memory_format(self) -> torch.memory_format:
        """Of images, filters, residual and output."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

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

    def problem(self, x: Tensor, weight: Tensor, *, bias: bool, residual: bool) -> Problem:
        """The problem that it is on these tensors."""
        epilogue = epilogue_name(residual=residual, activation=self.activation) if bias else "none"
        k, _, r, s = weight.shape
        stride, padding, dilation, groups = self.sizes
        sizes = (*x.shape, k, r, s, *stride, *padding, *dilation, groups)
        return Problem.of(sizes, DTYPES[x.dtype], "nhwc" if self.channels_last else "nchw", epilogue)

    def empty_output(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, device: torch.device | str
    ) -> Tensor:
        """An output [N, K, P, Q] without values. Raises ValueError where the tensors do not fit."""
        y_shape = self.y_shape(x, weight)
        self._check(x, weight, bias, z, y_shape)
        return torch.empty(y_shape, dtype=x.dtype, device=device, memory_format=self.memory_format)

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
            raise ValueError(f"{_NAME}: x has not the channels of weight in {self.groups} groups: {_sizes(tensors)}")
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


@functools.cache
def convolution_of(text: str) -> Convolution:
    """A convolution from its text."""
    return Convolution(**json.loads(text))


def _sizes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors)
