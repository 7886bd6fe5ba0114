"""Dispatchers in the store are read as they were stored, and are not ranked among kernels."""

from __future__ import annotations

from pathlib import Path

from autotune.dispatch.dispatcher import Dispatcher
from autotune.store import Store

from .builders import CONV1, CONV2, H200, add_dispatcher, correct, dispatched, open_scope, run_trial, ticking


def test_a_dispatcher_comes_back_whole(store: Store) -> None:
    rows = (dispatched(CONV1), dispatched(CONV2, None, role="held out", nearest_us=11.0))  # type: ignore[arg-type]
    made = add_dispatcher(store, rows)
    (row,) = store.dispatchers.list("lenet")
    assert (row.document, row.layers, row.total_us, row.device) == (made.to_json(), rows, 36.0, H200)
    assert row.held_out
    assert Dispatcher.from_json(row.document) == made
    assert store.dispatchers.list() == (row,)


def test_a_dispatcher_is_stored_once_until_something_changes(store: Store) -> None:
    for _ in range(2):
        add_dispatcher(store, [dispatched(CONV1), dispatched(CONV2)])
    assert len(store.dispatchers.list("lenet")) == 1
    add_dispatcher(store, [dispatched(CONV1), dispatched(CONV2, time_us=11.0)])
    newest, first = store.dispatchers.list("lenet")
    assert (newest.layers[1].time_us, first.layers[1].time_us) == (11.0, 12.0)
    assert store.query("SELECT count(*), count(DISTINCT tuning_target_id) FROM trials").rows == ((1, 1),)


def test_a_dispatcher_is_no_kernel(path: Path) -> None:
    with Store(path, clock=ticking()) as store:
        run_trial(store, open_scope(store), correct(0, 50.0))
        add_dispatcher(store, [dispatched(CONV1), dispatched(CONV2)])
        assert [row.median_us for row in store.best.list()] == [50.0]
        assert len(store.trials.list()) == len(store.trials.list(generations="all")) == 1
        assert store.query(
            "SELECT layer, template, median_us, ranking_median_us FROM results WHERE template = 'dispatch'"
        ).rows == ((None, "dispatch", 36.0, None),)


def test_layers_to_be_tuned_can_be_asked_for(store: Store) -> None:
    add_dispatcher(store, [dispatched(CONV1), dispatched(CONV2, None)])
    waiting = store.query("SELECT name FROM dispatched_layers WHERE kernel IS NULL").rows
    assert waiting == (("conv2",),)
