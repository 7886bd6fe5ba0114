"""A merge loses and repeats nothing, and merged trials are not best before they are measured here."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from pathlib import Path

import pytest

from autotune.devices.device import Rate
from autotune.errors import StoreError
from autotune.store import Finals, Merged, Store, merge
from autotune.store.schema.migrations import newest_schema
from tests.benchmarks.smaller_database import compact, shrink

from .builders import (
    CONV1,
    CONV2,
    DRIVER_580,
    DRIVER_590,
    H200,
    HOST,
    config_of,
    correct,
    open_scope,
    run_trial,
    source_of,
    study_of,
    ticking,
    timing_of,
)
from .test_dump import content, dumped_text, fill

DATA = Path(__file__).parents[2] / "data" / "databases"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A colleague's database with rows in every table."""
    path = tmp_path / "other.db"
    with Store(path, clock=ticking()) as store:
        fill(store)
    return path


def consistent(path: Path) -> None:
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    raw.close()


def names_of(path: Path) -> list[tuple[object, ...]]:
    """The row of each trial in `results`, without the columns that a merge changes."""
    raw = sqlite3.connect(path)
    columns = "study, layer, number, config, outcome, message, median_us, q1_us, source_hash, device, driver"
    rows = raw.execute(f"SELECT {columns}, started_at, ended_at FROM results WHERE outcome <> 'running'").fetchall()
    raw.close()
    return sorted(rows, key=str)


def test_everything_that_ended_comes_once(tmp_path: Path, other: Path) -> None:
    here = tmp_path / "here.db"
    with Store(here) as store:
        run_trial(store, open_scope(store), correct(0, 50.0, source=source_of(config_of(9))), source_of(config_of(9)))
    assert merge(other, here) == Merged(trials=5, known=0, running=1, studies=1)
    consistent(here)
    of_layers = {row for row in names_of(other) if row[1] is not None}
    assert of_layers < set(names_of(here)), "dispatchers are left out"
    once = dumped_text(here)
    assert merge(other, here) == Merged(trials=0, known=5, running=1, studies=0)
    assert dumped_text(here) == once
    had, has = content(other), content(here)
    for table in (
        "measurements",
        "finals",
        "verdicts",
        "end_to_end_timings",
        "profiles",
        "retimes",
        "quarantine",
        "sources",
    ):
        assert len(has[table]) >= len(had[table]), table


def test_what_was_brought_is_seen_and_never_the_best(store: Store, other: Path) -> None:
    run_trial(store, open_scope(store), correct(0, 50.0))
    merge(other, store.path)
    assert [(row.median_us, row.row.origin) for row in store.best.list()] == [(50.0, "measured")]
    rows = store.trials.list("lenet.conv1")
    assert [row.origin for row in rows if row.trial.outcome == "correct"] == ["measured", *["imported"] * 4]
    assert store.query("SELECT DISTINCT imported_from FROM results ORDER BY 1").rows == ((None,), ("other.db",))
    fastest = min(
        (row for row in rows if row.measurement_mode == "cold" and row.median_us), key=lambda row: row.median_us or 0
    )
    store.retimes.add(fastest, H200, DRIVER_590, "confirmed", timing_of(29.0))
    assert [(row.median_us, row.decided_by, row.row.origin) for row in store.best.list()] == [
        (29.0, "retime", "imported")
    ]


def test_a_study_goes_on_as_if_nothing_had_been_merged(store: Store, other: Path) -> None:
    scope = open_scope(store)
    run_trial(store, scope, correct(0, 50.0))
    before = store.trials.history(scope)
    merge(other, store.path)
    again = open_scope(store)
    assert (again.study, store.trials.history(again), store.trials.next_number(again)) == (scope.study, before, 1)
    assert store.known.get(again, source_of(config_of(0)).hash) is None, "a result from elsewhere is not taken over"
    fresh = open_scope(store, fresh=True)
    assert fresh.study.generation == 3, "generation 2 is the colleague's"


def test_a_layer_that_both_have_is_listed_once_with_the_trials_of_both(store: Store, other: Path) -> None:
    run_trial(store, open_scope(store), correct(0, 50.0))
    (alone,) = store.studies.layers("lenet.conv1")
    with Store(other) as colleague:
        (elsewhere,) = colleague.studies.layers("lenet.conv1")
    merge(other, store.path)
    (both,) = store.studies.layers("lenet.conv1")
    assert (both.generation, both.trials) == (1, alone.trials + elsewhere.trials)


def test_noise_floors_and_rates_from_elsewhere_count_where_there_is_no_other(store: Store, other: Path) -> None:
    merge(other, store.path)
    assert store.rates.list(H200) == (Rate("copy", "16 bytes a thread", 4.2e12),)
    store.rates.add(H200, DRIVER_580, [Rate("copy", "16 bytes a thread", 1e12)])
    store.noise_floors.add(H200, DRIVER_580, "cold", 0.5, 0.01)
    raw = sqlite3.connect(other)
    raw.execute("UPDATE rates SET measured_at = '2099-01-01T00:00:00.000000Z'")
    raw.execute("UPDATE noise_floors SET measured_at = '2099-01-01T00:00:00.000000Z'")
    raw.commit()
    raw.close()
    merge(other, store.path)
    assert store.rates.best(H200) == {"copy": 1e12}
    floor = store.noise_floors.latest(H200, "cold")
    assert floor is not None
    assert floor.noise_us == 0.5


def test_two_copies_that_went_different_ways_get_what_each_lacks(tmp_path: Path, other: Path) -> None:
    left, right = tmp_path / "left.db", tmp_path / "right.db"
    for path in (left, right):
        shutil.copy(other, path)
    for path, device, start in ((left, H200, 5), (right, H200, 5), (right, HOST, 0)):
        with Store(path) as store:
            scope = open_scope(store, device=device)
            for number in range(start, start + 2):
                source = source_of(config_of(100 + number + (path == right)))
                trial = correct(number, 10.0 + number + (path == right), source=source)
                store.trials.end(store.trials.begin(scope, number, trial.config, source), trial)
    assert merge(right, left) == Merged(trials=4, known=5, running=1, studies=0)
    consistent(left)
    with Store(left, create=False) as store:
        rows = [row for row in store.trials.list("lenet.conv1", kind="cuda") if row.trial.number > 4]
        assert [(row.trial.number, row.median_us, row.origin) for row in rows] == [
            (5, 15.0, "measured"),
            (6, 16.0, "measured"),
            (7, 16.0, "imported"),
            (8, 17.0, "imported"),
        ]
    assert merge(left, right).trials == 2
    assert merge(right, left).trials == merge(left, right).trials == 0
    assert sorted({row[3:] for row in names_of(left)}) == sorted({row[3:] for row in names_of(right)})


def test_a_second_merge_brings_what_came_since(store: Store, other: Path) -> None:
    merge(other, store.path)
    with Store(other) as theirs:
        scope = open_scope(theirs)
        (suspect,) = theirs.trials.suspects(scope)
        theirs.trials.end(suspect, correct(4, 33.0))
        theirs.finals.add(scope, Finals(winner=4, timings=((4, timing_of(32.5)),)))
        theirs.studies.begin(study_of("lenet", [CONV2], seed=7))
    assert merge(other, store.path) == Merged(trials=1, known=5, running=0, studies=0)
    assert store.query("SELECT count(*) FROM finals WHERE origin = 'imported'").rows == ((2,),)
    assert [(row.layer.name, row.trials) for row in store.studies.layers("lenet")] == [("conv2", 0)], (
        "as their file is now"
    )
    assert store.best.list() == ()


def test_what_came_by_two_ways_comes_once(tmp_path: Path, other: Path) -> None:
    middle, here = tmp_path / "middle.db", tmp_path / "here.db"
    merge(other, middle)
    merge(middle, here)
    assert merge(other, here).trials == 0
    with Store(here, create=False) as store:
        assert store.query("SELECT imported_from FROM studies").rows == (("other.db",),)


def test_a_file_of_an_older_schema_is_merged_and_left_alone(tmp_path: Path, store: Store) -> None:
    old = tmp_path / "old.db"
    old.write_bytes(gzip.decompress((DATA / "0012.db.gz").read_bytes()))
    before = old.read_bytes()
    assert merge(old, store.path).trials == 12
    assert old.read_bytes() == before
    reused = store.query("SELECT study, layer FROM results WHERE reused").rows
    assert reused == (("copy", "conv1"),)
    assert store.query("SELECT max(version) FROM schema_versions").rows == ((newest_schema(),),)


def test_a_text_that_one_side_dropped_is_no_conflict(tmp_path: Path, other: Path) -> None:
    small, here = tmp_path / "small.db", tmp_path / "here.db"
    compact(other, small)
    shrink(small, best_texts_only=True)
    dropped = source_of(config_of(2)).hash
    merge(small, here)
    with Store(here, create=False) as store:
        assert store.sources.get(dropped) is None
    merge(other, here)
    with Store(here, create=False) as store:
        assert store.sources.get(dropped) == source_of(config_of(2))
    merge(small, here)
    with Store(here, create=False) as store:
        assert store.sources.get(dropped) is not None


def test_a_file_is_not_merged_with_itself(store: Store) -> None:
    open_scope(store)
    with pytest.raises(StoreError, match="is the database to merge into"):
        merge(store.path, store.path)


def test_what_is_no_database_is_not_merged(store: Store, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("name = 'lenet'\n" * 100)
    for name, words in (("text", "not an SQLite file"), ("none.db", "no such file")):
        with pytest.raises(StoreError, match=words):
            merge(tmp_path / name, store.path)
    assert store.studies.list() == ()
    assert CONV1.name not in [row.layer.name for row in store.studies.layers()]
