"""Why a winner wins: the recorded trials one step from it, the other families, and the failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.analysis.why import explain, refusals
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_template
from autotune.problem import Layer
from autotune.store import BestRow, Store, TrialRow
from autotune.study import Study
from autotune.trial import Config, Outcome
from autotune.tuning.tune import tune

from .tiny import SMALL, bind, tiny, write_family

SLOW_DEFAULT = (("[64, 32, 128, 256]", "[128, 64, 32, 256]"), ("[1, 2, 3, 4, 6]", "[2, 1, 3, 4, 6]"))
"""Edits of the tiny family after which its default differs from the best config in three parameters."""

Told = Callable[..., tuple[BestRow, tuple[TrialRow, ...]]]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Tune the tiny family on the null device; the best and the trials like it."""

    def run(trials: int = 1000, device: str = "") -> tuple[BestRow, tuple[TrialRow, ...]]:
        study = Study("small", (Layer("one", SMALL),), trials=trials, templates=("tiny",))
        with Store(tmp_path / "one.db") as store:
            tune(study, {"tiny": tiny(tmp_path, *SLOW_DEFAULT)}, NullEvaluator(device), store)
            (best,) = store.best.list("small")
            return best, store.trials.like(best.row)

    return run


def test_steps_differ_from_the_winner_in_one_parameter(told: Told, tmp_path: Path) -> None:
    best, rows = told()
    why = explain(best, rows)
    winner = best.row.trial.config.params
    for step in why.steps:
        values = step.row.trial.config.params
        assert {name for name in winner if values[name] != winner[name]} == {step.param}
        assert values[step.param] == step.value
    assert [step.param for step in why.steps] == sorted((step.param for step in why.steps), key=list(winner).index), (
        "in the parameters' order"
    )
    family = bind(tiny(tmp_path, *SLOW_DEFAULT))
    every = {(param.name, value) for param in family.template.params for value in param.values} - winner.items()
    feasible = {
        (name, value) for name, value in every if family.legal.allows(Config.of("tiny", {**winner, name: value}))
    }
    assert {(step.param, step.value) for step in why.steps} == feasible < every, "the whole space was evaluated"


def test_values_are_refused_by_named_rules(tmp_path: Path) -> None:
    config = Config.of("tiny", {"threads": 256, "turns": 2, "order": "taps", "fast": False})
    found = {(one.param, one.value): one.rules for one in refusals(bind(tiny(tmp_path)), config)}
    assert ("turns", 1) not in found
    assert ("turns", 2) not in found, "the winner's own"
    assert found["turns", 3] == "a block computes at most 512 outputs"
    assert found["fast", True] == "unrolling needs the taps inside"
    other = bind(tiny(tmp_path, ("fast", "quick"), ("not fast", "not quick"), ("if fast", "if quick"), name="other"))
    assert refusals(other, config) == (), "a family with other parameters says nothing"
    older = Config.of("tiny", {"threads": 256, "turns": 2, "order": "taps"})
    assert {(one.param, one.value): one.rules for one in refusals(bind(tiny(tmp_path)), older)} == found


def test_families_are_ranked_and_failures_counted(tmp_path: Path) -> None:
    other = write_family(tmp_path, ("float sum = 0.0f", "float sum = 0.f"), name="other")
    families = {"tiny": tiny(tmp_path), "other": load_template(other)}
    study = Study("small", (Layer("one", SMALL),), trials=20)
    with Store(tmp_path / "one.db") as store:
        tune(study, families, NullEvaluator("wrong=0.2,crash=0.2"), store)
        (best,) = store.best.list("small")
        rows = store.trials.like(best.row)
    why = explain(best, rows)
    assert {family.template for family in why.families} == {"tiny", "other"}
    assert why.families[0].template == best.row.trial.config.template
    assert (why.families[0].ratio, why.families[0].best) == (1.0, why.winner)
    slower = why.families[1]
    assert slower.best is not None
    assert slower.ratio == pytest.approx((slower.best.median_us or 0.0) / (best.row.median_us or 1.0))
    assert sum(family.evaluated for family in why.families) == 20
    failed = [row for row in rows if row.trial.outcome != Outcome.CORRECT]
    assert sum(failures.trials for failures in why.failures) == len(failed)
    words = {(failures.template, failures.outcome, failures.reason, failures.message) for failures in why.failures}
    assert len(words) == len(why.failures), "each once"
    assert {"wrong_result", "runtime"} == {failures.outcome for failures in why.failures}
    assert [failures.trials for failures in why.failures] == sorted(
        (failures.trials for failures in why.failures), reverse=True
    )


def test_other_versions_of_the_family_do_not_testify(told: Told) -> None:
    best, rows = told()
    assert explain(best, rows).default is not None
    other = [row if row.id == best.row.id else dataclasses.replace(row, template_hash="ab" * 32) for row in rows]
    why = explain(best, other)
    assert why.steps == ()


def test_the_default_as_winner_needs_no_explanation(told: Told) -> None:
    best, rows = told(trials=1)
    why = explain(best, rows)
    assert why.default is not None
    assert why.default.trial.config == best.row.trial.config
    assert why.default_ratio == 1.0
