"""What stands in a cell: a value for programs, and its words for people and CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import orjson

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

PLAIN = (str, float, type(None), int)
"""types of cells that are their own words"""

Value = TypeVar("Value")
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


_LEAST, _MOST = 1e-4, 1e16
"""Between them, as of 0, Python and orjson write a float alike: without an exponent."""


def json_object(keys: Sequence[str], row: Sequence[Cell]) -> str:
    """A row as a JSON object in an array, indented by 1: what json.dumps writes."""
    cells = [cell if isinstance(cell, PLAIN) else _json_of(cell) for cell in row]
    record = dict(zip(keys, cells, strict=True))
    inner = [value for cell in cells if not isinstance(cell, PLAIN) for value in _values_of(cell)]
    if not [value for value in (*cells, *inner) if type(value) is float and value and not _LEAST <= value < _MOST]:
        with suppress(TypeError, ValueError):  # a number beyond 64 bits, half a character
            text = orjson.dumps(record, option=orjson.OPT_INDENT_2)
            if text.isascii() and b"\x7f" not in text:  # which json.dumps escapes
                return text.replace(b"\n    ", b"\n   ").decode()[:-1] + " }"  # no string has a line's end in it
    plain = {name: _finite(cell) for name, cell in record.items()}
    return json.dumps(plain, indent=1, allow_nan=False).replace("\n", "\n ")


def plain_csv_line(cells: Sequence[Plain]) -> str | None:
    """A row as csv.writer writes it; None where a cell is to be quoted, or may be."""
    odd = [
        cell for cell in cells if type(cell) is bool or (type(cell) is float and cell and not _LEAST <= cell < _MOST)
    ]
    if odd or len(cells) == 1:
        return None
    try:
        text = orjson.dumps(["" if cell is None else cell for cell in cells])
    except (TypeError, ValueError):
        return None
    if b"\\" in text or text.count(b",") != len(cells) - 1:
        return None
    return text[1:-1].replace(b'"', b"").decode() + "\n"


def _values_of(cell: list[Plain] | Mapping[str, Plain]) -> Iterable[Plain]:
    return cell if isinstance(cell, list) else cell.values()


def _json_of(cell: Cell) -> Json:
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
    return cell


def _finite(value: Value) -> Value | None:
    """The value, null for an infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
