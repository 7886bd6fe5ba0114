"""Pictures on a terminal, of characters: bars, and how something fell step by step."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.axis import Axis
from autotune.report.words import microseconds

_EIGHTHS = " ▏▎▍▌▋▊▉"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """A bar of a share of so many characters, to an eighth of one."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def falling(times_us: Sequence[float], width: int, height: int = 9) -> list[str]:
    """Times one after another as a line of steps on a logarithmic axis, its ends and middle named to the left."""
    axis = _axis(times_us)
    rows = [height - 1 - round(axis.share(us) * (height - 1)) for us in times_us]
    of_column = [rows[column * len(rows) // width] for column in range(width)]
    grid = [[" "] * width for _ in range(height)]
    before = of_column[0]
    for column, row in enumerate(of_column):
        if row == before:
            grid[row][column] = "─"
            continue
        upper, lower = sorted((before, row))
        for between in range(upper + 1, lower):
            grid[between][column] = "│"
        grid[before][column] = "┐" if row > before else "┘"
        grid[row][column] = "└" if row > before else "┌"
        before = row
    named = {0: axis.high, height // 2: (axis.low * axis.high) ** 0.5, height - 1: axis.low}
    labels = [microseconds(named[row]) if row in named else "" for row in range(height)]
    wide = max(map(len, labels))
    return [f"{label:>{wide}} │{''.join(cells)}".rstrip() for label, cells in zip(labels, grid, strict=True)]


def sparkline(times_us: Sequence[float], width: int) -> str:
    """Times one after another in a line of at most so many characters, the highest the slowest."""
    if not times_us:
        return ""
    axis, count = _axis(times_us), min(width, len(times_us))
    shown = [times_us[(column + 1) * len(times_us) // count - 1] for column in range(count)]
    return "".join(_HEIGHTS[round(axis.share(us) * (len(_HEIGHTS) - 1))] for us in shown)


def _axis(times_us: Sequence[float]) -> Axis:
    """From the fastest to the slowest."""
    low, high = min(times_us), max(times_us)
    return Axis(low, high if high > low else 1.01 * low)
