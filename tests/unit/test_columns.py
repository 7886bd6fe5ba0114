"""Rows as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, datetime

from autotune.columns import Cell, Items, Shares, key_columns, write_csv, write_json
from autotune.trial import Config

CONFIG = Config.of("direct", json.loads('{"small": 0.00001234, "lines": "a\\n    b\\n  }"}'))
PAIRS: list[tuple[Cell, Cell]] = [
    ("small", 1e-05),
    ('say "x", twice', math.inf),
    ("two\nlines", 9999999999999998.0),
    (CONFIG, datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC)),
    (Items((1e-7, "a", math.nan)), Shares((("long", math.inf), ("mio", 0.25)))),
    (None, True),
]
ROWS = [{"one": one, "two": two} for one, two in PAIRS]
COLUMNS = key_columns("one", "two")


def test_json_has_values() -> None:
    out = io.StringIO()
    write_json(iter(ROWS), COLUMNS, out)
    assert json.loads(out.getvalue()) == [
        {"one": "small", "two": 1e-05},
        {"one": 'say "x", twice', "two": None},
        {"one": "two\nlines", "two": 9999999999999998.0},
        {"one": {"lines": "a\n    b\n  }", "small": 0.00001234}, "two": "2026-02-03T04:05:06.000007+00:00"},
        {"one": [1e-7, "a", None], "two": {"long": None, "mio": 0.25}},
        {"one": None, "two": True},
    ]
    empty = io.StringIO()
    write_json(iter(()), COLUMNS, empty)
    assert empty.getvalue() == "[]\n"


def test_csv_has_words() -> None:
    out = io.StringIO()
    write_csv(iter(ROWS), COLUMNS, out)
    assert list(csv.reader(io.StringIO(out.getvalue()))) == [
        ["one", "two"],
        ["small", "1e-05"],
        ['say "x", twice', "inf"],
        ["two\nlines", "9999999999999998.0"],
        ["small=1.234e-05 lines=a\n    b\n  }", "2026-02-03T04:05:06.000007+00:00"],
        ["1e-07 a nan", "long=inf mio=0.25"],
        ["", "True"],
    ]
