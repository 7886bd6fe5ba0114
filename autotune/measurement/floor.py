"""How fast a layer could run at best: the larger of its bytes over the copy rate and its FLOPs over the unit's rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.problem import Conv2dProblem

ARITHMETIC_RATE: Mapping[str, tuple[str, float]] = {
    "fp32": ("fp32", 1.0),
    "fp32-3xtf32": ("tf32", 1 / 3),  # three products for one
    "tf32": ("tf32", 1.0),
    "fp16": ("fp16", 1.0),
    "fp16-acc16": ("fp16", 1.0),
    "bf16": ("fp16", 1.0),  # the same units at the same rate
}
"""Accuracy class to the calibrated rate that bounds it, and the share of that rate that is useful."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What a layer takes at least on a device, microseconds."""

    memory_us: float
    """its bytes at the copy rate"""
    arithmetic_us: float
    """its operations at the unit's rate; 0 where no rate is known"""

    @property
    def us(self) -> float:
        """The larger of both."""
        return max(self.memory_us, self.arithmetic_us)

    @property
    def term(self) -> str:
        """Which is the larger: memory or arithmetic."""
        return "memory" if self.memory_us >= self.arithmetic_us else "arithmetic"


def floor(problem: Conv2dProblem, accuracy: str, rates: Mapping[str, float], flops: int | None = None) -> Floor | None:
    """What no kernel of this class can beat on a device with these rates; None when not calibrated.

    `rates` as the store keeps them: `copy` in bytes per second (read plus written), arithmetic in FLOP per second.
    A unit without a calibrated rate (tensor cores before 8.0) does not bound. `flops` are those of the kernel's
    algorithm, where it is not the direct one.
    """
    if "copy" not in rates:
        return None
    unit, share = ARITHMETIC_RATE[accuracy]
    rate = max(rates.get(unit, 0.0) * share, rates.get("fp32", 0.0))
    return Floor(1e6 * problem.minimal_bytes / rates["copy"], 1e6 * (flops or problem.flops) / rate if rate else 0.0)


def floor_us(problem: Conv2dProblem, accuracy: str, rates: Mapping[str, float]) -> float | None:
    """Microseconds of the floor; None when not calibrated."""
    found = floor(problem, accuracy, rates)
    return None if found is None else found.us
