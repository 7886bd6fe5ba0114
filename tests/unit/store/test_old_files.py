"""A file of schema 12 is read as it is and migrated after a copy was kept; a later schema is a migration."""

from __future__ import annotations

import gzip
import re
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection

from autotune.errors import StoreError, StoreWarning
from autotune.operation.registry import operation
from autotune.problem import Layer, make_problem
from autotune.resources import shipped
from autotune.store import Store
from autotune.store.schema import migrations
from autotune.store.schema.migrations import FIRST, MIGRATIONS, newest_schema
from tests.unit.permissions import read_only

from .builders import CONV1, H200, config_of, correct, open_scope, run_trial, source_of, ticking, written

DATA = Path(__file__).parents[2] / "data" / "databases"
BEST = [
    ("lenet.conv1", "cuda", "finals", 28.5, 1),
    ("lenet.conv1", "host", "median", 500.0, 0),
    ("lenet.conv2", "cuda", "finals", 28.5, 1),
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of schema 12."""
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((DATA / "0012.db.gz").read_bytes()))
    return path


def best_of(store: Store) -> list[tuple[object, ...]]:
    return [
        (row.name, row.row.device.kind, row.decided_by, row.median_us, row.row.trial.number)
        for row in store.best.list()
    ]


def schema_of(path: Path) -> set[tuple[str, str]]:
    raw = sqlite3.connect(path)
    found = set(raw.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))
    raw.close()
    return found


def test_an_old_file_is_read_without_changing_it_or_its_folder(old: Path) -> None:
    before = old.read_bytes()
    with read_only(old.parent), Store(old, create=False) as store:
        assert best_of(store) == BEST
        assert len(store.trials.list(generations="all")) >= 12
        assert store.trials.list("copy")[0].reused
        assert [row.parts.kernel_us for row in store.end_to_end.list()] == [27.5]
        assert store.rates.best(H200) == {"copy": 4.2e12}
        hash_of_best = store.best.list()[0].row.trial.source_hash
        source = store.sources.get(hash_of_best or "")
        assert source is not None
        assert source.hash == hash_of_best, "the kernel's text is the one that was compiled"
        with pytest.raises(StoreError, match="read-only"):
            open_scope(store)
    assert old.read_bytes() == before
    assert [file.name for file in old.parent.iterdir()] == ["old.db"]


def test_an_old_file_goes_on_where_it_was_and_is_kept(old: Path) -> None:
    with pytest.warns(StoreWarning) as noted:
        opened = Store(old, clock=ticking())
    with opened as store:
        assert best_of(store) == BEST
        scope = open_scope(store)
        had = store.trials.next_number(scope)
        run_trial(store, scope, correct(had, 9.0))
        assert [row.trial.number for row in store.trials.list("lenet.conv1", kind="cuda")][-1] == had
    (note,) = noted
    kept = old.with_name("old.schema-12.20261120T000001Z.db")
    assert str(note.message) == (
        f"{old}: migrated from schema 12 to {newest_schema()}; the old file is kept as {kept.name}"
    )
    with Store(kept, create=False) as store:
        assert best_of(store) == BEST
    written(old)
    assert sorted(file.name for file in old.parent.iterdir()) == ["old.db", kept.name], "once is enough"


def test_an_old_file_with_a_log_that_a_killed_writer_left_goes_on_with_what_is_in_the_log(
    old: Path, tmp_path: Path
) -> None:
    writer = sqlite3.connect(old)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE studies SET name = 'logged' WHERE name = 'lenet'")
    writer.commit()
    folder = tmp_path / "killed"
    folder.mkdir()
    for name in (old.name, f"{old.name}-wal"):
        (folder / name).write_bytes(old.with_name(name).read_bytes())
    writer.close()
    killed = folder / old.name
    assert (folder / f"{old.name}-wal").stat().st_size > 0
    with pytest.warns(StoreWarning, match="migrated from schema 12"):
        written(killed)
    with Store(killed, create=False) as store:
        assert "logged" in {row.name for row in store.studies.list()}
    (kept,) = folder.glob("old.schema-12.*.db")
    with Store(kept, create=False) as store:
        assert "logged" in {row.name for row in store.studies.list()}


def test_an_old_file_in_wal_mode_is_read_in_a_folder_that_is_read_only(old: Path) -> None:
    raw = sqlite3.connect(old)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.close()
    with read_only(old.parent), Store(old, create=False) as store:
        assert best_of(store) == BEST


def test_an_old_file_ends_with_the_schema_of_a_new_one(old: Path, blank: bytes) -> None:
    with pytest.warns(StoreWarning):
        written(old)
    new = old.with_name("new.db")
    new.write_bytes(blank)
    assert schema_of(old) == schema_of(new)


def test_an_old_file_that_breaks_a_rule_is_left_alone(old: Path) -> None:
    raw = sqlite3.connect(old)
    raw.execute("UPDATE trials SET config = 'tile = 4' WHERE id = 1")
    raw.commit()
    raw.close()
    before = old.read_bytes()
    with pytest.raises(
        StoreError, match=r"a row breaks a rule \(CHECK constraint failed: .*\); `sqlite3 .* \.recover`"
    ):
        Store(old, create=False)
    assert old.read_bytes() == before
    with pytest.raises(StoreError, match=re.escape(f"`sqlite3 {old} .recover`")):
        Store(old)
    assert [file.name for file in old.parent.iterdir()] == ["old.db"]


def test_a_later_schema_is_a_function_in_a_list(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    store.close()

    def add_column(connection: Connection, _old: Path) -> None:
        connection.exec_driver_sql("ALTER TABLE trials ADD COLUMN instructions INTEGER")

    newest = newest_schema()
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, add_column))
    with Store(store.path, create=False) as opened:
        assert opened.query("SELECT instructions FROM trials").rows == ((None,),), "seen through a copy"
    with pytest.warns(StoreWarning, match=f"migrated from schema {newest} to {newest + 1}; the old file is kept"):
        written(store.path)
    with Store(store.path, create=False) as opened:
        assert len(opened.best.list()) == 1
        assert opened.query("SELECT max(version) FROM schema_versions").rows == ((newest + 1,),)
    monkeypatch.undo()
    too_new = rf"schema {newest + 1} is newer than this autotune's {newest}; install autotune \S+ or newer"
    with pytest.raises(StoreError, match=too_new):
        Store(store.path)


def as_of_13(path: Path) -> None:
    """Turn a file into schema 13, in which `conv` had no prologue."""
    raw = sqlite3.connect(path)
    raw.execute("UPDATE layers SET problem = json_remove(problem, '$.prologue')")
    raw.execute("UPDATE schema_versions SET version = 13")
    raw.commit()
    raw.close()


def test_layers_of_conv_keep_the_results_from_before_it_had_a_prologue(store: Store) -> None:
    layer = Layer(
        "pointwise", make_problem(operation("conv"), {"n": 8, "c": 64, "h": 14, "w": 14, "k": 64, "r": 1, "s": 1})
    )
    run_trial(store, open_scope(store, study="net", layer=layer), correct(0, 10.0))
    run_trial(store, open_scope(store), correct(0, 20.0))
    store.close()
    as_of_13(store.path)
    with Store(store.path, create=False) as opened:
        assert [row.median_us for row in opened.best.list(layer.problem)] == [10.0]
    with pytest.warns(StoreWarning, match="migrated from schema 13"):
        written(store.path)
    with Store(store.path) as opened:
        scope = open_scope(opened, study="net", layer=layer)
        assert opened.trials.next_number(scope) == 1, "its trials are resumed"
        run_trial(opened, scope, correct(1, 9.0))
        assert [row.median_us for row in opened.best.list(layer.problem)] == [9.0]
        assert [row.median_us for row in opened.best.list(CONV1.problem)] == [20.0]


def test_a_layer_of_conv_that_was_tuned_again_with_a_prologue_loses_no_trial(store: Store) -> None:
    layer = Layer(
        "pointwise", make_problem(operation("conv"), {"n": 8, "c": 64, "h": 14, "w": 14, "k": 64, "r": 1, "s": 1})
    )
    run_trial(store, open_scope(store, study="net", layer=layer), correct(0, 10.0))
    store.close()
    as_of_13(store.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", MIGRATIONS[:1])
        with Store(store.path) as opened:
            run_trial(opened, open_scope(opened, study="again", layer=layer), correct(0, 11.0))
    with pytest.warns(StoreWarning, match="migrated from schema 13"):
        written(store.path)
    with Store(store.path, create=False) as opened:
        assert [row.median_us for row in opened.best.list(layer.problem)] == [11.0]
        assert opened.query("SELECT median_us FROM results ORDER BY median_us").rows == ((10.0,), (11.0,))


def test_filter_rows_of_strips_are_read_under_their_present_name(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    store.close()
    raw = sqlite3.connect(store.path)
    raw.execute("UPDATE templates SET family = 'depthwise_strips', header = '[params] shared_r'")
    raw.execute("""UPDATE trials SET config = '{"shared_r": 3}'""")
    raw.execute("UPDATE schema_versions SET version = 14")
    raw.commit()
    raw.close()
    with Store(store.path, create=False) as opened:
        assert opened.trials.list()[0].trial.config.params == {"smem_filter_rows": 3}
        assert opened.query("SELECT DISTINCT header FROM templates").rows == (("[params] smem_filter_rows",),)


def test_the_migrations_after_schema_12_also_run_on_its_rows(old: Path) -> None:
    raw = sqlite3.connect(old)
    raw.execute("UPDATE templates SET family = 'depthwise_strips'")
    raw.execute("""UPDATE trials SET config = '{"shared_r": 3}'""")
    raw.commit()
    raw.close()
    with Store(old, create=False) as opened:
        assert opened.trials.list()[0].trial.config.params == {"smem_filter_rows": 3}


def test_a_file_gets_the_columns_that_it_lacks_when_it_is_written(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    store.close()
    raw = sqlite3.connect(store.path)
    for (view,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall():
        raw.execute(f"DROP VIEW {view}")
    for name in ("verify_us", "constant_bytes"):
        raw.execute(f"ALTER TABLE trials DROP COLUMN {name}")
    raw.commit()
    raw.close()
    before = store.path.read_bytes()
    with Store(store.path, create=False) as opened:
        (row,) = opened.trials.list()
        assert (row.trial.phases.verify_us, row.trial.resources.constant_bytes) == (0.0, 0)
        assert opened.query("SELECT verify_us, constant_bytes FROM results").rows == ((0.0, None),)
    assert store.path.read_bytes() == before, "read through a copy"
    with Store(store.path) as opened:
        run_trial(opened, open_scope(opened), correct(1, 9.0))
    with Store(store.path, create=False) as opened:
        assert opened.query("SELECT number, verify_us FROM results").rows == ((0, 0.0), (1, 5000.0))
    assert [file.name for file in store.path.parent.iterdir()] == [store.path.name], "nothing is lost: no copy is kept"


def test_the_recorded_results_can_be_asked_where_nothing_may_be_written(tmp_path: Path) -> None:
    recorded = shipped("studies") / "recorded" / "h200.db"
    path = tmp_path / "h200.db"
    path.write_bytes(recorded.read_bytes())
    with read_only(tmp_path), Store(path, create=False) as store:
        best = store.best.list("lenet-k5")
        strict = [row for row in best if row.row.trial.deterministic and row.row.trial.accuracy == "fp32"]
        assert [row.decided_by for row in strict] == ["finals", "finals"]
        assert store.sources.get(best[0].row.trial.source_hash or "") is not None
        assert len(store.trials.list("lenet-k5")) > 300


@pytest.mark.parametrize("name", ["h200", "h100", "networks"])
def test_a_shipped_database_is_one_whole_file(name: str) -> None:
    path = shipped("studies") / "recorded" / f"{name}.db"
    raw = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    (version,) = raw.execute("SELECT max(version) FROM schema_versions").fetchone()
    assert FIRST <= version <= newest_schema()
    raw.close()


def test_a_kernel_is_kept_as_paragraphs_that_kernels_share(store: Store) -> None:
    scope = open_scope(store)
    texts = [f"// shared\n\nint tile = {number};\n\n\nvoid kernel() {{}}\n" for number in range(3)]
    for number, text in enumerate(texts):
        source = source_of(config_of(number), text=text)
        run_trial(store, scope, correct(number, 10.0, source=source), source)
    assert store.query("SELECT text FROM kernels ORDER BY source_id").rows == tuple((text,) for text in texts)
    assert store.query("SELECT count(*) FROM paragraphs").rows == ((5,),)
