"""Answers that an agent would not give: the coordinator understands none of them, and stores nothing of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from autotune.cluster.messages import Collected, Collecting, News, check_news
from autotune.errors import StudyError
from autotune.store import Delivery
from autotune.store.sqlite.database import NOT_UNDERSTOOD

pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")
if importlib.util.find_spec("distributed") is not None:
    from autotune.cluster.ledger import Ledger
    from tests.cluster.test_agent import Open, begin, leased, ledger, open_agent

    __all__ = ["begin", "ledger", "open_agent"]


def of_collected(**changed: object) -> Callable[[News], News]:
    """The answer with other fields of what was collected."""
    return lambda news: replace(news, collected=(replace(news.collected[0], **changed),))  # type: ignore[arg-type]


def of_delivery(change: Callable[[Delivery], object]) -> Callable[[News], News]:
    """The answer with another first delivery."""

    def changed(news: News) -> News:
        (collected,) = news.collected
        first, *rest = collected.deliveries
        return of_collected(deliveries=(change(first), *rest))(news)

    return changed


def of_trial(**changed: object) -> Callable[[News], News]:
    """The answer with other columns of a trial."""
    return of_delivery(lambda each: replace(each, trial={**each.trial, **changed}))  # type: ignore[dict-item]


def of_lease(**changed: object) -> Callable[[News], News]:
    """The answer with other fields of the lease that its trials are of."""
    return lambda news: of_collected(lease=replace(news.collected[0].lease, **changed))(news)  # type: ignore[type-var]


def of_class(**changed: object) -> Callable[[News], News]:
    """The answer with other fields of that lease's class of devices."""
    return lambda news: of_lease(device_class=replace(news.collected[0].lease.device_class, **changed))(news)  # type: ignore[union-attr]


ANSWERS: Mapping[str, Callable[[News], object]] = {
    "nothing": lambda _: None,
    "a class": lambda _: News,
    "nothing collected": lambda news: replace(news, collected=None),  # type: ignore[arg-type]
    "numbers collected": lambda news: replace(news, collected=(1, 2)),  # type: ignore[arg-type]
    "a state that is text": lambda news: replace(news, state="x"),  # type: ignore[arg-type]
    "retired by a number": lambda news: replace(news, retired=7),  # type: ignore[arg-type]
    "a lease that is text": of_collected(lease="x"),
    "a lease of no class": of_lease(device_class=None),
    "a class that is a list": of_class(label=[]),
    "a class of another device": of_class(label="cuda:another:00000000"),
    "a class of no device": of_class(info=None),
    "a lease of no layer": of_lease(layer=None),
    "a time below zero": of_delivery(lambda each: replace(each, measurement={**each.measurement, "median_us": -1.0})),  # type: ignore[dict-item]
    "counts that are text": of_collected(evaluated="x", best_us="y"),
    "no deliveries": of_collected(deliveries=None),
    "deliveries that are text": of_collected(deliveries=("x",)),
    "an id that is text": of_delivery(lambda each: replace(each, id="x")),  # type: ignore[arg-type]
    "no trial": of_delivery(lambda each: replace(each, trial=None)),  # type: ignore[arg-type]
    "a kernel without columns": of_delivery(lambda each: replace(each, source={"hash": "x"})),
    "a time without columns": of_delivery(lambda each: replace(each, measurement={"samples_us": "[]"})),
    "an outcome of its own": of_trial(outcome="splendid"),
    "a number that is text": of_trial(number="seven"),
    "a number of 70 bits": of_trial(number=2**70),
    "a time that is no number": of_trial(median_us=float("nan")),
    "a message that is a type": of_trial(message=object),
    "a date that is none": of_trial(ended_at="yesterday"),
    "a config that is a list": of_trial(config="[1]"),
    "a config of deep nesting": of_trial(config="[" * 100_000),
    "a column of another row": of_trial(study_id=99),
    "a column that is SQL": of_trial(**{"message) VALUES (1); --": 1}),
}


@pytest.fixture
def news(ledger: Ledger, open_agent: Open) -> News:
    """What an agent answers once it has run a line."""
    agent = open_agent()
    agent.run(leased(ledger, agent))
    return agent.collect(Collecting(ledger.owner, 0, frozenset(), {}, 0, 1.0))


def test_answers_that_are_none_are_not_understood(news: News) -> None:
    check_news(news)
    taken = []
    for name, make in ANSWERS.items():
        with suppress(*NOT_UNDERSTOOD):
            check_news(make(news))
            taken.append(name)
    assert not taken


def test_what_comes_twice_counts_once(ledger: Ledger, news: News) -> None:
    (collected,) = news.collected
    assert isinstance(collected, Collected)
    assert collected.lease is not None
    ledger.store([(collected.lease, collected)])
    stored = ledger.trials
    ledger.store([(collected.lease, collected)] * 3)
    assert ledger.trials == stored > 0


def test_trials_of_a_family_that_is_not_here_end_in_a_line(ledger: Ledger, news: News) -> None:
    (collected,) = of_delivery(lambda each: replace(each, family="nope"))(news).collected
    assert collected.lease is not None
    with pytest.raises(StudyError, match="an agent has trials of nope; give its --templates"):
        ledger.store([(collected.lease, collected)])
    assert ledger.trials == 0
