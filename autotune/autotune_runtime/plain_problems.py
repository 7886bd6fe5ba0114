"""Describe layers without filters as problems for kernels: norms, concatenations, pools, means and gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from .convolution import DTYPES, Shape, sizes
from .network_layers import BATCH_NORM, KINDS, Layer

MOST_TENSORS = 8
"""Maximum number of tensors that a kernel can concatenate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainProblem:
    """A problem without filters. Images are channels-last unless a subclass says otherwise."""

    operation: ClassVar[str]
    """name of the operation that computes the problem"""
    has_residual: ClassVar[bool] = False
    """whether the epilogue adds a tensor"""

    x: tuple[int, ...]
    """shape of the images in PyTorch's terms, [N, C, ...]"""
    dtype: str
    epilogue: str = "none"

    @property
    def kind(self) -> str:
        """The kind of layer, in words."""
        return KINDS[self.operation]

    @property
    def layout(self) -> str:
        """The layout of the images."""
        return "nhwc"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the input tensors."""
        return (self.x,)

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the output."""
        return self.x

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except for the dtype, and the sizes that the shapes don't determine."""
        return {}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words. Sizes that aren't listed have their defaults."""
        return {"n": self.x[0], "pixels": math.prod(self.x[2:]), "c": self.x[1], "dtype": self.dtype}

    @property
    def terms(self) -> str:
        """The epilogue without the activation."""
        return next(terms for terms in ("weight_bias", "weight", "none") if self.epilogue.startswith(terms))

    @property
    def activation(self) -> str:
        """The epilogue's activation, such as silu, or "" if there is none."""
        return self.epilogue.removeprefix(self.terms).removeprefix("_")

    @property
    def shapes(self) -> tuple[str, str]:
        """Sizes of the images and the problem's other sizes, for reports."""
        return sizes(self.x), ""

    def epilogues(self, activation: str, *, scaled: bool) -> tuple[str, ...]:
        """Return the epilogues that a kernel may compute if an activation follows, the most complete one first.

        `activation` is a word, or "" if there is none. `scaled` means that a scale and shift of each channel follow the
        layer.
        """
        terms = "weight_bias" if scaled else self.terms
        return (f"{terms}_{activation}", terms) if activation and terms != "none" else (terms,)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormProblem(PlainProblem):
    """A layer norm, group norm or RMS norm with its weights and the activation that follows.

    `x` is [N, C, ...] for group norms and if `second` is set, otherwise [..., C]. `epilogue` is weight_bias, weight or
    none, followed by the activation.
    """

    operation = "norm"

    channels: int
    groups: int | None
    """number of groups in an image, each with its own statistics; None: each row of `channels` elements has its own"""
    eps_e12: int
    kind: str
    """rms or standard"""
    second: bool = False
    """whether rows lie along axis 1: the channels of each pixel of images that are stored channels-last"""

    @property
    def layout(self) -> str:
        """The layout: nhwc for images, and nchw for rows, which don't have a layout."""
        return "nchw" if self.groups is None and not self.second else "nhwc"

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except the dtype, and the sizes that the shapes do not determine."""
        return {"groups": self.groups or 1, "eps_e12": self.eps_e12, "kind": self.kind, "epilogue": self.epilogue}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words."""
        rows = math.prod(self.x) // self.channels
        n = rows if self.groups is None else self.x[0]
        return {"n": n, "pixels": rows // n, "c": self.channels, **self.arguments, "dtype": self.dtype}

    @property
    def shapes(self) -> tuple[str, str]:
        """Sizes of the input, and the number of groups, for reports."""
        return sizes(self.x), "" if self.groups is None else f"{self.groups} groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatProblem(PlainProblem):
    """A concatenation along the channels, with the batch norm and activation that follow. `x` is the output's shape."""

    operation = "concat"

    channels: tuple[int, ...]
    """number of channels of each input tensor"""

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the input tensors."""
        return tuple((self.x[0], each, *self.x[2:]) for each in self.channels)

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except the dtype; the shapes determine all sizes."""
        return {"epilogue": self.epilogue}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words; sizes that are not listed have their defaults."""
        rows = math.prod(self.x) // self.x[1]
        return {"n": rows, **{f"c{i}": c for i, c in enumerate(self.channels)}, **self.arguments, "dtype": self.dtype}

    @property
    def shapes(self) -> tuple[str, str]:
        """Sizes of the output, and the channels of the input tensors, for reports."""
        return sizes(self.x), "+".join(map(str, self.channels))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormProblem(ConcatProblem):
    """A batch norm that isn't folded into another layer, and the activation that follows.

    Kernels compute it as the concatenation of a single tensor.
    """

    kind = BATCH_NORM
    epilogue: str = "weight_bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanProblem(PlainProblem):
    """The mean over the pixels of each image and channel."""

    operation = "pixel_mean"

    keeps_axes: bool
    """whether the output is [N, C, 1, ...] instead of [N, C]"""

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the output."""
        return (*self.x[:2], *(1,) * (len(self.x) - 2 if self.keeps_axes else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateProblem(PlainProblem):
    """The product of images and a factor per image and channel."""

    operation = "gate"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the input tensors."""
        return self.x, (*self.x[:2], *(1,) * (len(self.x) - 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolProblem(PlainProblem):
    """The maximum of each window of images [N, C, H, W]; pairs are (rows, columns)."""

    operation = "max_pool2d"

    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the output."""
        spatial = zip(self.x[2:], self.window, self.stride, self.padding, strict=True)
        return (*self.x[:2], *((size + 2 * pad - taps) // step + 1 for size, taps, step, pad in spatial))

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words except the dtype, and the sizes that the shapes do not determine."""
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
        """Sizes of the images and of the window, for reports."""
        return sizes(self.x), sizes(self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgPoolProblem(MaxPoolProblem):
    """The mean of each window of images; padding counts as zeros."""

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
    """Return a norm of x as a layer, with its problem or the reason why no kernel computes it.

    With `groups`, each group of channels of an image [N, C, ...] has its own statistics. Otherwise, each row of
    `channels` elements does; rows lie along the last axis or, if `second` is set, along axis 1.
    """
    known = tuple(size for size in x if size is not None)
    if len(known) < len(x) or not known:
        return Layer("norm", label, None, "its sizes are not known", None)
    flops = 8 * math.prod(known)
    if not why_not and dtype not in DTYPES:
        why_not = f"computes in {dtype}"
    if why_not or eps is None:
        return Layer("norm", label, None, why_not or "its eps depends on PyTorch's version; pass eps explicitly", flops)
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
    """Return a concatenation of images [N, C, ...] as a layer, or None if a size is unknown.

    The layer contains the problem or the reason why no kernel computes it.
    """
    known = [tuple(size for size in shape if size is not None) for shape in tensors]
    if any(len(one) < max(len(other), 3) for one, other in zip(known, tensors, strict=True)):
        return None
    channels = tuple(shape[1] for shape in known)
    x = (known[0][0], sum(channels), *known[0][2:])
    why_not = "" if dtype in DTYPES else f"computes in {dtype}"
    if len(channels) > MOST_TENSORS:
        why_not = f"concatenates {len(channels)} tensors; kernels support at most {MOST_TENSORS}"
    problem = None if why_not else ConcatProblem(x=x, dtype=dtype, channels=channels)
    return Layer("concatenation", label, problem, why_not, 2 * math.prod(x))


Of = TypeVar("Of", bound=PlainProblem)


def images_layer(label: str, problem: Of, flops: int) -> Layer[Of]:
    """Return a layer without weights, with the problem or the reason why no kernel computes it."""
    why_not = "" if problem.dtype in DTYPES else f"computes in {problem.dtype}"
    return Layer(problem.kind, label, None if why_not else problem, why_not, flops)
