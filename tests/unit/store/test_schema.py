"""The schema: a file has exactly the declared tables, and sqlite3 alone can read it."""

from __future__ import annotations

import ast
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

import autotune
from autotune.store import Store
from autotune.store.schema.migrations import newest_schema
from autotune.store.schema.tables import metadata
from autotune.store.schema.views import VIEWS

from .builders import config_of, correct, open_scope, run_trial, source_of, ticking, written


def test_a_file_has_the_tables_that_are_declared(path: Path, store: Store) -> None:
    engine = create_engine(f"sqlite:///{path}")
    found = inspect(engine)
    assert set(found.get_table_names()) == metadata.tables.keys()
    assert set(found.get_view_names()) == VIEWS.keys()
    for name, table in metadata.tables.items():
        columns = {column["name"]: column["nullable"] for column in found.get_columns(name)}
        assert columns == {column.name: bool(column.nullable) for column in table.columns}, name
        links = {(key["constrained_columns"][0], key["referred_table"]) for key in found.get_foreign_keys(name)}
        assert links == {(key.parent.name, key.column.table.name) for key in table.foreign_keys}, name
    engine.dispose()
    assert all(
        strict
        for (strict,) in store.query(
            "SELECT sql LIKE '%STRICT' FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).rows
    )


def test_the_text_of_a_records_field_is_the_comment_of_its_column(path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path)) as raw:
        (devices,) = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'devices'").fetchone()
    assert "sm_count INTEGER NOT NULL,  -- multiprocessors\n" in devices


def test_every_version_is_dated(path: Path) -> None:
    written(path)
    with Store(path, clock=ticking()) as store:
        rows = store.query("SELECT version, autotune_version, applied_at FROM schema_versions").rows
    assert rows == ((newest_schema(), autotune.__version__, "2026-11-20T00:00:01.000000Z"),)


def test_the_database_refuses_what_the_code_never_writes(path: Path, store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA foreign_keys = ON")
    for statement in (
        "UPDATE trials SET outcome = 'fine'",
        "UPDATE trials SET outcome = 'running'",
        "UPDATE trials SET outcome = 'timeout'",
        "UPDATE trials SET study_id = 99",
        "UPDATE trials SET number = 'one'",
        "UPDATE trials SET config = '[1]'",
        "UPDATE trials SET config = '{'",
        "UPDATE trials SET accuracy = 'fp31'",
        "UPDATE trials SET median_us = 9e999",
        "UPDATE trials SET origin = 'stolen'",
        "UPDATE trials SET outcome = 'wrong_result', median_us = NULL",
        "UPDATE tuning_targets SET kind = 'layers'",
        "UPDATE measurements SET launch = 'pigeon'",
        "UPDATE measurements SET samples_us = '{}'",
        "UPDATE measurements SET median_us = -1.0",
        "INSERT INTO retimes VALUES (1, 1, 1, 2.0, NULL, 'confirmed', '', '')",
        "INSERT INTO tuning_targets VALUES (9, 'layer', NULL)",
        "INSERT INTO measurements (trial_id, cache, sample_count, samples_us, median_us, q1_us, q3_us, discarded,"
        " throttled, passes, launch) SELECT trial_id, cache, 0, '[]', 1.0, 1.0, 1.0, 0, 0, 1, launch FROM measurements",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute(statement)
    raw.close()


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell")
def test_the_sqlite3_shell_reads_it_without_this_project(path: Path, store: Store) -> None:
    source = source_of(config_of(0))
    run_trial(store, open_scope(store), correct(0, 10.5, source=source), source)
    store.close()

    def shell(sql: str) -> str:
        answer = subprocess.run(["sqlite3", str(path), sql], capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    columns = "study, layer, outcome, deterministic, median_us, ended_at LIKE '2026-11-20T%Z'"
    assert shell(f"SELECT {columns} FROM results") == "lenet|conv1|correct|1|10.5|1"
    assert shell("SELECT config FROM trials") == '{"block_p":0,"filters":"constant","vector":true}'
    assert "how often it was started" in shell(".schema trials")


def test_only_the_store_imports_sqlalchemy() -> None:
    package = Path(autotune.__file__).parent
    importers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if name.split(".")[0] in {"sqlalchemy", "sqlite3"}
    }
    assert importers == {"store"}
