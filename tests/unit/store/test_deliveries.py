"""Trials leave one database for another as what they are, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.store import Finals, Scope, Store, TrialRow, Verdict
from autotune.trial import Outcome

from .builders import config_of, correct, failed, open_scope, run_trial, source_of, timing_of


@pytest.fixture
def there(tmp_path: Path, blank: bytes) -> Iterator[Store]:
    path = tmp_path / "there.db"
    path.write_bytes(blank)
    with Store(path) as opened:
        yield opened


def fill(store: Store) -> Scope:
    """A correct kernel, one that fails, a copy of the first, and one that still runs."""
    scope = open_scope(store)
    source = source_of(config_of(1))
    run_trial(store, scope, correct(1, 20.0, source=source), source)
    run_trial(store, scope, failed(2), source_of(config_of(2)))
    known = store.known.get(scope, source.hash)
    assert known is not None
    store.known.reuse(scope, 3, config_of(3), known)
    store.trials.begin(scope, 4, config_of(4), source_of(config_of(4)))
    return scope


def told(rows: tuple[TrialRow, ...]) -> list[object]:
    """All of a trial but where it is stored."""
    return [(row.trial, row.started_at, row.ended_at, row.reused, row.proposed_by, row.ranked_us) for row in rows]


def test_what_is_delivered_is_as_it_was_measured(store: Store, there: Store) -> None:
    scope = fill(there)
    deliveries = there.deliveries.list(scope)
    assert [delivery.running for delivery in deliveries] == [False, False, False, True]
    here = open_scope(store)
    assert store.deliveries.add([(here, deliveries)]) == 3
    assert told(store.trials.list("lenet")) == told(there.trials.list("lenet"))[:3], "all but the running one"
    assert {row.origin for row in store.trials.list("lenet")} == {"measured"}
    assert store.sources.get(source_of(config_of(1)).hash) == source_of(config_of(1))


def test_a_delivery_that_comes_twice_adds_nothing(store: Store, there: Store) -> None:
    deliveries = there.deliveries.list(fill(there))
    here = open_scope(store)
    assert [store.deliveries.add([(here, deliveries)]) for _ in range(3)] == [3, 0, 0]
    assert len(store.trials.list("lenet")) == 3


def test_two_trials_of_one_number_are_both_kept(store: Store, there: Store) -> None:
    deliveries = there.deliveries.list(fill(there))
    here = open_scope(store)
    run_trial(store, here, replace(correct(1, 7.0), config=config_of(9)))
    assert store.deliveries.add([(here, deliveries)]) == 3
    assert sorted(row.trial.number for row in store.trials.list("lenet")) == [1, 2, 3, 4]
    assert {str(row.trial.config) for row in store.trials.list("lenet")} == {
        str(config_of(number)) for number in (9, 1, 2, 3)
    }


def test_a_trial_that_was_begun_here_ends_with_its_delivery(store: Store, there: Store) -> None:
    deliveries = there.deliveries.list(fill(there))
    here = open_scope(store)
    store.trials.begin(here, 0, config_of(1), source_of(config_of(1)))
    assert store.deliveries.add([(here, deliveries)]) == 3
    row = store.trials.list("lenet", sort="median")[0]
    assert (row.trial.number, row.trial.outcome, row.median_us) == (0, Outcome.CORRECT, 20.0)
    assert store.trials.suspects(here) == ()


def test_without_its_text_a_kernel_is_known_and_gets_the_text_later(store: Store, there: Store) -> None:
    deliveries = there.deliveries.list(fill(there))
    here = open_scope(store)
    store.deliveries.add([(here, [delivery.without_text for delivery in deliveries])])
    source = source_of(config_of(1))
    known = store.known.get(here, source.hash)
    assert known is not None
    assert known.median_us == 20.0
    assert store.sources.get(source.hash) is None
    store.trials.begin(here, 8, config_of(8), source)
    assert store.sources.get(source.hash) == source


def test_the_latest_finals_are_those_of_all_that_was_measured(store: Store) -> None:
    scope = open_scope(store)
    assert store.finals.latest(scope) is None
    for number in (1, 2):
        run_trial(store, scope, correct(number, 10.0 * number))
    verdict = Verdict("default", "win", 9.0, 19.0, 2, "fp32")
    held = Finals(1, ((1, timing_of(9.0)), (2, timing_of(19.0))), (verdict,))
    store.finals.add(scope, held)
    assert store.finals.latest(scope) == held
    run_trial(store, scope, correct(3, 5.0))
    assert store.finals.latest(scope) is None, "a trial that they do not know was measured since"
