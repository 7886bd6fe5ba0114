"""The maximum rates of a device: one measurement (`Rate`), and the best of each unit, for rooflines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured rate."""

    unit: str
    """copy, read or fill of memory, fp32 for FFMA, tf32 or fp16 (any 16-bit type) for tensor cores"""
    method: str
    """how it was measured, such as `mma.sync m16n8k16`"""
    per_s: float
    """bytes of copy (read plus written), read and fill, else floating-point operations"""


def best_rates(rates: Iterable[Rate]) -> dict[str, float]:
    """The largest rate of each unit, by any method."""
    best: dict[str, float] = {}
    for rate in rates:
        best[rate.unit] = max(rate.per_s, best.get(rate.unit, 0.0))
    return best
