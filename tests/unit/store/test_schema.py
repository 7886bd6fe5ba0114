"""The schema: migrations make what the code expects, and sqlite3 alone can read it."""

from __future__ import annotations

import ast
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import UniqueConstraint, create_engine, inspect

import autotune
from autotune.store import Store
from autotune.store.column_types import metadata, views
from autotune.store.sqlite.database import utc_now
from autotune.store.sqlite.schema import (
    BETWEEN_STATEMENTS,
    MIGRATIONS,
    SNAPSHOT,
    migrate,
    newest_schema,
    newest_statements,
    statements_of,
    unenforced,
    upgrade,
)

from .builders import config_of, correct, open_scope, run_trial, source_of, ticking


def test_the_code_knows_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == newest_schema()


def migrated(path: Path, version: str) -> tuple[str, ...]:
    """What makes the schema of a version by all migrations up to it."""
    with unenforced(path, path, 1.0) as connection:
        upgrade(connection, path, version)
        return statements_of(connection)


def test_a_new_database_has_the_schema_that_migrations_make(tmp_path: Path, update_golden: bool) -> None:
    expected = migrated(tmp_path / "migrated.db", newest_schema())
    if update_golden:
        SNAPSHOT.write_text(BETWEEN_STATEMENTS.join(expected) + ";\n", encoding="utf-8")
    new = tmp_path / "new.db"
    with unenforced(new, new, 1.0) as connection:
        migrate(connection, new, newest_schema(), utc_now)
        found = statements_of(connection)
    assert found == expected, "the snapshot is none of the migrations; write it anew with --update-golden"


def test_migrations_later_than_the_snapshot_are_made_up_for(tmp_path: Path) -> None:
    """Whoever adds one leaves the snapshot alone: it only makes a new database quicker."""
    older = tmp_path / "older.sql"
    older.write_text(BETWEEN_STATEMENTS.join(migrated(tmp_path / "older.db", "0009")) + ";\n", encoding="utf-8")
    assert newest_statements(older) == migrated(tmp_path / "migrated.db", newest_schema())


def unique_columns(path: Path, table: str) -> set[tuple[str, ...]]:
    """The columns of each UNIQUE in a CREATE TABLE."""
    raw = sqlite3.connect(path)
    indexes = raw.execute("SELECT name FROM pragma_index_list(?) WHERE origin = 'u'", (table,)).fetchall()
    columns = "SELECT name FROM pragma_index_info(?) ORDER BY seqno"
    found = {tuple(name for (name,) in raw.execute(columns, index)) for index in indexes}
    raw.close()
    return found


def test_migrations_make_the_tables_that_the_code_uses(path: Path, store: Store) -> None:
    engine = create_engine(f"sqlite:///{path}")
    found = inspect(engine)
    assert set(found.get_table_names()) == {*metadata.tables, "alembic_version"}
    for name, table in metadata.tables.items():
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in found.get_columns(name)}
        words = {"VARCHAR": "TEXT", "FLOAT": "REAL", "BOOLEAN": "INTEGER"}
        expected = {c.name: (words.get(str(c.type), str(c.type)), bool(c.nullable)) for c in table.columns}
        assert columns == expected, name
        assert found.get_pk_constraint(name)["constrained_columns"] == [c.name for c in table.primary_key.columns]
        links = {(key["constrained_columns"][0], key["referred_table"]) for key in found.get_foreign_keys(name)}
        assert links == {(key.parent.name, key.column.table.name) for key in table.foreign_keys}, name
        unique = unique_columns(path, name)
        declared = {
            tuple(column.name for column in constraint.columns)
            for constraint in table.constraints
            if isinstance(constraint, UniqueConstraint)
        }
        assert unique == declared, name
    for name, view in views.tables.items():
        assert [c["name"] for c in found.get_columns(name)] == [c.name for c in view.columns]
    assert set(found.get_view_names()) == {"best", "best_trials", "results"}
    engine.dispose()


def test_every_version_is_dated(path: Path) -> None:
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
        "UPDATE subjects SET kind = 'layers'",
        "INSERT INTO trials SELECT * FROM (SELECT * FROM trials) WHERE id + 1 > 0",
        "INSERT INTO measurements SELECT 99, trial_id, finals_id, cache, sample_count, samples_us, median_us, q1_us,"
        " q3_us, sm_clock_mhz, memory_clock_mhz, NULL, NULL, NULL, NULL, NULL, NULL, NULL, launch FROM measurements",
        "UPDATE trials SET origin = 'stolen'",
        "UPDATE measurements SET launch = 'pigeon'",
        "UPDATE trials SET outcome = 'correctness', median_us = NULL",
        "INSERT INTO retimes VALUES (1, 1, 1, 2.0, NULL, 'confirmed', '', '')",
        "INSERT INTO subjects VALUES (9, 'space', NULL, NULL, NULL)",
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
    assert "one SELECT" not in shell(".schema trials")
    assert "how often it was begun" in shell(".schema trials")


def test_only_the_store_imports_sqlalchemy_and_alembic() -> None:
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
        if name.split(".")[0] in {"sqlalchemy", "alembic", "sqlite3"}
    }
    assert importers == {"store"}
