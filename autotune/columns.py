"""The columns of an answer: one list serves the terminal, JSON, CSV, frames and reports."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import itemgetter
from typing import Any, Generic, TextIO, TypeVar

from autotune.trial import Config

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
"""A value for JSON: a config as an object of its parameters, a date as ISO 8601 with its zone, an infinity as null."""
Json = Plain | list[Plain] | dict[str, Plain]
Row = TypeVar("Row")
_Any = TypeVar("_Any")


@dataclass(
    frozen=True
)  # no slots: Column[Row](...) sets an attribute of `typing`, which fails with slots in Python 3.11
class Column(Generic[Row]):
    """A column of an answer. Its key names the unit: `_us`, `_bytes`, `_fraction`."""

    key: str
    """its name in JSON, CSV and `--wide`"""
    value: Callable[[Row], Cell]
    terminal: bool = True
    """whether a table shows it without `--wide`"""
    digits: int = 4
    """significant digits of a fraction in a table"""
    below: bool = False
    """whether it has a line of its own under the row on a terminal"""
    heading: str = ""
    """heading in a table; empty: the key"""
    text: Callable[[Row], Cell] | None = None
    """the value for tables, if it differs"""


Cells = Mapping[str, Any]
"""A row of an SQL query by the keys of its columns, with the cells that are computed from it."""


def key_columns(*keys: str, hidden: bool = False, below: bool = False) -> tuple[Column[Cells], ...]:
    """Columns that read these keys of a row. A table leaves `hidden` ones out."""
    return tuple(Column(key, itemgetter(key), terminal=not hidden, below=below) for key in keys)


def attributes(
    *keys: str,
    of: Callable[[Row], object] = lambda row: row,
    hidden: Collection[str] = (),
    below: Collection[str] = (),
    digits: int = 4,
) -> tuple[Column[Row], ...]:
    """Columns that read the attributes of a row, or of a part of it, by their names; empty where `of` gives None.

    A table leaves `hidden` columns out.
    """

    def column(key: str) -> Column[Row]:
        def value(row: Row) -> Cell:
            cell: Cell = None if (part := of(row)) is None else getattr(part, key)
            return cell

        return Column(key, value, terminal=key not in hidden, below=key in below, digits=digits)

    return tuple(map(column, keys))


def field_columns(
    record: type[Row], *, hidden: Collection[str] = (), below: Collection[str] = (), digits: int = 4
) -> tuple[Column[Row], ...]:
    """A column for each field of a dataclass."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]  # Row is not bound to dataclasses
    return attributes(*names, hidden=hidden, below=below, digits=digits)


def words(cell: Cell) -> Plain:
    """A cell in CSV."""
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


def write_json(rows: Iterable[Row], columns: Sequence[Column[Row]], out: TextIO) -> None:
    """Write rows as one array of objects, each on its own line as it comes."""
    encode = json.JSONEncoder(allow_nan=False, default=_json).encode
    before = "["
    for row in rows:
        cells = {column.key: column.value(row) for column in columns}
        try:
            text = encode(cells)
        except ValueError:  # an infinity or a NaN
            text = encode({key: _finite(cell) for key, cell in cells.items()})
        out.write(f"{before}\n {text}")
        before = ","
    out.write("[]\n" if before == "[" else "\n]\n")


def write_csv(rows: Iterable[Row], columns: Sequence[Column[Row]], out: TextIO) -> None:
    """Write a line of keys and a line for each row."""

    def write(cells: Sequence[Plain]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow(cells)  # with this end csv also quotes a lone \r
        out.write(f"{line.getvalue()[:-2]}\n")

    write([column.key for column in columns])
    for row in rows:
        write([words(column.value(row)) for column in columns])


def _json(cell: object) -> Json:
    """Convert a cell that `json` cannot encode."""
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
