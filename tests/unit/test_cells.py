"""Rows as JSON and CSV: what json and csv write themselves."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from autotune.cli.cells import Cell, Items, Shares, csv_line, json_object, words
from autotune.trial import Config

PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9)
FINITE: st.SearchStrategy[Any] = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
CELLS = (
    PLAIN
    | st.dictionaries(st.text(max_size=5), FINITE, max_size=3).map(lambda values: Config.of("direct", values))
    | st.lists(PLAIN, max_size=3).map(lambda values: Items(tuple(values)))
    | st.dictionaries(st.text(max_size=5), st.floats(), max_size=3).map(lambda them: Shares(tuple(them.items())))
    | st.datetimes().map(lambda date: date.replace(tzinfo=UTC))
)


KEYS = ("layer", "config", "date")
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6)
SOON = "lenet.conv1"
ODD_ZONE = timezone(timedelta(seconds=3601))
CONFIG = Config.of("direct", json.loads('{"small": 0.00001234, "lines": "a\\n    b\\n  }"}'))


def by_json(keys: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The array as json alone writes it."""

    def plain(cell: Cell) -> object:
        if isinstance(cell, Config):
            return cell.values()
        if isinstance(cell, datetime):
            return cell.isoformat()
        if isinstance(cell, Items):
            return [plain(value) for value in cell.values]
        if isinstance(cell, Shares):
            return {name: plain(number) for name, number in cell.numbers}
        return None if isinstance(cell, float) and cell - cell != 0 else cell

    return json.dumps([dict(zip(keys, map(plain, row), strict=True)) for row in rows], indent=1)


def by_csv(rows: Sequence[Sequence[Cell]]) -> str:
    """The lines as csv alone writes them, but for their ends."""
    lines = []
    for row in rows:
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerow([words(cell) for cell in row])
        lines.append(out.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


@given(ROWS)
@example([("small", 1e-05, SOON), ("large", 1e16, SOON), (9999999999999998.0, 0.0001, -0.0), (-3.5, None, True)])
@example([("delete", "\x7f", SOON), ("umlaut", "\xe4", SOON), ("beyond", 2**70, SOON), ("half", "\ud800", SOON)])
@example([("two  spaces", Items(("three   spaces", 1)), SOON), (" ", "  ", ""), (Items(("",)), CONFIG, SOON)])
@example([(CONFIG, True, None), (Items((1e-7,)), Shares((("small", 1e-7),)), SOON), (Items(()), Shares(()), SOON)])
@example([(datetime(900, 2, 3, tzinfo=UTC), datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC), SOON)])
@example([(datetime(2026, 2, 3, tzinfo=ODD_ZONE), 1, SOON)])
def test_objects_are_written_as_json_does(rows: list[tuple[Cell, ...]]) -> None:
    found = ",\n ".join(json_object(KEYS, row) for row in rows)
    assert f"[\n {found}\n]" == by_json(KEYS, rows)


@given(ROWS)
@example([("null", None, ""), (None, True, False), (None, None, None)])
@example([("small", 1e-05, SOON), ("large", 1e16, SOON), (9999999999999998.0, 0.0001, -0.0), (-3.5, 7, SOON)])
@example([("a,b", 1, SOON), ('say "x"', 2, SOON), ("two\nlines", 3, SOON), ("],[", 4, SOON), ("\r\n", 5, SOON)])
@example([("back\\slash", 1, SOON), ("\xe4", "\x7f", "'"), ("beyond", 2**70, SOON), ("half", "\ud800", SOON)])
@example([(datetime(900, 2, 3, tzinfo=UTC), datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC), SOON)])
@example([(datetime(2026, 2, 3, tzinfo=ODD_ZONE), 1, SOON)])
def test_lines_are_written_as_csv_does(rows: list[tuple[Cell, ...]]) -> None:
    assert "".join(map(csv_line, rows)) == by_csv(rows)


@given(st.lists(st.tuples(PLAIN), min_size=1, max_size=3))
def test_lines_of_one_cell_are_written_as_csv_does(rows: list[tuple[Cell, ...]]) -> None:
    assert "".join(map(csv_line, rows)) == by_csv(rows)
