"""What `load` and `merge` leave to the check of all rows: it refuses whatever a CHECK of the schema would."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.store import Store
from autotune.store.dump import check
from autotune.store.sqlite.schema import SNAPSHOT
from tests.unit.store.test_dump import fill

SEVERAL = {
    # CHECKs about several columns, or NULL, and what breaks each
    "(outcome = 'running') = (ended_at IS NULL)": "ended_at = NULL",
    "median_us IS NULL OR outcome = 'correct'": "outcome = 'compile', ranked_us = NULL, median_us = 1.0",
    "ranked_us IS NULL OR outcome = 'correct'": "outcome = 'compile', ranked_us = 1.0, median_us = NULL",
    "(kind = 'layer') = (layer_id IS NOT NULL)": "layer_id = NULL",
    "(kind = 'space') = (name IS NOT NULL)": "name = 'a space'",
    "(kind = 'space') = (params IS NOT NULL)": "params = '{}'",
    "(label = 'failed') = (after_us IS NULL)": "after_us = NULL",
}


def checks() -> Iterator[tuple[str, str]]:
    """Each table of the schema that has a CHECK, with what stands in its parentheses."""
    for made in SNAPSHOT.read_text().split(";\n\n"):
        table = re.match(r'CREATE TABLE "?(\w+)', made)
        for begun in re.finditer(r"CHECK \(", made) if table else ():
            depth, at = 1, begun.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(made[at], 0)
                at += 1
            yield table[1] if table else "", " ".join(made[begun.end() : at - 1].split())


CHECKS = tuple(checks())


@pytest.fixture(scope="module")
def filled_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database with a row in every table."""
    path = tmp_path_factory.mktemp("filled") / "filled.db"
    with Store(path) as store:
        fill(store)
    return path.read_bytes()


def test_the_schema_has_checks() -> None:
    assert len(CHECKS) > 20
    assert set(SEVERAL) <= {said for _, said in CHECKS}


@pytest.mark.parametrize(("table", "said"), CHECKS)
def test_a_row_that_breaks_it_cannot_be_understood(tmp_path: Path, filled_bytes: bytes, table: str, said: str) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(filled_bytes)
    column, _, words = said.partition(" IN ")
    changed = SEVERAL.get(said) or f"{column} = {7 if words == '(0, 1)' else repr('none')}"
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        row = raw.execute(
            f"UPDATE {table} SET {changed} WHERE rowid = (SELECT min(rowid) FROM {table}) RETURNING rowid"
        )
        (number,) = row.fetchone()
    with closing(sqlite3.connect(path)) as raw:
        assert (f"CHECK constraint failed in {table}",) in raw.execute("PRAGMA quick_check").fetchall()
    assert (table, number) in {(fault.table, fault.row) for fault in check(path)}
