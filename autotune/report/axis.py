"""Positions of numbers on an axis, and the round numbers for its labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values."""

    low: float
    high: float
    logarithmic: bool = True

    def share(self, value: float) -> float:
        """The position of a value: 0 at the low end, 1 at the high end; values beyond an end are at that end."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> tuple[float, ...]:
        """Round values between the ends, few enough to be read."""
        if self.logarithmic and self.high / self.low > _MOST_TICKS:
            return _round_ones(self.low, self.high)
        step = _step((self.high - self.low) / _MOST_TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(float(f"{number * step:.10g}") for number in range(first, last + 1))


def logarithmic(values: Iterable[float]) -> Axis:
    """An axis around positive values, with a margin at its ends."""
    known = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(known), max(known)
    room = max((high / low) ** 0.05, 1.03)
    return Axis(low / room, high * room)


def linear(high: float, low: float = 0.0) -> Axis:
    """An axis from a value, by default 0, to another."""
    return Axis(low, high if high > low else low + 1.0, logarithmic=False)


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, not less than a value."""
    ten = 10.0 ** math.floor(math.log10(least))
    return float(f"{next(times for times in (1, 2, 5, 10) if times * ten >= least * 0.999999) * ten:.10g}")


def _round_ones(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten, with 2 and 5 times each if there are few enough."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for times in ((1, 2, 5), (1, 3), (1,)):
        found = tuple(
            value
            for power in range(first, last + 1)
            for of_ten in times
            if low <= (value := float(f"{of_ten}e{power}")) <= high
        )
        if len(found) <= _MOST_TICKS:
            return found
    every = -(-len(found) // _MOST_TICKS)
    return found[::every]
