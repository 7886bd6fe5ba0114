"""Small copies of a database lack the rows that they should lack, and no others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.devices.device import DeviceInfo
from autotune.problem import Layer
from autotune.store import Finals, Store
from tests.benchmarks.smaller_database import compact, shrink

from .builders import (
    CONV1,
    CONV2,
    DRIVER_590,
    H200,
    HOST,
    config_of,
    correct,
    failed,
    open_scope,
    run_trial,
    source_of,
    timing_of,
)


def test_a_kernel_whose_text_was_dropped_gets_it_again(tmp_path: Path, store: Store) -> None:
    scope = open_scope(store)
    for number in (0, 1):
        source = source_of(config_of(number))
        run_trial(store, scope, correct(number, 10.0 + number, source=source), source)
    small = tmp_path / "small.db"
    compact(store.path, small)
    shrink(small, best_texts_only=True)
    dropped = source_of(config_of(1))
    with Store(small) as shipped_store:
        assert shipped_store.sources.get(dropped.hash) is None
        scope = open_scope(shipped_store, study="mine", layer=CONV1, device=H200, environment=DRIVER_590)
        run_trial(shipped_store, scope, correct(0, 10.0, source=dropped), dropped)
        assert shipped_store.sources.get(dropped.hash) is not None


def test_of_correct_trials_a_small_copy_keeps_the_fastest_and_those_in_finals(tmp_path: Path, store: Store) -> None:
    scope = open_scope(store)
    for number, median_us in enumerate((30.0, 10.0, 20.0, 40.0)):
        source = source_of(config_of(number))
        run_trial(store, scope, correct(number, median_us, source=source), source)
    store.trials.add(scope, failed(4))
    store.finals.add(scope, Finals(winner=1, timings=((1, timing_of(11.0)), (3, timing_of(12.0)))))
    small = tmp_path / "small.db"
    compact(store.path, small)
    shrink(small, fastest=2)
    with Store(small, create=False) as shipped_store:
        assert [row.trial.number for row in shipped_store.trials.list("lenet")] == [1, 2, 3, 4]
        assert [row.median_us for row in shipped_store.best.list("lenet")] == [11.0]
        (counted,) = shipped_store.query(
            "SELECT (SELECT count(*) FROM sources), (SELECT count(*) FROM measurements)"
        ).rows
        assert counted == (3, 5), "nothing is left of the slower one"
    with Store(small, create=False) as copied:
        copied.check()


def test_the_clock_of_each_sample_is_left_out_but_not_their_median(tmp_path: Path, store: Store) -> None:
    scope = open_scope(store)
    trial = correct(1, 10.0)
    assert trial.timing is not None
    timing = replace(trial.timing, sm_clocks_mhz=(1900.0, 1980.0, 1980.0))
    store.trials.add(scope, replace(trial, timing=timing))
    small = tmp_path / "small.db"
    compact(store.path, small)
    shrink(small, fastest=2)
    with Store(small, create=False) as shipped_store:
        assert shipped_store.query("SELECT sm_clock_mhz, sm_clocks_mhz FROM measurements").rows == ((1980.0, None),)


def found(store: Store, *numbers: int, layer: Layer = CONV1, device: DeviceInfo = H200, fresh: bool = False) -> None:
    """Trials, and finals of the first alone."""
    scope = open_scope(store, layer=layer, device=device, fresh=fresh)
    for number in numbers:
        source = source_of(config_of(number), layer)
        run_trial(store, scope, correct(number, 10.0 + number, source=source), source)
    store.finals.add(scope, Finals(winner=numbers[0], timings=((numbers[0], timing_of(10.0 + numbers[0])),)))


@pytest.fixture
def begun_afresh(store: Store) -> Store:
    """A layer that was tuned twice on a device; another layer, and another device, only before."""
    for device, layer in ((H200, CONV1), (H200, CONV2), (HOST, CONV1)):
        found(store, 0, 1, layer=layer, device=device)
    found(store, 1, 2, fresh=True)
    return store


def test_of_studies_begun_afresh_a_small_copy_keeps_what_was_not_found_anew(
    tmp_path: Path, begun_afresh: Store
) -> None:
    small = tmp_path / "small.db"
    compact(begun_afresh.path, small)
    shrink(small, latest_only=True)
    with Store(small, create=False) as copy:
        told = copy.query(
            "SELECT generation, device_id, tuning_target_id, count(*), (SELECT count(*) FROM finals WHERE "
            "(study_id, device_id, tuning_target_id) = (studies.id, trials.device_id, trials.tuning_target_id)) "
            "FROM trials JOIN studies ON studies.id = study_id GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ).rows
    assert [row[0] for row in told] == [1, 1, 2]
    assert [row[3:] for row in told] == [(2, 1)] * 3
    assert len({row[1:3] for row in told}) == 3, "of each layer and device the last"
    with Store(small, create=False) as copied:
        copied.check()


def test_what_was_copied_from_an_earlier_generation_stays_in_a_small_copy(tmp_path: Path, store: Store) -> None:
    found(store, 0, 1)
    found(store, 1, 2, fresh=True)
    other = open_scope(store, study="other")
    known = store.known.get(other, source_of(config_of(0)).hash)
    assert known is not None
    store.known.reuse(other, 0, config_of(0), known)
    small = tmp_path / "small.db"
    compact(store.path, small)
    shrink(small, latest_only=True)
    with Store(small, create=False) as copy:
        assert copy.query("SELECT count(*) FROM trials").rows == ((4,),)
        assert [row.median_us for row in copy.best.list("lenet")] == [11.0]
    with Store(small, create=False) as copied:
        copied.check()


@pytest.mark.parametrize(
    "merged", ["UPDATE studies SET imported_from = 'other.db'", "UPDATE trials SET accuracy = 'tf32' WHERE id > 6"]
)
def test_a_generation_that_is_merged_or_less_accurate_replaces_none_in_a_small_copy(
    tmp_path: Path, begun_afresh: Store, merged: str
) -> None:
    path = begun_afresh.path
    begun_afresh.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute(merged)
        before = raw.execute("SELECT count(*) FROM trials").fetchall()
    small = tmp_path / "small.db"
    compact(path, small)
    shrink(small, latest_only=True)
    with closing(sqlite3.connect(small)) as raw:
        assert raw.execute("SELECT count(*) FROM trials").fetchall() == before
