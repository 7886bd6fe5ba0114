"""Layers without filters as problems of kernels: norms, concatenations, pools, means and gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from .convolution import DTYPES, Shape, sizes
from .network_layers import KINDS, Layer

MOST_TENSORS = 8
"""Maximum number of tensors that a kernel concatenates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainProblem:
    """A problem without filters, of channels-last images unless a subclass says otherwise."""

    operation: ClassVar[str]
    """the operation that computes it"""
    has_residual: ClassVar[bool] = False
    """whether the epilogue adds a tensor"""

    x: tuple[int, ...]
    """shape of the images in PyTorch's terms [N, C, ...]"""
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
        """The operation's words except the dtype, and its sizes that the shapes do not determine."""
        return {}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words; a size that is missing has its default."""
        return {"n": self.x[0], "pixels": math.prod(self.x[2:]), "c": self.x[1], "dtype": self.dtype}

    @property
    def terms(self) -> str:
        """The epilogue without its activation."""
        return next(terms for terms in ("weight_bias", "weight", "none") if self.epilogue.startswith(terms))

    @property
    def activation(self) -> str:
        """The activation of the epilogue, such as silu; empty if there is none."""
        return self.epilogue.removeprefix(self.terms).removeprefix("_")

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its images, and its other sizes, for a report."""
        return sizes(self.x), ""

    def epilogues(self, activation: str, *, scaled: bool) -> tuple[str, ...]:
        """The epilogues that a kernel may compute before an activation (empty: none), the most complete first.

        `scaled` tells whether a scale and a shift of each channel follow the layer.
        """
        terms = "weight_bias" if scaled else self.terms
        return (f"{terms}_{activation}", terms) if activation and terms != "none" else (terms,)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormProblem(PlainProblem):
    """A layer, group or RMS norm, its weights, and the activation after it.

    `x` is [N, C, ...] with groups, otherwise [..., C]. `epilogue` is weight_bias, weight or none, and the activation.
    """

    operation = "norm"

    channels: int
    groups: int | None
    """None: each row of `channels` elements has its statistics; otherwise each group of an image"""
    eps_e12: int
    kind: str
    """rms or standard"""
    second: bool = False
    """whether rows lie along axis 1, as a pixel's channels do in images, which are stored channels-last"""

    @property
    def layout(self) -> str:
        """The layout of its images; rows have none."""
        return "nchw" if self.groups is None and not self.second else "nhwc"

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except the dtype, and its sizes that the shapes do not determine."""
        return {"groups": self.groups or 1, "eps_e12": self.eps_e12, "kind": self.kind, "epilogue": self.epilogue}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words."""
        rows = math.prod(self.x) // self.channels
        n = rows if self.groups is None else self.x[0]
        return {"n": n, "pixels": rows // n, "c": self.channels, **self.arguments, "dtype": self.dtype}

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its input and the number of its groups, for a report."""
        return sizes(self.x), "" if self.groups is None else f"{self.groups} groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatProblem(PlainProblem):
    """A concatenation along the channels, and the batch norm and the activation after it; `x` is its result's shape."""

    operation = "concat"

    channels: tuple[int, ...]
    """of each tensor"""

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return tuple((self.x[0], each, *self.x[2:]) for each in self.channels)

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except the dtype; the shapes determine all sizes."""
        return {"epilogue": self.epilogue}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words; a size that is missing has its default."""
        rows = math.prod(self.x) // self.x[1]
        return {"n": rows, **{f"c{i}": c for i, c in enumerate(self.channels)}, **self.arguments, "dtype": self.dtype}

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its result and the channels of its tensors, for a report."""
        return sizes(self.x), "+".join(map(str, self.channels))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanProblem(PlainProblem):
    """The mean over the pixels of each image and channel."""

    operation = "pixel_mean"

    keeps_axes: bool
    """whether the result is [N, C, 1, ...] and not [N, C]"""

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        return (*self.x[:2], *(1,) * (len(self.x) - 2 if self.keeps_axes else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateProblem(PlainProblem):
    """The product of images and a factor for each image and channel."""

    operation = "gate"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return self.x, (*self.x[:2], *(1,) * (len(self.x) - 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolProblem(PlainProblem):
    """The maximum of windows of images [N, C, H, W]; its pairs are of rows and columns."""

    operation = "max_pool2d"

    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        spatial = zip(self.x[2:], self.window, self.stride, self.padding, strict=True)
        return (*self.x[:2], *((size + 2 * pad - taps) // step + 1 for size, taps, step, pad in spatial))

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except the dtype, and its sizes that the shapes do not determine."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgPoolProblem(MaxPoolProblem):
    """The mean of windows of images, in which padding counts as zeros."""

    operation = "avg_pool2d"


def norm(
    label: str,
    x: Shape,
    dtype: str,
    *,
    channels: int,
    groups: int | None = None,
    eps: float | None,
    rms: bool = False,
    second: bool = False,
    terms: str,
    why_not: str = "",
) -> Layer[NormProblem]:
    """A norm of x as a problem, or why no kernel computes it.

    Without `groups`, each row of `channels` elements has its statistics, which lies along the last axis, or along the
    `second`; with them, each group of an image [N, C, ...].
    """
    known = tuple(size for size in x if size is not None)
    if len(known) < len(x) or not known:
        return Layer("norm", label, None, "its sizes are not known", None)
    flops = 8 * math.prod(known)
    if not why_not and dtype not in DTYPES:
        why_not = f"computes in {dtype}"
    if why_not or eps is None:
        return Layer("norm", label, None, why_not or "its eps depends on the version of PyTorch; give it one", flops)
    eps_e12 = round(eps * 1e12)
    if abs(eps_e12 - eps * 1e12) > 1e-6 * eps * 1e12:
        return Layer("norm", label, None, f"its eps {eps:g} is not a multiple of 1e-12", flops)
    problem = NormProblem(
        x=known,
        dtype=dtype,
        epilogue=terms,
        channels=channels,
        groups=groups,
        eps_e12=eps_e12,
        kind="rms" if rms else "standard",
        second=second,
    )
    return Layer("norm", label, problem, "", flops)


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
    problem = None if why_not else ConcatProblem(x=x, dtype=dtype, channels=channels)
    return Layer("concatenation", label, problem, why_not, 2 * math.prod(x))


Of = TypeVar("Of", bound=PlainProblem)


def images_layer(label: str, problem: Of, flops: int) -> Layer[Of]:
    """A layer without weights, or why no kernel computes it."""
    why_not = "" if problem.dtype in DTYPES else f"computes in {problem.dtype}"
    return Layer(KINDS[problem.operation], label, None if why_not else problem, why_not, flops)
