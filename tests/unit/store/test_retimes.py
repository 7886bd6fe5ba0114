"""Trials that were measured again: their rank, the finals that they supersede, and imported trials that count from then
on.
"""

from __future__ import annotations

import sqlite3

import pytest

from autotune.errors import StoreError
from autotune.store import Finals, RetimeRow, Store, TrialRow

from .builders import (
    CONV1,
    DRIVER_590,
    H200,
    config_of,
    correct,
    open_scope,
    run_trial,
    source_of,
    timing_of,
)


@pytest.fixture
def three(store: Store) -> tuple[TrialRow, ...]:
    """Three correct trials of 10, 11 and 12 us, without finals."""
    scope = open_scope(store)
    for number, median_us in enumerate((10.0, 11.0, 12.0)):
        source = source_of(config_of(number))
        run_trial(store, scope, correct(number, median_us, source=source), source)
    return store.trials.list("lenet.conv1")


def retime(store: Store, row: TrialRow, label: str, after_us: float | None, message: str = "") -> RetimeRow:
    timing = None if after_us is None else timing_of(after_us)
    return store.retimes.add(row, H200, DRIVER_590, label, timing, message)


def best_of(store: Store) -> tuple[int, float, str]:
    (best,) = store.best.list()
    return best.row.trial.number, best.median_us, best.decided_by


def test_a_retime_is_kept_beside_the_trial(store: Store, three: tuple[TrialRow, ...]) -> None:
    first = retime(store, three[0], "confirmed", 10.125)
    second = retime(store, three[0], "failed", None, "the launch failed")
    assert (first.before_us, first.after_us, first.environment) == (10.0, 10.125, DRIVER_590)
    assert (second.before_us, second.after_us, second.message) == (10.125, None, "the launch failed")
    assert [(row.label, row.after_us, row.environment) for row in store.retimes.list("lenet")] == [
        ("confirmed", 10.125, DRIVER_590),
        ("failed", None, DRIVER_590),
    ]
    assert store.retimes.list("conv2") == ()
    row = store.trials.list("lenet.conv1")[0]
    assert (row.median_us, row.trial.timing) == (10.0, timing_of(10.0)), "what was measured then stays"
    assert store.query("SELECT count(*) FROM runs").rows == ((2,),), "one process, one run a driver"


def test_the_best_is_by_the_latest_measurement(store: Store, three: tuple[TrialRow, ...]) -> None:
    retime(store, three[0], "regressed", 11.5)
    assert best_of(store) == (1, 11.0, "median")
    retime(store, three[2], "moved", 9.0)
    assert best_of(store) == (2, 9.0, "retime")
    retime(store, three[2], "failed", None)
    retime(store, three[1], "failed", None)
    assert best_of(store) == (0, 11.5, "retime")
    retime(store, three[0], "failed", None)
    assert store.best.list() == ()


def test_finals_decide_until_a_retime_puts_them_in_doubt(store: Store, three: tuple[TrialRow, ...]) -> None:
    scope = open_scope(store)
    store.finals.add(scope, Finals(winner=1, timings=((0, timing_of(10.5)), (1, timing_of(10.25)))))
    retime(store, three[1], "confirmed", 10.375)
    assert best_of(store) == (1, 10.25, "finals")
    retime(store, three[1], "regressed", 10.75)
    assert best_of(store) == (0, 10.5, "median")
    store.finals.add(scope, Finals(winner=2, timings=((2, timing_of(10.0)),)))
    assert best_of(store) == (2, 10.0, "finals")


def test_other_classes_and_layers_keep_their_finals(store: Store, three: tuple[TrialRow, ...]) -> None:
    scope = open_scope(store)
    run_trial(store, scope, correct(3, 5.0, accuracy="tf32"))
    store.finals.add(scope, Finals(winner=3, timings=((3, timing_of(5.5)),)))
    store.finals.add(scope, Finals(winner=1, timings=((1, timing_of(10.25)),)))
    retime(store, three[1], "regressed", 20.0)
    assert [(best.row.trial.accuracy, best.decided_by) for best in store.best.list()] == [
        ("fp32", "median"),
        ("tf32", "finals"),
    ]


def test_of_one_kernel_the_trial_measured_last_ranks(store: Store, three: tuple[TrialRow, ...]) -> None:
    """The same source was measured under an older driver, in a fresh generation and as a copy."""
    source = source_of(config_of(0))
    run_trial(store, open_scope(store, environment=DRIVER_590), correct(0, 10.25, source=source), source)
    copied = open_scope(store, study="copy")
    known = store.known.get(copied, source.hash)
    assert known is not None
    store.known.reuse(copied, 0, config_of(0), known)
    retime(store, three[0], "regressed", 30.0)
    assert best_of(store) == (1, 11.0, "median")


def test_an_imported_trial_counts_once_it_was_measured_here(store: Store, three: tuple[TrialRow, ...]) -> None:
    raw = sqlite3.connect(store.path)
    raw.execute("UPDATE trials SET origin = 'imported', ranking_median_us = NULL WHERE id = ?", (three[0].id,))
    raw.commit()
    raw.close()
    store.finals.add(open_scope(store), Finals(winner=1, timings=((1, timing_of(11.0)),)))
    assert best_of(store) == (1, 11.0, "finals")
    assert store.known.get(open_scope(store), three[0].trial.source_hash or "") is None, "nor is its result taken over"
    assert [trial.number for trial in store.trials.history(open_scope(store))] == [1, 2], "nor resumed from"
    retime(store, three[0], "confirmed", 10.125)
    assert best_of(store) == (0, 10.125, "retime")


def test_a_confirmed_retime_needs_a_time(store: Store, three: tuple[TrialRow, ...]) -> None:
    with pytest.raises(StoreError, match="CHECK constraint failed"):
        retime(store, three[0], "confirmed", None)
    with pytest.raises(StoreError, match="CHECK constraint failed"):
        retime(store, three[0], "better", 1.0)
    assert store.retimes.list(CONV1.name) == ()
