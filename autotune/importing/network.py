"""A network as its file has it: operators that read and write tensors by name. Files of every kind are read to this."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.declarations import DTYPE_BYTES
from autotune.errors import StudyError
from autotune.problem import Conv2dProblem

Shape: TypeAlias = tuple[int | None, ...]
"""Sizes of a tensor; None: one that the file does not tell."""
Floats: TypeAlias = NDArray[np.float64]
Function: TypeAlias = Callable[[Sequence[Floats]], Floats]
"""What an elementwise operator computes of the tensors that it reads, in their order."""

LONGEST_LABEL = 80
"""Characters of a label: those of real networks are shorter."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of any kind."""

    label: str
    """what a person calls it, such as layer1.0.conv1"""
    problem: Conv2dProblem | None
    """the convolution and its bias; None where no kernel computes it"""
    why_not: str
    """why `problem` is None"""
    flops: int | None
    """a multiply-add counted as two; None where its sizes are not known"""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a network. Constants, and what is computed of constants alone, are not among what it reads."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kind: str = "other"
    """copy: returns what it reads; affine: scales and shifts each channel by constants; addition: of two tensors of one
    shape; convolution; other"""
    function: Function | None = None
    """elementwise; None where it is not, or is not known"""
    convolution: Convolution | None = None
    product_flops: int = 0
    """of a product of matrices"""
    label: str = ""
    """of a product of matrices, what a person calls it"""


@dataclass(frozen=True, slots=True)
class Network:
    """Operators in an order in which they can run."""

    operators: tuple[Operator, ...]
    outputs: frozenset[str]
    """tensors that the network returns"""
    inputs: tuple[Shape, ...] = ()
    layout: str = "nchw"
    """how the network itself stores its images"""
    readers: Mapping[str, tuple[int, ...]] = field(init=False)
    """positions of the operators that read a tensor"""

    def __post_init__(self) -> None:
        readers: dict[str, list[int]] = {}
        for at, operator in enumerate(self.operators):
            for name in dict.fromkeys(operator.reads):
                readers.setdefault(name, []).append(at)
        object.__setattr__(self, "readers", {name: tuple(found) for name, found in readers.items()})

    def only_reader(self, tensor: str) -> Operator | None:
        """The operator that alone reads a tensor, which nobody else sees."""
        found = self.readers.get(tensor, ())
        return self.operators[found[0]] if len(found) == 1 and tensor not in self.outputs else None


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a file says of a convolution; sequences have a number for each spatial axis."""

    x: Shape
    """[N, C, ...]"""
    w: Shape
    """[K, C/groups, ...], of a transposed one [C, K/groups, ...]"""
    y: Shape
    stride: Sequence[int]
    before: Sequence[int]
    """padding"""
    after: Sequence[int]
    dilation: Sequence[int]
    groups: int
    transposed: bool = False
    bias: bool = False
    dtype: str = "f32"
    """a word of a study, or what the file calls one that studies have not"""


def convolution(label: str, geometry: Geometry, dtype: str | None, layout: str, why_not: str = "") -> Convolution:
    """A convolution as a problem, or why no kernel computes it. `dtype` None: the file's own."""
    problem = None
    why_not = why_not or _why_not(geometry, dtype)
    if not why_not:
        try:
            problem = _problem(geometry, dtype or geometry.dtype, layout)
        except StudyError as error:
            why_not = str(error)
    return Convolution(plain(label), problem, plain(why_not, 1000), _flops(geometry))


def plain(text: str, longest: int = LONGEST_LABEL) -> str:
    """A file's text that may be shown: one line without control characters, of bounded length."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def sizes(shape: Shape) -> str:
    """A shape in words, such as 1x3x?x?."""
    return "x".join("?" if size is None else str(size) for size in shape)


def product(factors: Sequence[int | None]) -> int | None:
    """Of all sizes; None where one is not known."""
    known = [size for size in factors if size is not None]
    return math.prod(known) if len(known) == len(factors) else None


def _why_not(geometry: Geometry, dtype: str | None) -> str:
    axes = len(geometry.w) - 2
    if geometry.transposed:
        return "a transposed convolution"
    if axes != 2:
        return f"a {axes}-d convolution"
    if not geometry.x or None in geometry.x or None in geometry.w:
        return f"the size of its input is not known before the network runs: {sizes(geometry.x) or '?'}"
    if len(geometry.x) != 4:
        return f"its input has {len(geometry.x)} dimensions, not 4"
    if tuple(geometry.before) != tuple(geometry.after):
        return f"pads {_pads(geometry.before)} before and {_pads(geometry.after)} after the image, not both alike"
    if dtype is None and geometry.dtype not in DTYPE_BYTES:
        return f"computes in {geometry.dtype}; --dtype says in what it is to"
    return ""


def _pads(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def _problem(geometry: Geometry, dtype: str, layout: str) -> Conv2dProblem:
    """Raises StudyError for sizes that make no convolution."""
    n, c, h, w = (size or 0 for size in geometry.x)
    k, slice_c, r, s = (size or 0 for size in geometry.w)
    if c != slice_c * geometry.groups:
        raise StudyError(f"its input {sizes(geometry.x)} has not the channels of its filters {sizes(geometry.w)}")
    pairs = {
        f"{name}_{axis}": numbers[at]
        for name, numbers in (("stride", geometry.stride), ("pad", geometry.before), ("dilation", geometry.dilation))
        for at, axis in enumerate("hw")
    }
    epilogue = "bias" if geometry.bias else "none"
    return Conv2dProblem(
        n=n,
        c=c,
        h=h,
        w=w,
        k=k,
        r=r,
        s=s,
        **pairs,
        groups=geometry.groups,
        dtype=dtype,
        layout=layout,
        epilogue=epilogue,
    )


def _flops(geometry: Geometry) -> int | None:
    """Each element of y, of a transposed one of x, meets the filter's sizes behind the first."""
    if not (geometry.x and geometry.y and geometry.w):
        return None
    return product((2, *(geometry.x if geometry.transposed else geometry.y), *geometry.w[1:]))
