"""Layer, group and RMS norms of a network as problems of the operation `norm`, or why no kernel computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .convolution import DTYPES, Shape, sizes
from .network_layers import Layer


@dataclass(frozen=True, slots=True)
class NormProblem:
    """A norm, its weights, and the activation after it."""

    x: tuple[int, ...]
    """shape of the input in PyTorch's terms: [N, C, ...] with groups, otherwise [..., C]"""
    channels: int
    groups: int | None
    """None: each row of `channels` elements has its statistics; otherwise each group of an image"""
    eps_e12: int
    dtype: str
    kind: str
    """rms or standard"""
    epilogue: str
    """weight_bias, weight or none, and the activation"""
    second: bool = False
    """whether rows lie along axis 1, as a pixel's channels do in images, which are stored channels-last"""

    @property
    def operation(self) -> str:
        """The operation that computes it."""
        return "norm"

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return (self.x,)

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of its result."""
        return self.x

    @property
    def layout(self) -> str:
        """The layout of its images; rows have none."""
        return "nchw" if self.groups is None and not self.second else "nhwc"

    @property
    def arguments(self) -> dict[str, int | str]:
        """The operation's words but the dtype, and its sizes that the shapes do not determine."""
        return {"groups": self.groups or 1, "eps_e12": self.eps_e12, "kind": self.kind, "epilogue": self.epilogue}

    @property
    def values(self) -> dict[str, int | str]:
        """The operation's sizes and words."""
        rows = math.prod(self.x) // self.channels
        n = rows if self.groups is None else self.x[0]
        return {"n": n, "pixels": rows // n, "c": self.channels, **self.arguments, "dtype": self.dtype}

    @property
    def has_residual(self) -> bool:
        """Whether a pass adds a tensor; none does."""
        return False

    @property
    def terms(self) -> str:
        """The epilogue without its activation."""
        return next(terms for terms in ("weight_bias", "weight", "none") if self.epilogue.startswith(terms))

    @property
    def activation(self) -> str:
        """The activation of its epilogue, such as silu; empty if there is none."""
        return self.epilogue.removeprefix(self.terms).removeprefix("_")

    @property
    def shapes(self) -> tuple[str, str]:
        """The sizes of its input and the number of its groups, for a report."""
        return sizes(self.x), "" if self.groups is None else f"{self.groups} groups"

    def epilogues(self, activation: str) -> tuple[str, ...]:
        """The epilogues for a norm before an activation, the most complete first."""
        alone = self.terms == "none" or not activation
        return (self.terms,) if alone else (f"{self.terms}_{activation}", self.terms)


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
    kind = "rms" if rms else "standard"
    return Layer("norm", label, NormProblem(known, channels, groups, eps_e12, dtype, kind, terms, second), "", flops)
