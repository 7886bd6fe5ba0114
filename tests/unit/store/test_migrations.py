"""Files of every schema that was ever on main are read as they are, and brought up to date after a copy was kept."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from autotune.errors import StoreError, StoreWarning
from autotune.shipped import shipped
from autotune.store import Store
from autotune.store.sqlite.schema import MIGRATIONS, newest_schema
from tests.long_run import every
from tests.unit.permissions import read_only

from .builders import (
    H200,
    correct,
    open_scope,
    run_trial,
    ticking,
    written,
)

DATA = Path(__file__).parents[2] / "data" / "databases"
FILES = sorted(DATA.glob("*.db.gz"))
"""Written by the code of their time, all with the same trials: two studies, a copied trial, a fresh generation, two
devices, a failure, finals, a trial that was cut off, quarantine, a noise floor, a rate."""
SOME = every(4, FILES)
"""Those that every run asks what is the same for all."""


def version_in_name(file: Path) -> str:
    """A file's version."""
    return file.name.removesuffix(".db.gz")


@pytest.fixture(params=FILES, ids=version_in_name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of an older schema."""
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return path


def version_of(path: Path) -> str:
    raw = sqlite3.connect(path)
    ((version,),) = raw.execute("SELECT version_num FROM alembic_version")
    raw.close()
    return str(version)


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table that a schema of old has, by the columns that it has there."""
    raw = sqlite3.connect(path)
    tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: raw.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in tables}
    raw.close()
    return found


def best_of(store: Store) -> list[tuple[object, ...]]:
    return [
        (row.name, row.row.device.kind, row.basis, row.median_us, row.row.trial.number) for row in store.best.list()
    ]


BEST = [
    ("lenet.conv1", "cuda", "finals", 28.5, 1),
    ("lenet.conv1", "host", "median", 500.0, 0),
    ("lenet.conv2", "cuda", "finals", 28.5, 1),
]


def test_there_is_a_file_of_every_schema_before_this_one() -> None:
    schemas = {file.name[1:5] for file in (MIGRATIONS / "versions").glob("v0*.py")}
    assert {file.name[:4] for file in FILES} == schemas - {newest_schema()}


def test_a_file_has_the_schema_that_its_name_says(old: Path, request: pytest.FixtureRequest) -> None:
    assert version_of(old) == request.node.callspec.id[:4]


@pytest.mark.parametrize("old", SOME, ids=version_in_name, indirect=True)
def test_an_old_file_is_read_without_changing_it_or_its_folder(old: Path) -> None:
    before = old.read_bytes()
    with read_only(old.parent), Store(old, create=False) as store:
        assert best_of(store) == BEST
        assert len(store.trials.list(generations="all")) >= 12
        assert store.trials.list("copy")[0].reused
        assert store.query("SELECT count(*) FROM results WHERE origin = 'measured'").rows[0] > (10,)
        assert store.end_to_end.list() == () or version_of(old) >= "0002"
        with pytest.raises(StoreError, match="read-only"):
            open_scope(store)
    assert old.read_bytes() == before
    assert [file.name for file in old.parent.iterdir()] == ["old.db"]


def test_an_old_file_is_brought_up_to_date_and_kept(old: Path) -> None:
    before, rows, version = old.read_bytes(), rows_of(old), version_of(old)
    with Store(old, clock=ticking()) as store:
        assert best_of(store) == BEST
        assert (old.read_bytes(), list(old.parent.iterdir())) == (before, [old]), "nothing changes before a write"
        with pytest.warns(StoreWarning) as noted:
            run_trial(store, open_scope(store), correct(1, 9.0))
        assert [best for best in best_of(store) if best[1] == "host"] == BEST[1:2]
        (note,) = noted
        kept = old.with_name(f"old.schema-{version}.20261120T000002Z.db")
        assert str(note.message) == (
            f"{old}: brought from schema {version} to {newest_schema()}; the file as it was is kept as {kept.name}"
        )
    assert version_of(old) == newest_schema()
    assert rows_of(kept) == rows
    assert len(kept.read_bytes()) == len(before)
    now = rows_of(old)
    now["spans"] = now["end_to_end_timings"]  # its name since 0008
    for table, had in rows.items():
        if table not in ("alembic_version", "runs", "study_layers"):
            assert [row[: len(had[0])] for row in now[table]][: len(had)] == had if had else True, table
    raw = sqlite3.connect(old)
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    raw.close()
    with Store(kept, create=False) as store:
        assert best_of(store) == BEST
    written(old)
    assert sorted(file.name for file in old.parent.iterdir()) == ["old.db", kept.name], "once is enough"


@pytest.mark.parametrize("old", SOME, ids=version_in_name, indirect=True)
def test_an_old_file_ends_with_the_schema_of_a_new_one(old: Path, blank: bytes) -> None:
    with pytest.warns(StoreWarning):
        written(old)
    new = old.with_name("new.db")
    new.write_bytes(blank)
    schemas = []
    for path in (old, new):
        raw = sqlite3.connect(path)
        schemas.append(set(raw.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")))
        raw.close()
    assert schemas[0] == schemas[1]


@pytest.mark.parametrize("old", SOME, ids=version_in_name, indirect=True)
def test_a_copy_ranks_only_where_it_was_measured_itself(old: Path) -> None:
    with pytest.warns(StoreWarning):
        written(old)
    with Store(old) as store:
        ranks = store.query("SELECT reused, median_us, ranked_us FROM results WHERE study = 'copy'").rows
        assert ranks == ((1, 30.0, None),)
        assert store.query("SELECT median_us, ranked_us FROM results WHERE median_us = 29.0 ORDER BY 2").rows == (
            (29.0, 28.5),
            (29.0, 28.5),
            (29.0, 29.0),
        )


@pytest.mark.parametrize("old", [file for file in FILES if file.name < "0006"], ids=version_in_name, indirect=True)
def test_rates_of_old_say_how_they_were_measured(old: Path) -> None:
    raw = sqlite3.connect(old)
    columns = "id, device_id, environment_id, name, per_s, measured_at"
    for number, name in enumerate(("fill", "fp32", "tf32", "fp16", "of another kind"), start=2):
        raw.execute(f"INSERT INTO rates ({columns}) VALUES (?, 1, 1, ?, 1e12, '2026')", (number, name))
    raw.commit()
    raw.close()
    with Store(old, create=False) as store:
        assert set(store.query("SELECT name, method FROM rates").rows) == {
            ("copy", "16 bytes a thread"),
            ("fill", "16 bytes a thread"),
            ("fp32", "FFMA"),
            ("tf32", "mma.sync m16n8k8"),
            ("fp16", "mma.sync m16n8k16"),
            ("of another kind", "unknown"),
        }
        assert store.rates.best(H200).keys() == {"copy", "fill", "fp32", "tf32", "fp16", "of another kind"}


@pytest.mark.parametrize("old", SOME, ids=version_in_name, indirect=True)
def test_no_migration_without_a_copy(old: Path) -> None:
    before, version = old.read_bytes(), version_of(old)
    taken = old.with_name(f"old.schema-{version}.20261120T000002Z.db.part")
    taken.mkdir()
    with pytest.raises(StoreError, match="a copy cannot be kept as"):
        written(old)
    assert version_of(old) == version
    taken.rmdir()
    assert rows_of(old)
    assert len(before) == old.stat().st_size


def test_the_recorded_results_can_be_asked_where_nothing_may_be_written(tmp_path: Path) -> None:
    recorded = shipped("studies") / "recorded" / "h200.db"
    path = tmp_path / "h200.db"
    path.write_bytes(recorded.read_bytes())
    with read_only(tmp_path), Store(path, create=False) as store:
        best = store.best.list("lenet-k5")
        strict = [row for row in best if row.row.trial.deterministic and row.row.trial.accuracy == "fp32"]
        assert [row.basis for row in strict] == ["finals", "finals"]
        assert store.sources.get(best[0].row.trial.source_hash or "") is not None
        assert len(store.trials.list("lenet-k5")) > 300


def test_statistics_are_kept_as_the_trials_multiply(store: Store) -> None:
    """Without a step by hand: `best` of many layers is ten times as slow without them."""
    run_trial(store, open_scope(store), correct(0, 10.0))
    store.close()
    raw = sqlite3.connect(store.path)
    columns = ", ".join(
        name for _, name, *_ in raw.execute("PRAGMA table_info(trials)") if name not in ("id", "number")
    )
    raw.execute(
        f"WITH RECURSIVE more (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM more WHERE n < 3000) "
        f"INSERT INTO trials (id, number, {columns}) SELECT n, n, {columns} FROM trials, more WHERE id = 1"
    )
    raw.commit()
    assert not raw.execute("SELECT name FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchall()
    written(store.path)
    counted = "SELECT stat FROM sqlite_stat1 WHERE idx = 'trials_best'"
    ((before,),) = raw.execute(counted)
    written(store.path)
    assert raw.execute(counted).fetchone() == (before,)
    raw.close()
