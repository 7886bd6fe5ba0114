"""Concatenations of a network's images along their channels as problems of the operation `concat`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .convolution import DTYPES, Shape, sizes
from .network_layers import Layer

MOST_TENSORS = 8
"""Maximum number of tensors that a kernel concatenates."""


@dataclass(frozen=True, slots=True)
class ConcatProblem:
    """A concatenation of channels-last images, and the batch norm and the activation after it."""

    x: tuple[int, ...]
    """shape of the result [N, C, ...]"""
    channels: tuple[int, ...]
    """of each tensor"""
    dtype: str
    epilogue: str = "none"
    """none, or weight_bias and the activation"""

    @property
    def operation(self) -> str:
        """The operation that computes it."""
        return "concat"

    @property
    def layout(self) -> str:
        """The layout of its images."""
        return "nhwc"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return tuple((self.x[0], each, *self.x[2:]) for each in self.channels)

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        return self.x

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words but the dtype; the shapes determine all sizes."""
        return {"epilogue": self.epilogue}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words; a size that is missing has its default."""
        rows = math.prod(self.x) // self.x[1]
        return {"n": rows, **{f"c{i}": c for i, c in enumerate(self.channels)}, **self.arguments, "dtype": self.dtype}

    @property
    def has_residual(self) -> bool:
        """Whether a pass adds a tensor; none does."""
        return False

    @property
    def activation(self) -> str:
        """The activation of its epilogue, such as silu; empty if there is none."""
        return self.epilogue.removeprefix("none").removeprefix("weight_bias").removeprefix("_")

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its result and the channels of its tensors, for a report."""
        return sizes(self.x), "+".join(map(str, self.channels))


def concat(label: str, tensors: Sequence[Shape], dtype: str) -> Layer[ConcatProblem] | None:
    """A concatenation of images [N, C, ...] as a problem, or why no kernel computes it; None if sizes are unknown."""
    known = [tuple(size for size in shape if size is not None) for shape in tensors]
    if any(len(one) < max(len(other), 3) for one, other in zip(known, tensors, strict=True)):
        return None
    channels = tuple(shape[1] for shape in known)
    x = (known[0][0], sum(channels), *known[0][2:])
    why_not = "" if dtype in DTYPES else f"computes in {dtype}"
    if len(channels) > MOST_TENSORS:
        why_not = f"concatenates {len(channels)} tensors, of at most {MOST_TENSORS}"
    return Layer(
        "concatenation", label, None if why_not else ConcatProblem(x, channels, dtype), why_not, 2 * math.prod(x)
    )
