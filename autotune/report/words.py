"""Format numbers for a report."""

from __future__ import annotations

from autotune.escape import counted


def digits(value: float, count: int = 4) -> str:
    """Format a number with this many significant digits, without an exponent."""
    return f"{value:.{count}g}" if 1e-4 <= abs(value) < 10**count else f"{value:.0f}" if value else "0"


def microseconds(value: float | None) -> str:
    """Format a time in a suitable unit; None becomes an en dash."""
    if value is None:
        return "\N{EN DASH}"
    if value < 1_000:
        return f"{digits(value)} \N{MICRO SIGN}s"
    return f"{digits(value / 1e3)} ms" if value < 1_000_000 else f"{digits(value / 1e6)} s"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage; None becomes an en dash."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}" if value >= 0.001 or not value else f"{value:.2%}"


def times(value: float | None) -> str:
    """Format a ratio with a multiplication sign; None becomes an en dash."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.2f}\N{MULTIPLICATION SIGN}" if value < 100 else f"{value:.0f}\N{MULTIPLICATION SIGN}"


def rate(value: float, unit: str) -> str:
    """Format a rate per second with a suitable prefix, such as `3.35 TB/s`."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{digits(value / size, 3)} {prefix}{unit}/s"
    return f"{digits(value, 3)} {unit}/s"


def count(number: int, noun: str) -> str:
    """Format a count with its noun: `1 trial`, `2 trials`."""
    return counted(number, noun, form=",")
