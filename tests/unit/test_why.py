"""Why a winner wins: the recorded trials one step away, the other families, and the failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from autotune.analysis.why import WhyRow, explain
from autotune.evaluation.null import NullEvaluator
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.problem import Layer
from autotune.store import BestRow, FinalsRow, Store, TrialRow
from autotune.study import Study
from autotune.trial import Config, Outcome, Value
from autotune.tuning.tune import tune

from .tiny import SMALL, bind, tiny, write_family

SLOW_DEFAULT = (("[64, 32, 128, 256]", "[128, 64, 32, 256]"), ("[1, 2, 3, 4, 6]", "[2, 1, 3, 4, 6]"))
"""Edits of the tiny family after which its default differs from the best config in three parameters."""

Told = Callable[..., tuple[BestRow, tuple[TrialRow, ...]]]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Tune the tiny family on the null device; returns the best and similar trials."""

    def run(trials: int = 1000, device: str = "") -> tuple[BestRow, tuple[TrialRow, ...]]:
        study = Study("small", (Layer("one", SMALL),), trials=trials, templates=("tiny",))
        with Store(tmp_path / "one.db") as store:
            tune(study, {"tiny": tiny(tmp_path, *SLOW_DEFAULT)}, NullEvaluator(device), store)
            (best,) = store.best.list("small")
            return best, store.trials.like(best.row)

    return run


def about(kind: str, rows: Iterable[WhyRow]) -> list[WhyRow]:
    return [row for row in rows if row.about == kind]


def test_steps_differ_from_the_winner_in_one_parameter(told: Told, tmp_path: Path) -> None:
    best, rows = told()
    steps = about("step", explain(best, rows))
    winner = best.row.trial.config.params
    for step in steps:
        assert step.config is not None
        values = step.config.params
        assert {name for name in winner if values[name] != winner[name]} == {step.parameter}
        assert values[step.parameter or ""] == step.value
    order = list(winner)
    assert steps == sorted(steps, key=lambda step: order.index(step.parameter or "")), "in the parameters' order"
    family = bind(tiny(tmp_path, *SLOW_DEFAULT))
    every = {(param.name, value) for param in family.template.params for value in param.values} - winner.items()
    feasible = {(name, value) for name, value in every if family.allows(Config.of("tiny", {**winner, name: value}))}
    assert {(step.parameter, step.value) for step in steps} == feasible < every, "the whole space was evaluated"


def test_finalists_are_compared_by_their_times_in_the_finals(told: Told, tmp_path: Path) -> None:
    best, rows = told()
    with Store(tmp_path / "one.db", create=False) as store:
        finals = store.finals.list("small")[-1]
    times = {trial_id: timing.median_us for trial_id, timing in finals.timings}
    numbers = {step.trial for step in about("step", explain(best, rows))}
    other = next(row for row in rows if row.id in times and row.trial.number in numbers)
    assert other.trial.timing is not None
    lucky = dataclasses.replace(other.trial.timing, median_us=best.median_us * 0.9)
    lucky_row = dataclasses.replace(other, trial=dataclasses.replace(other.trial, timing=lucky))
    rows = tuple(lucky_row if row.id == other.id else row for row in rows)

    def judged(held: FinalsRow | None = None) -> WhyRow:
        return next(
            step for step in about("step", explain(best, rows, finals=held)) if step.trial == other.trial.number
        )

    assert judged().verdict == "faster in the search"
    step = judged(finals)
    assert (step.verdict, step.time_us) == ("slower", times[other.id])
    assert step.over_winner == pytest.approx(times[other.id] / best.median_us)


def test_values_are_refused_by_named_rules(told: Told, tmp_path: Path) -> None:
    best, _ = told(trials=1)

    def refused(values: Mapping[str, Value], bound: BoundTemplate) -> dict[tuple[str | None, Value | None], str | None]:
        trial = dataclasses.replace(best.row.trial, config=Config.of("tiny", values))
        one = dataclasses.replace(best, row=dataclasses.replace(best.row, trial=trial))
        return {(row.parameter, row.value): row.note for row in about("refused", explain(one, [one.row], bound=bound))}

    older: dict[str, Value] = {"threads": 256, "turns": 2, "order": "taps"}
    config: dict[str, Value] = {**older, "fast": False}
    found = refused(config, bind(tiny(tmp_path)))
    assert ("turns", 1) not in found
    assert ("turns", 2) not in found, "the winner's own"
    assert found["turns", 3] == "a block computes at most 512 outputs"
    assert found["fast", True] == "unrolling needs the taps inside"
    other = bind(tiny(tmp_path, ("fast", "quick"), ("not fast", "not quick"), ("if fast", "if quick"), name="other"))
    assert refused(config, other) == {}, "a family with other parameters says nothing"
    assert refused(older, bind(tiny(tmp_path))) == found


def test_families_are_ranked_and_failures_counted(tmp_path: Path) -> None:
    other = write_family(tmp_path, ("float sum = 0.0f", "float sum = 0.f"), name="other")
    families = {"tiny": tiny(tmp_path), "other": load_template(other)}
    study = Study("small", (Layer("one", SMALL),), trials=20)
    with Store(tmp_path / "one.db") as store:
        tune(study, families, NullEvaluator("wrong=0.2,crash=0.2"), store)
        (best,) = store.best.list("small")
        rows = store.trials.like(best.row)
    found = list(explain(best, rows))
    first, slower = about("family", found)
    assert {first.template, slower.template} == {"tiny", "other"}
    assert (first.template, first.config, first.over_winner) == (
        best.row.trial.config.template,
        best.row.trial.config,
        1.0,
    )
    assert slower.over_winner == pytest.approx((slower.time_us or 0.0) / (best.row.median_us or 1.0))
    assert (first.trials or 0) + (slower.trials or 0) == 20
    failed = [row for row in rows if row.trial.outcome != Outcome.CORRECT]
    failures = about("failure", found)
    counts = [row.trials or 0 for row in failures]
    assert sum(counts) == len(failed)
    assert counts == sorted(counts, reverse=True)
    assert len({(row.template, row.outcome, row.note) for row in failures}) == len(failures), "each once"
    assert {"wrong_result", "runtime"} == {str(row.outcome).split()[0] for row in failures}


def test_other_versions_of_the_family_do_not_testify(told: Told) -> None:
    best, rows = told()
    assert about("default", explain(best, rows))
    other = [row if row.id == best.row.id else dataclasses.replace(row, template_hash="ab" * 32) for row in rows]
    assert not about("step", explain(best, other))


def test_a_predicted_config_is_not_the_default(told: Told) -> None:
    best, rows = told()
    (default,) = about("default", explain(best, rows))
    first = min((row for row in rows if row.trial.source_hash), key=lambda row: row.trial.number)
    assert default.trial == first.trial.number
    predicted = [dataclasses.replace(row, proposed_by="cost_model") if row is first else row for row in rows]
    assert not about("default", explain(best, predicted))


def test_the_default_as_winner_needs_no_explanation(told: Told) -> None:
    best, rows = told(trials=1)
    (default,) = about("default", explain(best, rows))
    assert (default.config, default.over_winner) == (best.row.trial.config, 1.0)
