"""Reading changes nothing: read-only files and folders, shipped copies, a user's SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import StoreError
from autotune.store import Store
from tests.benchmarks.smaller_database import compact
from tests.long_run import every
from tests.unit.permissions import read_only

from .builders import config_of, correct, open_scope, run_trial, source_of


def fill(path: Path) -> None:
    with Store(path) as store:
        scope = open_scope(store)
        source = source_of(config_of(0))
        run_trial(store, scope, correct(0, 10.0, source=source), source)


def read_all(path: Path) -> None:
    with Store(path, create=False) as store:
        assert len(store.best.list("lenet")) == 1
        assert len(store.trials.list()) == 1
        assert store.query("SELECT count(*) FROM results").rows == ((1,),)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_read_only_file_in_a_read_only_folder_is_read(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "a.db"
    fill(path)
    if journal == "delete":
        compact(path, tmp_path / "b.db")
        path.unlink()
        path = tmp_path / "b.db"
    before = path.read_bytes()
    with read_only(tmp_path):
        read_all(path)
        with pytest.raises(StoreError) as caught:
            Store(path)
    assert str(caught.value) == f"{path}: the file is read-only; make it writable or name another database"
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_read_only_folder_is_not_written(tmp_path: Path) -> None:
    with read_only(tmp_path), pytest.raises(StoreError, match=f"the folder {tmp_path} is read-only"):
        Store(tmp_path / "a.db")


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_reading_a_writable_file_leaves_nothing_beside_it(path: Path, journal: str) -> None:
    fill(path)
    if journal == "delete":
        compact(path, path.with_name("b.db"))
        path.unlink()
        path = path.with_name("b.db")
    before = path.read_bytes()
    read_all(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def state_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and date of each file except the index of a log, to which every reader of a log writes."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith("-shm")
    }


def test_the_log_of_a_killed_writer_is_read_and_left(path: Path, store: Store, tmp_path: Path) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0, source=source_of(config_of(0))), source_of(config_of(0)))
    killed = tmp_path / "killed" / "a.db"
    killed.parent.mkdir()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{killed}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    before = state_of(killed.parent)
    assert len(before["a.db-wal"][0]) > 0
    read_all(killed)
    assert state_of(killed.parent) == before
    Store(killed).close()
    assert [file.name for file in killed.parent.iterdir()] == ["a.db"], "a writer folds it"
    read_all(killed)


def test_a_reader_sees_what_a_running_tuner_committed(path: Path, store: Store) -> None:
    scope = open_scope(store)
    with Store(path, create=False) as reader:
        assert reader.trials.list() == ()
        run_trial(store, scope, correct(0, 10.0))
        assert [row.median_us for row in reader.trials.list()] == [10.0]
        assert reader.query("SELECT median_us FROM best").rows == ((10.0,),)


def test_a_store_opened_for_reading_refuses_to_write(path: Path, store: Store) -> None:
    scope = open_scope(store)
    with Store(path, create=False) as reader, pytest.raises(StoreError, match="read-only"):
        reader.trials.begin(scope, 0, config_of(0))


@pytest.mark.parametrize(
    "sql",
    every(
        3,
        [
            "DELETE FROM trials",
            "INSERT INTO studies VALUES (1, 'x', 1, 0, '', 0, '')",
            "UPDATE trials SET median_us = 1",
            "DROP TABLE trials",
            "CREATE TABLE x (y)",
            "CREATE TEMP TABLE x (y)",
            "CREATE VIEW x AS SELECT 1",
            "ATTACH 'other.db' AS other",
            "PRAGMA journal_mode = DELETE",
            "PRAGMA query_only = OFF",
            "PRAGMA writable_schema = ON",
            "VACUUM",
            "VACUUM INTO 'copy.db'",
            "REINDEX",
            "ANALYZE",
            "BEGIN IMMEDIATE",
            "SAVEPOINT a",
            "SELECT load_extension('x')",
            "ATTACH ':memory:' AS other",
            "ATTACH 'file:other.db?mode=rwc' AS other",
            "DETACH main",
            "WITH a AS (SELECT 1) INSERT INTO studies SELECT * FROM studies",
            "REPLACE INTO schema_versions VALUES ('9', '', '')",
            "UPDATE sqlite_master SET sql = ''",
            "ALTER TABLE trials ADD COLUMN x",
            "EXPLAIN DELETE FROM trials",
            "PRAGMA user_version = 7",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "SELECT * FROM pragma_wal_checkpoint",
            "SELECT * FROM pragma_journal_mode",
            "SELECT edit('x')",
            "SELECT readfile('/etc/passwd')",
            "SELECT fts3_tokenizer('simple', x'00')",
            "SELECT * FROM fsdir('.')",
            "CREATE VIRTUAL TABLE x USING fts5(y)",
            "SELECT writefile('x', 'y')",
            "SELECT LOAD_EXTENSION('x')",
            "WITH gone AS (SELECT 1) DELETE FROM trials",
            "DELETE FROM trials RETURNING id",
            "SELECT 1; DELETE FROM trials",
            "SELECT 1; SELECT 2",
            "",
            "-- nothing",
            "SELEC",
            "SELECT * FROM nowhere",
            "SELECT 'a\0b'",
            "SELECT '\udcff'",
            "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        ],
    ),
)
def test_sql_that_does_more_or_less_than_read_is_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, sql: str
) -> None:
    monkeypatch.chdir(path.parent)
    run_trial(store, open_scope(store), correct(0, 10.0))
    store.close()
    files = sorted(path.parent.iterdir())
    before = path.read_bytes()
    with Store(path, create=False) as reader, pytest.raises(StoreError) as caught:
        reader.query(sql)
    assert str(caught.value).startswith("query: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == files
    with Store(path) as writer, pytest.raises(StoreError, match=r"^query: "):
        writer.query(sql)


def test_a_refused_write_says_so(store: Store) -> None:
    with pytest.raises(StoreError) as caught:
        store.query("DELETE\nFROM trials")
    assert str(caught.value) == (
        "query: only reading is allowed, one SELECT statement: not authorized: DELETE FROM trials"
    )


def test_sql_reads_everything(store: Store) -> None:
    source = source_of(config_of(4))
    run_trial(store, open_scope(store), correct(0, 10.0, source=source), source)
    result = store.query("SELECT number AS n, config ->> '$.filters' AS filters FROM results")
    assert (result.columns, result.rows) == (("n", "filters"), ((0, "constant"),))
    assert store.query("SELECT text FROM kernels").rows == ((source.program.text,),)
    assert store.query("SELECT max(value) FROM measurements, json_each(samples_us)").rows == ((11.0,),)
    recursive = "WITH RECURSIVE a (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a WHERE x < 3) SELECT x FROM a"
    assert store.query(recursive).rows == ((1,), (2,), (3,))
    assert store.query("VALUES (1, NULL)").rows == ((1, None),)
    assert store.query("SELECT name FROM sqlite_master WHERE name = 'trials' AND type = 'table'").rows == (("trials",),)
    assert store.query("SELECT 1 WHERE 0").rows == ()
    assert store.query("SELECT median_us FROM trials ORDER BY median_us; ").rows == ((10.0,),)
