"""The columns of a query's result. The terminal, JSON, CSV and reports all use the same list."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from autotune.trial import Config

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Items:
    """Several values in one cell; a list in JSON."""

    values: tuple[Plain, ...]
    between: str = " "
    """the separator in text"""


@dataclass(frozen=True, slots=True)
class Shares:
    """Names, each with a number, largest first; an object in JSON."""

    numbers: tuple[tuple[str, float], ...]


Cell = Plain | Config | datetime | Items | Shares
"""A cell. In JSON, a config becomes an object of its parameters, a date ISO 8601 with a time zone, and infinity null.
"""
Json = Plain | list[Plain] | dict[str, Plain]
_Any = TypeVar("_Any")

Cells = Mapping[str, Any]
"""A row of an answer: its cells by column key."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a query's result. Its key ends with the unit: `_us`, `_bytes`, `_fraction`."""

    key: str
    """name of the column in JSON, CSV and `--wide`, and of its cells in a row"""
    terminal: bool = True
    """whether a table shows the column without `--wide`"""
    digits: int = 4
    """significant digits of a fraction in a table"""
    below: bool = False
    """whether a terminal shows the value on its own line below the row"""
    heading: str = ""
    """heading in a table; empty: the key"""
    text: Callable[[Cells], Cell] | None = None
    """the value in tables, if it differs from the cell"""


def key_columns(*keys: str, hidden: bool = False, below: bool = False, digits: int = 4) -> tuple[Column, ...]:
    """Return columns with these keys. Tables omit the `hidden` ones."""
    return tuple(Column(key, not hidden, digits, below) for key in keys)


def field_cells(*records: DataclassInstance) -> dict[str, Any]:
    """Return the fields of dataclasses as cells. If records share a field's name, the last one counts."""
    return {field.name: getattr(record, field.name) for record in records for field in fields(record)}


def words(cell: Cell) -> Plain:
    """Convert a cell to its value in CSV."""
    match cell:
        case Config():
            return " ".join([f"{name}={value}" for name, value in cell.pairs])
        case datetime():
            return cell.isoformat()
        case Items():
            texts = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in cell.values)
            return cell.between.join(texts)
        case Shares():
            return " ".join(f"{name}={number:.2f}" for name, number in cell.numbers)
    return cell


def write_json(rows: Iterable[Cells], columns: Sequence[Column], out: TextIO) -> None:
    """Write rows as a JSON array with one object per line, as soon as each row is available."""
    encode = json.JSONEncoder(allow_nan=False, default=_json).encode
    before = "["
    for row in rows:
        cells = {column.key: row[column.key] for column in columns}
        try:
            text = encode(cells)
        except ValueError:  # an infinity or a NaN
            text = encode({key: _finite(cell) for key, cell in cells.items()})
        out.write(f"{before}\n {text}")
        before = ","
    out.write("[]\n" if before == "[" else "\n]\n")


def write_csv(rows: Iterable[Cells], columns: Sequence[Column], out: TextIO) -> None:
    """Write a header line with the keys, followed by a line for each row."""

    def write(cells: Sequence[Plain]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow(cells)  # with this line end csv also quotes a lone \r
        out.write(f"{line.getvalue()[:-2]}\n")

    write([column.key for column in columns])
    for row in rows:
        write([words(row[column.key]) for column in columns])


def _json(cell: object) -> Json:
    """Convert a cell that `json` can't encode."""
    match cell:
        case Config():
            return dict(cell.pairs)
        case datetime():
            return cell.isoformat()
        case Items():
            return [_finite(value) for value in cell.values]
        case Shares():
            return {name: _finite(number) for name, number in cell.numbers}
    raise TypeError(f"{type(cell).__name__} is not a cell")


def _finite(cell: _Any) -> _Any | None:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
