"""What stands in a cell: a value for programs, and its words for people and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

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

Value = TypeVar("Value")
Json = Plain | list[Plain] | dict[str, Plain]


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


_KEPT = 1024  # lists of keys: those of rows, and of families' parameters
_encoded = json.JSONEncoder(allow_nan=False, separators=("\n", ": ")).encode


def json_object(keys: Sequence[str], row: Sequence[Cell]) -> str:
    """A row as an object of a JSON array, indented by 1, as json.dumps writes it in five times as long."""
    return _object(
        tuple(keys), [cell if cell is None or isinstance(cell, str | int) else _json_of(cell) for cell in row], " "
    )


def _object(keys: tuple[str, ...], values: list[Json], indent: str) -> str:
    lines = [f"{indent} {key}: {value}" for key, value in zip(_names(keys), _nested(values, indent), strict=True)]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _nested(values: list[Json], indent: str) -> list[str]:
    texts = _texts([None if isinstance(value, dict | list) else value for value in values])
    for place, value in enumerate(values):
        if isinstance(value, dict):
            texts[place] = _object(tuple(value), list(value.values()), f"{indent} ")
        elif isinstance(value, list):
            items = ",\n".join(f"{indent}  {text}" for text in _texts(value))
            texts[place] = f"[\n{items}\n{indent} ]" if value else "[]"
    return texts


@lru_cache(_KEPT)
def _names(keys: tuple[str, ...]) -> list[str]:
    return _texts(keys)


def _texts(values: Sequence[Plain]) -> list[str]:
    """Each value as JSON, in one call of the encoder: no text of JSON has a newline in it."""
    return _encoded(values)[1:-1].split("\n") if values else []


def csv_line(row: Sequence[Cell]) -> str:
    """A row as csv.writer writes it, with \\n behind it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(map(words, row))  # RFC 4180's: only then it quotes an \r
    return out.getvalue()[:-2] + "\n"


def _json_of(cell: Cell) -> Json:
    """A cell as JSON has it."""
    match cell:
        case float():
            return _finite(cell)
        case Config():
            return dict(cell.items)
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
