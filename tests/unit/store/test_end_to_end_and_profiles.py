"""End-to-end trials and profiles are read as stored, and a database without their tables can still be read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.errors import StoreError
from autotune.store import Store
from autotune.trial import END_TO_END

from .builders import DRIVER_590, H200, PROFILE, add_end_to_end, config_of, correct, open_scope, run_trial, source_of


def test_the_parts_of_an_end_to_end_trial_come_back(store: Store) -> None:
    add_end_to_end(store, 0, 2500.0)
    add_end_to_end(store, 1, 2400.0, hidden_fraction=None)
    first, second = store.end_to_end.list("lenet.conv1")
    assert (first.row.median_us, first.parts.copy_in_us, first.parts.hidden_fraction) == (2500.0, 400.0, 0.5)
    assert (first.parts.allocate_us, first.parts.host_bytes, first.parts.distinct_segments) == (90_000.0, 2_000_000, 4)
    assert first.row.trial.config.params == {"streams": 2, "segments": 4, "pinned": "yes"}
    assert second.parts.hidden_fraction is None


def test_end_to_end_times_are_never_the_best_of_kernels(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 30.0, source=source_of(config_of(0))), source_of(config_of(0)))
    add_end_to_end(store, 0, 10.0)
    assert [(row.row.measurement_mode, row.median_us) for row in store.best.list("lenet.conv1")] == [("cold", 30.0)]
    assert [row.measurement_mode for row in store.trials.list("lenet.conv1")] == ["cold", END_TO_END]


def test_a_time_that_is_no_number_is_refused_whole(store: Store) -> None:
    add_end_to_end(store, 0, 2500.0)
    with pytest.raises(StoreError, match="constraint failed"):
        add_end_to_end(store, 1, math.nan)
    assert len(store.end_to_end.list("lenet")) == 1


def test_profiles_come_back_oldest_first(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 30.0))
    row = store.trials.list("lenet.conv1")[0]
    second = replace(PROFILE, position=1, entry="reduce", achieved_occupancy=math.nan, stalls=())
    store.profiles.add(row, H200, DRIVER_590, [PROFILE, second])
    first, then = store.profiles.list("lenet")
    assert first.profile == PROFILE
    assert first.row.id == row.id
    assert then.profile == replace(second, achieved_occupancy=None)
    assert first.profiled_at == then.profiled_at
