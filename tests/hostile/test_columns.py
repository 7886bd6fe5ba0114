"""Every column of every table with values that are none: the check of rows names each, whatever else is right."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from autotune.store import Store
from autotune.store.dump import check
from tests.unit.store.test_dump import fill

from .rows import DEEP

NONE_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    # declared type: values, in SQL, that no column of it may have
    "INTEGER": ("'x'", "x'00'", "1.5"),
    "REAL": ("'x'", "x'00'", "9e999", "-9e999"),
    "TEXT": ("x'41'", "CAST(x'ff41' AS TEXT)"),
    "BLOB": ("'x'", "7"),
}
NO_ROW = "4711"
WIDE = {"layers.flops", "layers.minimal_bytes", "studies.seed"}
"""the integers that need no floor and no ceiling"""
NO_DATES: tuple[str, ...] = ("'yesterday'", "''", "'2026-02-29T00:00:00.000000Z'", "'2026-02-03T24:00:00.000000Z'")
NO_DATES += ("'2026-02-03T00:60:00.000000Z'", "'2026-13-03T00:00:00.000000Z'", "'2026-04-31T00:00:00.000000Z'")
NO_DATES += ("'2026-02-03T00:00:00'", "'2026-02-03 00:00:00.000000Z'", "'0000-02-03T00:00:00.000000Z'")
NO_DATES += ("'2026-02-03T00:00:60.000000Z'", "'9999-12-29T00:00:30.000000Z'", "'2026-02-03T0٣:00:00.000000Z'")
NO_DATES += ("'2026-02-03T00:00:00.00000xZ'", "'2026-00-03T00:00:00Z'", "'2026-02-00T00:00:00Z'")
NO_JSON: tuple[str, ...] = (
    "'['",
    "''",
    "'null'",
    "'7'",
    f"'{DEEP}'",
    "'[null]'",
    "'[1e999]'",
    "'[[1.5]]'",
    "'[99999999999999999999]'",
)
NO_JSON += ("""'{"a": null}'""", """'{"a": 1e999}'""", """'{"a": 99999999999999999999}'""", """'{"a": 1,}'""")
NO_DATES += ("'2026-02-03T00:00:00.000000Z'||char(0)||'x'",)
PLAIN_OBJECTS: tuple[str, ...] = ("'[1]'", """'{"a": {"b": 1}}'""", """'{"a": [1]}'""", """'{"a": -1e999}'""")
PLAIN_OBJECTS += ("""'{"a":[7],"a":1}'""", """'{"a":null,"a":1}'""", """'{"a":{},"a":1}'""", """'{"a":02}'""")
PLAIN_OBJECTS += ("""'{"a": 1}x'""", """'{"a": 1}'||char(0)||'x'""")
NUMBERS: tuple[str, ...] = ("""'["x"]'""", "'[true]'", "'{}'", "'[1.5,{}]'", "'[1.5, 2e308]'", "'[1.5]'||char(0)")
NUMBERS += ("'[1],[2]'", "'[[1],[2]]'", "'[1.5,02]'", "'1.5'", "'[1-2]'", "'[1.2.3]'")
WORDS: tuple[str, ...] = ("'[1]'", "'[true]'", "'{}'")
OF_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "trials.config": NO_JSON + PLAIN_OBJECTS,
    "runs.attributes": (*NO_JSON, *PLAIN_OBJECTS, """'{"a": 1}'"""),
    "measurements.samples_us": NO_JSON + NUMBERS,
    "measurements.sm_clocks_mhz": NO_JSON + NUMBERS,
    "measurements.launch": ("'x'", "''"),
    "measurements.median_us": ("0", "-1.5"),
    "profiles.stalls": (*NO_JSON, *PLAIN_OBJECTS, """'{"a": "b"}'""", """'{"a": true}'"""),
    "trials.accuracy": ("'x'",),
    "sources.accuracy": ("'x'",),
    "sources.entries": NO_JSON + WORDS,
    "sources.flags": NO_JSON + WORDS,
    "sources.launches": ("'['", "'null'", "''", "'[]'", """'{"stages": [7]}'"""),
    "dispatchers.record": ("'['", "'null'", "''", "'[]'", """'{"a": 1}'"""),
    "trials.outcome": ("'splendid'", "''", "'running'", "'compile'"),
    "trials.ended_at": ("NULL",),
    "trials.median_us": ("0", "-1.5"),
    "trials.ranked_us": ("0", "-1.5"),
    "trials.origin": ("'mine'",),
    "finals.origin": ("'mine'",),
    "noise_floors.origin": ("'mine'",),
    "rates.origin": ("'mine'",),
    "rates.per_s": ("0",),
    "verdicts.verdict": ("'draw'",),
    "retimes.label": ("'x'", "'failed'"),
    "retimes.before_us": ("0",),
    "retimes.after_us": ("NULL",),
    "dispatched_layers.role": ("'x'",),
    "subjects.kind": ("'x'", "'layers'", "'space'"),
    "subjects.layer_id": ("NULL",),
    "subjects.name": ("'x'",),
    "subjects.params": ("'{}'",),
    "layers.stride_h": ("0",),
    "layers.c": ("0",),
    "templates.header": ("'[[['", "'params = 7'"),
}
"""Values that one column may not have, beside those of its type."""


def values_that_are_none(raw: sqlite3.Connection) -> Iterator[tuple[str, str, str]]:
    """Table, column and value, as the file itself declares its columns."""
    tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    for table in tables:
        if table.startswith("sqlite_") or table in ("alembic_version", "schema_versions"):  # read before any row is
            continue
        refers = {column: parent for _, _, parent, column, *_ in raw.execute(f"PRAGMA foreign_key_list({table})")}
        for _, name, kind, needed, _, key in raw.execute(f"PRAGMA table_info({table})").fetchall():
            values = NONE_OF_TYPE["INTEGER" if kind == "BOOLEAN" else kind.partition("(")[0]]
            values += ("NULL",) if needed else ()
            if kind == "INTEGER" and f"{table}.{name}" not in WIDE:
                values += ("-1", "9007199254740993")
            values += ("2", "-1") if kind == "BOOLEAN" or name == "deterministic" else ()
            values += (NO_ROW,) if name in refers else ()
            values += NO_DATES if name.endswith("_at") else ()
            if key and name == "id":
                values = tuple(value for value in values if value not in ("'x'", "x'00'", "1.5", "NULL"))  # a rowid
            for value in dict.fromkeys(values + OF_COLUMNS.get(f"{table}.{name}", ())):
                yield table, name, value


def without_constraints(raw: sqlite3.Connection, table: str) -> None:
    """Make a table take anything: as a program may have made it."""
    names = [name for _, name, *_ in raw.execute(f"PRAGMA table_info({table})")]
    raw.execute(f"ALTER TABLE {table} RENAME TO whole_{table}")
    raw.execute(f"CREATE TABLE {table} ({', '.join(names)})")  # without types: a value stays what it is
    raw.execute(f"INSERT INTO {table} SELECT * FROM whole_{table}")
    raw.execute(f"DROP TABLE whole_{table}")


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Path, dict[tuple[str, int], str]]:
    """A database with a copy of a valid row for each such value; table and row to what is wrong there."""
    path = tmp_path / "hurt.db"
    with Store(path) as store:
        fill(store)
    wrong = {}
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA legacy_alter_table = ON")
        for (view,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall():
            raw.execute(f"DROP VIEW {view}")
        each = list(values_that_are_none(raw))
        for table in dict.fromkeys(table for table, *_ in each):
            without_constraints(raw, table)
        raw.execute("BEGIN")
        for table, changed, value in each:
            names = [name for _, name, *_ in raw.execute(f"PRAGMA table_info({table})")]
            columns = ", ".join(value if name == changed else name for name in names)
            row = raw.execute(f"INSERT INTO {table} SELECT {columns} FROM {table} WHERE rowid = 1").lastrowid
            wrong[table, row or 0] = f"{changed} = {value:.60}"
        raw.execute("COMMIT")
    return path, wrong


def test_every_value_that_is_none_is_named(planted: tuple[Path, dict[tuple[str, int], str]]) -> None:
    path, wrong = planted
    found = check(path)
    named = {(fault.table, fault.row) for fault in found if not refers_to_one(fault.reason)}
    referring = {(fault.table, fault.row) for fault in found}
    named |= {row for row in referring if wrong.get(row, "").endswith(f" = {NO_ROW}")}
    missed = [f"{table}.{what}" for (table, row), what in wrong.items() if (table, row) not in named]
    assert not missed
    others = [fault for fault in found if (fault.table, fault.row) not in wrong]
    assert not [str(fault) for fault in others if not refers_to_one(fault.reason)], "a row that is one"
    assert min(Counter(table for table, _ in wrong).values()) > 3


def refers_to_one(reason: str) -> bool:
    """Whether a row is left out for another's sake."""
    return reason.startswith("its measurement, ") or reason.endswith(" has no such row")
