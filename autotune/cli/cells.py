"""What stands in a cell: a value for programs, and its words for people and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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

_IN_CSV = frozenset((str, int, float))
_IN_JSON = frozenset((str, int, float, bool, type(None)))
"""types of cells that are written as they are"""

Value = TypeVar("Value")
Json = Plain | list[Plain] | Mapping[str, Plain] | datetime


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


def json_objects(keys: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Rows as JSON objects, with what is between them in an array that is indented by 1: what json.dumps writes."""
    cells = [[cell if type(cell) in _IN_JSON else _json_of(cell) for cell in row] for row in rows]
    return _json_objects([dict(zip(keys, row, strict=True)) for row in cells])


def _json_objects(records: Sequence[Mapping[str, Cell | Json]]) -> str:
    text = _soon_json(records)
    if text is not None:
        return text
    if len(records) > 1:
        half = len(records) // 2
        return f"{_json_objects(records[:half])},\n {_json_objects(records[half:])}"
    plain = {name: _finite(cell) for name, cell in records[0].items()}
    return json.dumps(plain, indent=1, allow_nan=False, default=datetime.isoformat).replace("\n", "\n ")


def _soon_json(records: Sequence[Mapping[str, Cell | Json]]) -> str | None:
    """The same by orjson; None where it may write a value otherwise."""
    cells = [cell for record in records for cell in record.values()]
    nested = [cell for cell in cells if cell and (type(cell) is list or type(cell) is dict)]
    inner = [value for cell in nested for value in _values_of(cell)]
    if _odd(cells) or _odd(inner):
        return None
    try:
        text = orjson.dumps(records, option=orjson.OPT_INDENT_2)
    except (TypeError, ValueError):  # a number beyond 64 bits, half a character
        return None
    if not text.isascii() or b"\x7f" in text:  # which json.dumps escapes
        return None
    indented_by = 2 * len(records) + 2 * len(cells) + 2 * len(nested) + 3 * len(inner)
    if text.count(b"  ") != indented_by:  # some stand in a string
        return None
    return text.replace(b"  ", b" ")[3:-2].decode()


def csv_lines(rows: Sequence[Sequence[Cell]]) -> str:
    """Rows as csv.writer writes them, but with \\n behind each."""
    ready = [["" if cell is None else cell if type(cell) in _IN_CSV else _csv_of(cell) for cell in row] for row in rows]
    return _csv_lines(ready)


def _csv_lines(rows: Sequence[Sequence[Cell]]) -> str:
    text = _soon_csv(rows)
    if text is not None:
        return text
    if len(rows) > 1:
        half = len(rows) // 2
        return _csv_lines(rows[:half]) + _csv_lines(rows[half:])
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(map(words, rows[0]))  # RFC 4180's: only then it quotes an \r
    return out.getvalue()[:-2] + "\n"


def _soon_csv(rows: Sequence[Sequence[Cell]]) -> str | None:
    """The same by orjson; None where a cell is to be quoted, or may be, or may be written otherwise."""
    width = len(rows[0])
    if width == 1 or _odd([cell for row in rows for cell in row]):
        return None
    try:
        text = orjson.dumps(rows)
    except (TypeError, ValueError):
        return None
    if b"\\" in text or text.count(b",") != width * len(rows) - 1:
        return None
    return text[2:-2].replace(b"],[", b"\n").replace(b'"', b"").decode() + "\n"


def _odd(cells: Iterable[object]) -> list[float]:
    """Those that are a float which Python and orjson write differently."""
    return [cell for cell in cells if type(cell) is float and cell and not _LEAST <= cell < _MOST]


def _csv_of(cell: Cell) -> Cell:
    """A cell as `words`; a flag is none to CSV, and a date in UTC is left to orjson, which is quicker."""
    if type(cell) is datetime and cell.tzinfo is UTC:
        return cell
    return str(cell) if cell is True or cell is False else words(cell)


def _values_of(cell: list[Plain] | dict[str, Plain]) -> Iterable[Plain]:
    return cell if isinstance(cell, list) else cell.values()


def _json_of(cell: Cell) -> Json:
    """A cell as JSON has it; a date in UTC is left to orjson."""
    match cell:
        case Config():
            return cell.values()
        case datetime():
            return cell if cell.tzinfo is UTC else cell.isoformat()
        case Items():
            return [_finite(value) for value in cell.values]
        case Shares():
            return {name: _finite(number) for name, number in cell.numbers}
    return cell


def _finite(value: Value) -> Value | None:
    """The value, null for an infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
