"""Format numbers for a report."""

from __future__ import annotations

from autotune.escape import counted


def digits(value: float, count: int = 4) -> str:
    """A number with this many significant digits, without an exponent."""
    return f"{value:.{count}g}" if 1e-4 <= abs(value) < 10**count else f"{value:.0f}" if value else "0"


def microseconds(value: float | None) -> str:
    """A time in a suitable unit; an en dash for None."""
    if value is None:
        return "\N{EN DASH}"
    if value < 1_000:
        return f"{digits(value)} \N{MICRO SIGN}s"
    return f"{digits(value / 1e3)} ms" if value < 1_000_000 else f"{digits(value / 1e6)} s"


def percent(value: float | None) -> str:
    """A share in per cent; an en dash for None."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}" if value >= 0.001 or not value else f"{value:.2%}"


def times(value: float | None) -> str:
    """A ratio; an en dash for None."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.2f}\N{MULTIPLICATION SIGN}" if value < 100 else f"{value:.0f}\N{MULTIPLICATION SIGN}"


def rate(value: float, unit: str) -> str:
    """A rate per second with a suitable prefix."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{digits(value / size, 3)} {prefix}{unit}/s"
    return f"{digits(value, 3)} {unit}/s"


def count(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return counted(number, noun, form=",")
