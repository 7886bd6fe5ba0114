"""docs/database.md: its queries return rows, and its diagram is the schema."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from autotune.devices.device import Rate
from autotune.store import Finals, Store, Verdict, merge

from .builders import (
    CONV1,
    CONV2,
    DRIVER_580,
    DRIVER_590,
    H200,
    HOST,
    PROFILE,
    add_dispatcher,
    add_end_to_end,
    config_of,
    correct,
    dispatched,
    failed,
    open_scope,
    run_trial,
    source_of,
    ticking,
    timing_of,
)

DOCS = Path(__file__).parents[3] / "docs"
DOC = (DOCS / "database.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", DOC, re.DOTALL)
DIAGRAM = re.search(r"```mermaid\nerDiagram\n(.*?)```", DOC, re.DOTALL)


@pytest.fixture(scope="module")
def answers(blank: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database that has rows for every query."""
    path = tmp_path_factory.mktemp("answers") / "autotune.db"
    path.write_bytes(blank)
    with Store(path, clock=ticking()) as store:
        fill(store)
    return path.read_bytes()


@pytest.fixture
def filled(path: Path, answers: bytes) -> Iterator[Store]:
    """An open store that has rows for every query."""
    path.write_bytes(answers)
    with Store(path) as store:
        yield store


def fill(store: Store) -> None:
    """Store rows for every query."""
    for layer in (CONV1, CONV2):
        for device in (H200, HOST):
            scope = open_scope(store, layer=layer, device=device)
            for number in range(4):
                family = "direct" if number % 2 else "implicit_gemm"
                source = source_of(config_of(number, family), layer)
                trial = correct(number, 30.0 - number, source=source, family=family)
                run_trial(store, scope, trial, source)
            store.trials.add(scope, failed(4))
            store.trials.begin(scope, 5, config_of(5))
            store.finals.add(scope, Finals(winner=2, timings=((2, timing_of(27.5)), (3, timing_of(27.6)))))
    run_trial(store, open_scope(store, environment=DRIVER_590), correct(0, 30.0))
    add_end_to_end(store, 0, 2500.0)
    add_dispatcher(store, [dispatched(CONV1), dispatched(CONV2, None)])
    store.profiles.add(store.best.list("lenet", kind="cuda")[0].row, H200, DRIVER_590, [PROFILE])
    store.retimes.add(store.trials.list("lenet.conv2", kind="cuda")[0], H200, DRIVER_590, "confirmed", timing_of(30.0))
    store.noise_floors.add(H200, DRIVER_580, "cold", 0.05, 0.002)
    scope = open_scope(store, study="copy")
    store.quarantine.add(scope, source_of(config_of(1)).hash, "crash", "two runs ended while it was running")
    finals = Finals(2, ((2, timing_of(27.5)),), (Verdict("default", "win", 27.5, 30.0, against_number=0),))
    store.finals.add(open_scope(store), finals)
    elsewhere = store.path.with_name("other.db")
    with Store(elsewhere) as other:
        run_trial(other, open_scope(other, study="theirs"), correct(0, 25.0))
    merge(elsewhere, store.path)
    store.rates.add(H200, DRIVER_580, [Rate("copy", "16 bytes a thread", 4.2e12), Rate("fp32", "FFMA", 6.5e13)])


def test_there_are_twenty_queries_and_more() -> None:
    assert len(QUERIES) >= 20


@pytest.mark.parametrize("sql", QUERIES, ids=lambda sql: " ".join(sql.split())[:50])
def test_each_query_answers(filled: Store, sql: str) -> None:
    result = filled.query(sql)
    assert result.rows
    assert all(any(cell is not None for cell in column) for column in zip(*result.rows, strict=True))
    raw = sqlite3.connect(filled.path)
    assert raw.execute(sql).fetchall() == list(result.rows)
    raw.close()


def test_the_diagram_is_the_schema(store: Store) -> None:
    assert DIAGRAM is not None
    raw = sqlite3.connect(store.path)
    tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    links = set(re.findall(r"^  (\w+) \|\|--o\{ (\w+) :", DIAGRAM[1], re.MULTILINE))
    columns_of = dict(re.findall(r"^  (\w+) \{\n(.*?)^  \}", DIAGRAM[1], re.DOTALL | re.MULTILINE))
    alone = set(re.findall(r"^  (\w+)$", DIAGRAM[1], re.MULTILINE))
    drawn = alone.union(*links) | columns_of.keys()
    assert drawn == {name for name in tables if not name.startswith("sqlite_")}
    for table, body in columns_of.items():
        columns = dict(raw.execute("SELECT name, lower(type) FROM pragma_table_info(?)", (table,)))
        for kind, name in re.findall(r"^ +(\w+) (\w+)", body, re.MULTILINE):
            assert columns.get(name) == kind, f"{table}.{name}"
    assert links == {
        (target, table)
        for table in drawn
        for (target,) in raw.execute('SELECT "table" FROM pragma_foreign_key_list(?)', (table,))
    }
    raw.close()


def test_every_outcome_is_explained(filled: Store) -> None:
    from autotune.trial import Outcome

    table = DOC[DOC.index("| outcome |") :].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(Outcome) - {Outcome.RUNNING}


def test_every_command_for_a_question_exists() -> None:
    from autotune.cli import cli

    named = set(re.findall(r"^\| .* \| `autotune (\w+)", DOC, re.MULTILINE))
    assert {"why", "diff", "stale", "retime", "history", "best"} <= named <= set(cli.list_commands(click.Context(cli)))
