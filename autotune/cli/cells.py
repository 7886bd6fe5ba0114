"""What stands in a cell: a value for programs, and its words for people and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from autotune.trial import Config

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Items:
    """Several values in one cell: a list in JSON."""

    values: tuple[Plain, ...]
    between: str = " "
    """what stands between them elsewhere"""


@dataclass(frozen=True, slots=True)
class Shares:
    """Names with a number each, the largest first: an object in JSON."""

    numbers: tuple[tuple[str, float], ...]


Cell = Plain | Config | datetime | Items | Shares
"""A config is an object of its parameters in JSON, a date ISO 8601 with its zone; no infinity is there: it is null."""

PLAIN = frozenset((str, int, float, bool, type(None)))
"""types of cells that are their own words"""

Json = Plain | list[Plain] | Mapping[str, Plain]


def words(cell: Cell) -> Plain:
    """A cell as CSV and a table have it."""
    match cell:
        case Config():
            return " ".join([f"{name}={value}" for name, value in cell.items])
        case datetime():
            return cell.isoformat()
        case Items():
            texts = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in cell.values)
            return cell.between.join(texts)
        case Shares():
            return " ".join(f"{name}={number:.2f}" for name, number in cell.numbers)
    return cell


def json_of(cell: Cell) -> Json:
    """A cell as JSON has it."""
    match cell:
        case Config():
            return cell.values()
        case datetime():
            return cell.isoformat()
        case Items():
            return [_finite(value) for value in cell.values]
        case Shares():
            return {name: _finite(number) for name, number in cell.numbers}
    return _finite(cell)


def _finite(value: Plain) -> Plain:
    return None if isinstance(value, float) and not math.isfinite(value) else value
