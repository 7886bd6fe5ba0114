"""The outcome of a study's trial: a value to minimise, a failure, or pruned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from optuna import Study

CONSTRAINTS = "constraints"
"""Optuna's attribute of a trial's constraints: a list, or one attribute `constraints:NAME` for each."""
FAILED = math.inf
FARTHEST = 1e150
"""Larger values are replaced by this one, so that differences are finite."""


def outcome(
    study: Study,
    trial: FrozenTrial,
    state: TrialState,
    values: Sequence[float] | None,
    so_far: Sequence[float],
) -> float:
    """The value to minimise; FAILED for a trial that failed, was pruned, is infinite or violates a constraint.

    A trial that was pruned after it reported a value counts as no better than the median of the values `so_far`.
    """
    if any(amount > 0 for amount in amounts(trial).values()):
        return FAILED
    return objective(study, trial, state, values, so_far)


def objective(
    study: Study,
    trial: FrozenTrial,
    state: TrialState,
    values: Sequence[float] | None,
    so_far: Sequence[float],
) -> float:
    """The same whether or not the trial violates a constraint."""
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    if state == TrialState.COMPLETE and values:
        value = sign * values[0]
        return FAILED if value == math.inf else min(max(value, -FARTHEST), FARTHEST)
    step = trial.last_step
    if state != TrialState.PRUNED or step is None or not math.isfinite(trial.intermediate_values[step]):
        return FAILED
    correct = sorted(value for value in so_far if math.isfinite(value))
    cut_off = min(max(sign * trial.intermediate_values[step], -FARTHEST), FARTHEST)
    return max(cut_off, correct[len(correct) // 2]) if correct else cut_off


def amounts(trial: FrozenTrial) -> dict[str, float]:
    """The value of each constraint of a trial, violated above 0, from either form that Optuna stores."""
    attributes = trial.system_attrs
    listed = {str(place): value for place, value in enumerate(attributes.get(CONSTRAINTS) or ())}
    return listed | {key: value for key, value in attributes.items() if key.startswith(f"{CONSTRAINTS}:")}
