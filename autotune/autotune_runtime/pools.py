"""Max pools, means and gates of channels-last images as problems of `max_pool2d`, `pixel_mean` and `gate`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from .convolution import DTYPES, sizes
from .network_layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesProblem:
    """A problem of channels-last images that has no weights."""

    x: tuple[int, ...]
    """shape of the images [N, C, ...]"""
    dtype: str
    epilogue: str = "none"

    @property
    def layout(self) -> str:
        """The layout of its images."""
        return "nhwc"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return (self.x,)

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        return self.x

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words but the dtype, and its sizes that the shapes do not determine."""
        return {}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words."""
        return {"n": self.x[0], "pixels": math.prod(self.x[2:]), "c": self.x[1], "dtype": self.dtype}

    @property
    def has_residual(self) -> bool:
        """Whether a pass adds a tensor; none does."""
        return False

    @property
    def activation(self) -> str:
        """The activation of its epilogue; it has none."""
        return ""

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its images, for a report."""
        return sizes(self.x), ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanProblem(ImagesProblem):
    """The mean over the pixels of each image and channel."""

    keeps_axes: bool
    """whether the result is [N, C, 1, ...] and not [N, C]"""

    @property
    def operation(self) -> str:
        """The operation that computes it."""
        return "pixel_mean"

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        return (*self.x[:2], *(1,) * (len(self.x) - 2 if self.keeps_axes else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateProblem(ImagesProblem):
    """The product of images and a factor for each image and channel."""

    @property
    def operation(self) -> str:
        """The operation that computes it."""
        return "gate"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return self.x, (*self.x[:2], *(1,) * (len(self.x) - 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolProblem(ImagesProblem):
    """The maximum of windows of images [N, C, H, W]; its pairs are of rows and columns."""

    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def operation(self) -> str:
        """The operation that computes it."""
        return "max_pool2d"

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        spatial = zip(self.x[2:], self.window, self.stride, self.padding, strict=True)
        return (*self.x[:2], *((size + 2 * pad - taps) // step + 1 for size, taps, step, pad in spatial))

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words but the dtype, and its sizes that the shapes do not determine."""
        pairs = (("r", "s"), self.window), (("stride_h", "stride_w"), self.stride), (("pad_h", "pad_w"), self.padding)
        named = {name: size for names, pair in pairs for name, size in zip(names, pair, strict=True)}
        return {**named, "layout": self.layout}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words."""
        n, c, h, w = self.x
        return {"n": n, "c": c, "h": h, "w": w, **self.arguments, "dtype": self.dtype}

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its images and of its window, for a report."""
        return sizes(self.x), sizes(self.window)


Of = TypeVar("Of", bound=ImagesProblem)


def images_layer(kind: str, label: str, problem: Of, flops: int) -> Layer[Of]:
    """A layer without weights, or why no kernel computes it."""
    why_not = "" if problem.dtype in DTYPES else f"computes in {problem.dtype}"
    return Layer(kind, label, None if why_not else problem, why_not, flops)
