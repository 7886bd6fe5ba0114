"""Describe a network's convolution as a problem of conv2d, conv or conv_transpose, or say why no kernel computes it.

Every exported convolution contains this module, so it imports neither autotune nor NumPy nor PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .network_layers import KINDS

Shape: TypeAlias = "tuple[int | None, ...]"
"""A tensor's sizes, with None for a size that isn't known before the network runs."""

DTYPES = ("f32", "f16", "bf16")
"""Storage types supported by conv2d, conv and conv_transpose."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution's arguments in PyTorch's terms. Tuples contain a number for each spatial axis."""

    x: Shape
    """[N, C, ...]"""
    w: Shape
    """[K, C/groups, ...]; [C, K/groups, ...] if transposed"""
    y: Shape
    stride: tuple[int, ...]
    before: tuple[int, ...]
    """padding at the start of each axis"""
    after: tuple[int, ...]
    """padding at the end of each axis"""
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    dtype: str = "f32"
    """a dtype word of studies, or the network's name of a dtype that studies do not support"""
    layout: str = "nchw"

    @property
    def axes(self) -> str:
        """The letters of the spatial axes: w, hw or dhw."""
        return "dhw"[5 - len(self.w) :]

    @property
    def k(self) -> int:
        """Number of output channels."""
        return (self.w[1] or 0) * self.groups if self.transposed else self.w[0] or 0

    @property
    def output_padding(self) -> tuple[int, ...]:
        """PyTorch's `output_padding`: how many rows or columns a transposed convolution adds to each axis of its
        output.

        0 for axes whose output size is unknown.
        """
        return tuple(
            0 if y is None else y - ((x or 1) - 1) * stride + 2 * pad - dilation * ((taps or 1) - 1) - 1
            for y, x, stride, pad, dilation, taps in zip(
                self.y[2:], self.x[2:], self.stride, self.before, self.dilation, self.w[2:], strict=True
            )
        )

    @property
    def flops(self) -> int | None:
        """Floating-point operations, or None if a size is unknown.

        There are two for each pair of an element of y (of x if transposed) and an element of a filter.
        """
        if not (self.x and self.y and self.w):
            return None
        return product((2, *(self.x if self.transposed else self.y), *self.w[1:]))

    @property
    def has_gradients(self) -> bool:
        """Whether kernels may compute the convolution's gradients.

        A transposed convolution's gradients are those of the convolution that computes x from an image of y's size. If
        an output padding isn't less than the stride, that convolution's output is larger than x.
        """
        padding = self.output_padding if self.transposed else ()
        return all(added < stride for added, stride in zip(padding, self.stride, strict=False))

    @property
    def why_not(self) -> str:
        """Why no kernel computes the convolution, or "" if one may."""
        axes = len(self.w) - 2
        if axes not in (1, 2, 3):
            return f"a {axes}-d convolution"
        if not self.x or None in self.x or None in self.w:
            return f"the size of its input is not known before the network runs: {sizes(self.x) or '?'}"
        if len(self.x) != len(self.w):
            return f"its input has {len(self.x)} dimensions, not {len(self.w)}"
        if self.x[1] != (self.w[0] if self.transposed else (self.w[1] or 0) * self.groups):
            return f"its input {sizes(self.x)} does not have the channels of its filters {sizes(self.w)}"
        if self.dtype not in DTYPES:
            return f"computes in {self.dtype}"
        return ""


@dataclass(frozen=True, slots=True)
class _OfConvolution:
    """Base class for a convolution and for the gradient of its filters."""

    geometry: Geometry
    """arguments of the convolution"""

    @property
    def dtype(self) -> str:
        """The dtype of the images."""
        return self.geometry.dtype

    @property
    def shapes(self) -> tuple[str, str]:
        """Sizes of the images and filters, for reports."""
        return sizes(self.geometry.x), sizes(self.geometry.w)


@dataclass(frozen=True, slots=True)
class Problem(_OfConvolution):
    """A convolution and its epilogue."""

    epilogue: str = "none"
    cache_d: int = 0
    """number of frames before x, which are stored in a separate tensor"""
    prologue: str = "none"
    """`scale`: x is first multiplied by a factor for each image and channel, an input; `scale_shift` and an activation:
    a batch norm in front of the convolution"""
    shuffle: int = 1
    """factor of the pixel shuffle that a transposed convolution computes as well, or 1. The residual of its epilogue is
    an image of biases, because each output phase has its own.
    """

    @property
    def kind(self) -> str:
        """The kind of layer, in words."""
        return KINDS[self.operation]

    @property
    def operation(self) -> str:
        """The operation's name: conv2d if it can express the problem, otherwise conv or conv_transpose."""
        of = self.geometry
        if of.transposed:
            return "conv_transpose"
        return "conv2d" if len(of.w) == 4 and of.before == of.after and self.prologue == "none" else "conv"

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except for the dtype, and the sizes that the shapes of x and w don't determine."""
        of = self.geometry
        k: dict[str, int | str] = {"k": of.k} if of.transposed else {}
        k |= {"cache_d": self.cache_d} if self.cache_d else {}
        k |= {"prologue": self.prologue} if self.prologue != "none" else {}
        words: dict[str, int | str] = {"groups": of.groups, "layout": of.layout, "epilogue": self.epilogue}
        return {**k, **_by_axis(of, self.operation), **words}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words. Sizes that aren't listed have their defaults."""
        of = self.geometry
        names = ("n", "c", *of.axes, "k", *"trs"[5 - len(of.w) :])
        numbers = (each or 0 for each in (*of.x, of.k, *of.w[2:]))
        return {**dict(zip(names, numbers, strict=True)), **self.arguments, "dtype": of.dtype}

    @property
    def x(self) -> Shape:
        """The shape of the images in PyTorch's terms."""
        return self.geometry.x

    @property
    def y(self) -> Shape:
        """The shape of the output."""
        return self.geometry.y

    @property
    def inputs(self) -> tuple[Shape, ...]:
        """The shapes of the input tensors: the images, the frames before them and the factors of a gate, if any."""
        n, c, *sizes_of_x = self.x
        frames = ((n, c, self.cache_d, *sizes_of_x[1:]),) if self.cache_d else ()
        factors = () if self.prologue != "scale" else ((n, c, *(1 for _ in sizes_of_x)),)
        return (self.x, *frames, *factors)

    @property
    def layout(self) -> str:
        """The layout of the images."""
        return self.geometry.layout

    @property
    def has_residual(self) -> bool:
        """Whether the epilogue adds a tensor of the network that has y's shape."""
        return self.shuffle == 1 and self.epilogue.startswith(("bias_add", "add_masked"))

    @property
    def activation(self) -> str:
        """The epilogue's activation, such as relu, or "" if there is none."""
        return activation_of(self.epilogue)


@dataclass(frozen=True, slots=True)
class FilterGradient(_OfConvolution):
    """The gradient of a convolution's filters."""

    operation = "conv_filter_gradient"
    epilogue = activation = ""
    has_residual = False

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's layout, and the sizes that the shapes of x and dy don't determine."""
        of = self.geometry
        taps = {name: size or 0 for name, size in zip("trs"[-len(of.axes) :], of.w[2:], strict=True)}
        return {**taps, **_by_axis(of, "conv"), "groups": of.groups, "layout": "nhwc"}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words. Sizes that aren't listed have their defaults."""
        of = self.geometry
        sizes_of_x = {name: size or 0 for name, size in zip(("n", "c", *of.axes), of.x, strict=True)}
        return {**sizes_of_x, "k": of.k, **self.arguments, "dtype": of.dtype}


def data_gradient(geometry: Geometry, epilogue: str = "none") -> Problem:
    """Return the convolution that computes the gradient of a convolution's input. Exactly one of them is transposed."""
    return Problem(_reversed(geometry), epilogue)


def filter_gradient(geometry: Geometry) -> FilterGradient:
    """Return the gradient of a convolution's filters. If the convolution is transposed, x and dy are swapped."""
    return FilterGradient(_reversed(geometry) if geometry.transposed else geometry)


def _reversed(of: Geometry) -> Geometry:
    return replace(of, x=of.y, y=of.x, transposed=not of.transposed)


def _by_axis(of: Geometry, operation: str) -> dict[str, int | str]:
    """Return strides, dilations and paddings by the names that the operation uses for them."""
    named = {"stride_{}": of.stride, "dilation_{}": of.dilation}
    named |= {"padding_{}" if of.transposed else "pad_{}": of.before}
    named |= {"output_padding_{}": of.output_padding} if of.transposed else {}
    named |= {"pad_{}_end": of.after} if operation == "conv" else {}
    return {
        name.format(axis): number
        for name, numbers in named.items()
        for axis, number in zip(of.axes, numbers, strict=True)
    }


def activation_of(epilogue: str) -> str:
    """Return an epilogue's activation, such as relu, or "" if there is none."""
    for terms in ("none", "bias_add", "bias", "add_masked", "derivative"):
        if epilogue.startswith(terms):
            return epilogue.removeprefix(terms).removeprefix("_")
    return epilogue


def prologue_activation(prologue: str) -> str:
    """Return a prologue's activation, such as silu, or "" if there is none."""
    return prologue.removeprefix("none").removeprefix("scale").removeprefix("_shift").removeprefix("_")


def epilogue_name(*, residual: bool, activation: str) -> str:
    """Return the name of an epilogue with a bias. `activation` is a word such as relu, or ""."""
    return "_".join(("bias", *(("add",) if residual else ()), *((activation,) if activation else ())))


def sizes(shape: Shape) -> str:
    """Format a shape, such as 1x3x?x?."""
    return "x".join("?" if size is None else str(size) for size in shape)


def product(factors: Sequence[int | None]) -> int | None:
    """Return the product of all sizes, or None if one of them is unknown."""
    known = [size for size in factors if size is not None]
    return math.prod(known) if len(known) == len(factors) else None
