"""Layer, group and RMS norms of a network, in the terms of the operation `norm`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .convolution import DTYPES, Shape


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm whose statistics are those of its input."""

    label: str
    """a name for people, such as blocks.0.norm1"""
    flops: int | None
    """as the operation counts them; None if a size is unknown"""
    values: Mapping[str, int | str] = field(default_factory=dict)
    """sizes and words of the problem, without the activation after it; empty if no kernel computes it"""
    why_not: str = ""
    """why `values` is empty"""


def norm(
    label: str,
    x: Shape,
    dtype: str,
    *,
    channels: int,
    groups: int | None = None,
    eps: float | None,
    rms: bool = False,
    terms: str,
    why_not: str = "",
) -> Norm:
    """A norm of x as a problem, or why no kernel computes it.

    Without `groups`, each row of `channels` elements has its statistics; with them, each group of an image [N, C, ...].
    """
    known = [size for size in x if size is not None]
    if len(known) < len(x) or not known:
        return Norm(label, None, why_not="its sizes are not known")
    flops = 8 * math.prod(known)
    if not why_not and dtype not in DTYPES:
        why_not = f"computes in {dtype}"
    if why_not or eps is None:
        return Norm(label, flops, why_not=why_not or "its eps depends on the version of PyTorch; give it one")
    eps_e12 = round(eps * 1e12)
    if abs(eps_e12 - eps * 1e12) > 1e-6 * eps * 1e12:
        return Norm(label, flops, why_not=f"its eps {eps:g} is not a multiple of 1e-12")
    n = math.prod(known) // channels if groups is None else known[0]
    sizes = {"n": n, "pixels": math.prod(known) // channels // n, "c": channels, "groups": groups or 1}
    kind = "rms" if rms else "standard"
    return Norm(label, flops, {**sizes, "eps_e12": eps_e12, "dtype": dtype, "kind": kind, "epilogue": terms})
