"""The best of a study or of an earlier moment, and how the best of a layer improved."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.analysis.history import history_rows
from autotune.analysis.retime import Changes
from autotune.devices.device import DeviceInfo, Environment
from autotune.store import Finals, Store, Verdict

from .builders import (
    CONV1,
    CONV2,
    DRIVER_580,
    DRIVER_590,
    H200,
    HOST,
    config_of,
    correct,
    failed,
    open_scope,
    run_trial,
    source_of,
    study_of,
    timing_of,
)

START = datetime(2026, 11, 20, tzinfo=UTC)


class Clock:
    """Shows the day that a test sets; each reading is a second later."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def day(self, number: int) -> datetime:
        """Go to a day of the test; its beginning."""
        self.now = START + timedelta(days=number)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def days(path: Path, blank: bytes, clock: Clock) -> Store:
    """An empty store whose clock the test sets."""
    path.write_bytes(blank)
    return Store(path, clock=clock)


def test_the_best_of_one_generation_is_of_its_own_trials(store: Store) -> None:
    first = open_scope(store)
    run_trial(store, first, correct(0, 10.0))
    run_trial(store, open_scope(store, layer=CONV2), correct(0, 20.0))
    second = open_scope(store, fresh=True)
    run_trial(store, second, correct(0, 11.0))
    run_trial(store, second, failed(1))
    run_trial(store, open_scope(store, device=HOST), correct(0, 99.0))
    assert [(row.name, row.median_us) for row in store.best.of_study("lenet", 1)] == [
        ("lenet.conv1", 10.0),
        ("lenet.conv2", 20.0),
    ]
    assert [(row.median_us, row.row.device.kind) for row in store.best.of_study("lenet", 2)] == [
        (11.0, "cuda"),
        (99.0, "host"),
    ]
    assert [row.name for row in store.best.of_study("lenet", 1, "conv2")] == ["lenet.conv2"]


def test_a_trial_taken_over_counts_for_the_study_that_took_it(store: Store) -> None:
    source = source_of(config_of(0))
    run_trial(store, open_scope(store), correct(0, 10.0, source=source), source)
    scope = open_scope(store, study="other")
    known = store.known.get(scope, source.hash)
    assert known is not None
    store.known.reuse(scope, 0, config_of(0), known)
    assert [(row.name, row.median_us) for row in store.best.of_study("other", 1)] == [("other.conv1", 10.0)]
    store.retimes.add(known, H200, DRIVER_590, "regressed", timing_of(15.0))
    (best,) = store.best.of_study("other", 1)
    assert (best.name, best.median_us, best.decided_by) == ("other.conv1", 15.0, "retime"), "its time now"


def test_retimes_count_from_now_on(days: Store, clock: Clock) -> None:
    scope = open_scope(days)
    for number, median_us in enumerate((10.0, 11.0)):
        run_trial(days, scope, correct(number, median_us))
    days.finals.add(scope, Finals(winner=0, timings=((0, timing_of(9.5)),)))

    def best() -> list[tuple[int, float, str]]:
        assert days.best.of_study("lenet", 1) == days.best.list()
        return [(row.row.trial.number, row.median_us, row.decided_by) for row in days.best.list()]

    assert best() == [(0, 9.5, "finals")]
    clock.day(1)
    days.retimes.add(days.trials.list()[0], H200, DRIVER_590, "regressed", timing_of(13.0))
    assert best() == [(1, 11.0, "median")], "the retime put the finals in doubt"
    clock.day(2)
    days.retimes.add(days.trials.list()[1], H200, DRIVER_590, "failed", None, "wrong")
    assert best() == [(0, 13.0, "retime")]
    days.close()


def test_what_a_regressed_winner_leaves_has_its_time_of_the_finals(days: Store, clock: Clock) -> None:
    scope = open_scope(days)
    for number, median_us in enumerate((10.0, 11.0, 10.5)):
        run_trial(days, scope, correct(number, median_us))
    timings = ((0, timing_of(9.0)), (1, timing_of(9.1)), (2, timing_of(12.0)))
    days.finals.add(scope, Finals(winner=0, timings=timings))
    clock.day(1)
    days.retimes.add(days.trials.list()[0], H200, DRIVER_590, "regressed", timing_of(13.0))
    (now,) = days.best.list()
    assert (now.row.trial.number, now.median_us, now.decided_by) == (1, 9.1, "median")
    assert days.best.of_study("lenet", 1) == (now,)
    days.close()


def test_history_has_every_improvement_the_finals_and_the_retimes(days: Store, clock: Clock) -> None:
    scope = open_scope(days)
    for number, median_us in enumerate((10.0, 12.0, 8.0, 8.0)):
        run_trial(days, scope, correct(number, median_us))
    run_trial(days, open_scope(days, device=HOST), correct(0, 100.0))
    days.finals.add(
        scope, Finals(winner=2, timings=((2, timing_of(7.0)),), verdicts=(Verdict("default", "win", 7.0, 9.0, 0),))
    )
    clock.day(1)
    days.retimes.add(days.trials.list(kind="cuda")[2], H200, DRIVER_590, "regressed", timing_of(14.0))
    clock.day(2)
    run_trial(days, open_scope(days, study="copy", environment=DRIVER_590), correct(0, 6.0))
    found = list(history_rows(days.results.history("lenet.conv1")))
    assert [(event["event"], event["layer"], event["trial"], event["time_us"]) for event in found] == [
        ("improvement", "lenet.conv1", 0, 10.0),
        ("improvement", "lenet.conv1", 2, 8.0),
        ("improvement", "lenet.conv1", 0, 100.0),
        ("finals", "lenet.conv1", 2, 7.0),
        ("retime", "lenet.conv1", 2, 14.0),
        ("improvement", "copy.conv1", 0, 6.0),
    ]
    assert [event["over_before"] for event in found] == pytest.approx([None, 0.8, None, 7 / 8, 2.0, 0.75])
    assert [event["driver"] for event in found[3:]] == ["580.159", "590.10", "590.10"]
    assert found[3]["note"].startswith("win against the starting config, put in doubt 2026-11-21")
    assert found[4]["note"] == "regressed"
    assert [event["date"] for event in found] == sorted(event["date"] for event in found)
    (of_host,) = days.results.history(CONV1.problem, HOST)
    assert of_host["time_us"] == 100.0
    days.close()


def test_a_kernel_that_is_not_deterministic_is_told_where_it_beats_the_others(store: Store) -> None:
    scope = open_scope(store)
    for number, (median_us, deterministic) in enumerate(((10.0, True), (12.0, False), (9.0, False), (8.0, True))):
        run_trial(store, scope, correct(number, median_us, deterministic=deterministic))
    assert [event["number"] for event in store.results.history("lenet.conv1")] == [0, 2, 3]


def test_a_result_is_compared_with_the_newest_run_on_its_device(store: Store) -> None:
    assert store.devices.list() == ()
    run_trial(store, open_scope(store, environment=DRIVER_590), correct(0, 10.0))
    open_scope(store, device=HOST)
    assert store.devices.list() == (H200, HOST)

    def doubts(*opened: tuple[DeviceInfo, Environment]) -> list[tuple[object, ...]]:
        changes = Changes(store, "lenet", opened)
        found = [one for best in store.best.list("lenet") for one in changes.of(best) if one.changed != "launch"]
        return [(one.changed, one.was, one.now, one.compared_with) for one in found]

    assert doubts() == [], "the newest run is its own"
    open_scope(store, environment=DRIVER_580)
    assert doubts() == [("driver", DRIVER_590.driver, DRIVER_580.driver, "its newest run")]
    assert doubts((H200, DRIVER_590), (HOST, DRIVER_580)) == []
    assert doubts((H200, replace(DRIVER_590, toolkit="nvcc 14"))) == [
        ("toolkit", DRIVER_590.toolkit, "nvcc 14", "this machine")
    ]
    row = store.best.list("lenet")[0].row
    store.retimes.add(row, H200, DRIVER_580, "confirmed", timing_of(10.0))
    assert doubts() == [], "measured again with that driver"
    store.studies.begin(study_of())
