"""trial -> search: which parameters determine a family's times, and which only together.

Importances are Optuna's PED-ANOVA (Watanabe et al. 2023): how differently a parameter is set in the fastest tenth of
the trials. (Optuna's fANOVA needs scikit-learn.) Interactions are judged by prediction: the log time is fitted by a sum
of single effects, and a pair counts by how much of the remaining variance its combinations explain in held-out trials.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from autotune.search.state import FeasibleSpace, Floats, Ints

LEAST_TRIALS = 20
"""Minimum number of correct trials of a family."""
RIDGE = 1.0
"""Shrinkage: this many trials without effect are added to each value and each combination."""
LEAST_TOGETHER = 3
"""Minimum number of trials of a combination that is reported."""
WORTH = 0.02
"""Minimum share of the variance of an interaction that is reported."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two parameters whose best values depend on each other."""

    params: tuple[str, str]
    share: float
    """share of the variance of the log time in held-out trials, in addition to both parameters alone"""
    values: tuple[str, str]
    """the combination that differs most from what its single values predict"""
    ratio: float
    """its time divided by the prediction: below 1 the two work well together"""
    trials: int
    """number of trials with the combination"""


@dataclass(frozen=True, slots=True)
class Importance:
    """The importances of one family's parameters."""

    trials: int
    """correct ones"""
    params: tuple[tuple[str, float], ...]
    """parameter to its importance, largest first; they add up to 1"""
    alone: float
    """share of the variance that the single parameters explain in held-out trials; below 0: nothing"""
    interactions: tuple[Interaction, ...]
    """those large enough to report, largest first"""


def importance(space: FeasibleSpace, times_us: Floats) -> Importance | None:
    """The importances from the rows of a space and their times; infinite times are ignored. None for fewer than
    LEAST_TRIALS.
    """
    timed = np.flatnonzero(np.isfinite(times_us))
    rows, log_times = np.asarray(space.rows[timed], dtype=np.int64), np.log(times_us[timed])
    varied = [column for column in range(len(space.params)) if len(np.unique(rows[:, column])) > 1]
    if len(timed) < LEAST_TRIALS or not varied or np.ptp(log_times) == 0:
        return None
    one_hot = np.hstack([np.equal.outer(rows[:, column], np.unique(rows[:, column])) for column in varied])
    fitted, left_out = _ridge(one_hot.astype(np.float64), log_times)
    variance = float(log_times.var())
    found = sorted(_interactions(space, rows, varied, log_times - fitted, left_out, variance), key=lambda i: -i.share)
    return Importance(
        trials=len(timed),
        params=_ped_anova(space, rows, log_times, varied),
        alone=1.0 - float(np.mean(left_out**2)) / variance,
        interactions=tuple(one for one in found if one.share >= WORTH and one.trials >= LEAST_TOGETHER),
    )


def _ped_anova(space: FeasibleSpace, rows: Ints, log_times: Floats, varied: list[int]) -> tuple[tuple[str, float], ...]:
    """Optuna's importances of the parameters that were varied; 0 for the others."""
    names = [space.params[column].name for column in varied]
    values = [space.params[column].values for column in varied]
    choices: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(tuple(range(len(of)))) for name, of in zip(names, values, strict=True)
    }
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    optuna.logging.set_verbosity(verbosity)
    for row, value in zip(rows, log_times, strict=True):
        chosen = {name: int(row[column]) for name, column in zip(names, varied, strict=True)}
        study.add_trial(optuna.trial.create_trial(params=chosen, distributions=choices, value=float(value)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    fixed = {param.name: 0.0 for param in space.params if param.name not in names}
    return tuple(sorted({**shares, **fixed}.items(), key=lambda item: -item[1]))


def _ridge(columns: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Fitted values and leave-one-out errors of a ridge regression on columns of zeros and ones."""
    mean = float(targets.mean())
    inverse = np.linalg.inv(columns.T @ columns + RIDGE * np.eye(columns.shape[1]))
    hat = columns @ inverse @ columns.T
    fitted = mean + hat @ (targets - mean)
    return fitted, (targets - fitted) / np.maximum(1 - np.diag(hat), 1e-9)


def _interactions(
    space: FeasibleSpace, rows: Ints, varied: list[int], residuals: Floats, left_out: Floats, variance: float
) -> Iterator[Interaction]:
    """Every pair with the share of the residuals that its combinations explain."""
    before = float(np.mean(left_out**2))
    for one, two in combinations(varied, 2):
        count = len(space.params[two].values)
        _, cell = np.unique(rows[:, one] * count + rows[:, two], return_inverse=True)
        sums, counts = _grouped(cell, residuals)
        without = (sums[cell] - residuals) / (counts[cell] - 1 + RIDGE)  # of the others in the combination
        share = (before - float(np.mean((left_out - without) ** 2))) / variance
        effects = np.where(counts >= LEAST_TOGETHER, sums / (counts + RIDGE), 0.0)
        farthest = int(np.argmax(np.abs(effects)))
        row = rows[int(np.flatnonzero(cell == farthest)[0])]
        first, second = space.params[one], space.params[two]
        yield Interaction(
            params=(first.name, second.name),
            share=share,
            values=(str(first.values[row[one]]), str(second.values[row[two]])),
            ratio=float(np.exp(effects[farthest])),
            trials=int(counts[farthest]),
        )


def _grouped(groups: npt.NDArray[np.intp], values: Floats) -> tuple[Floats, Floats]:
    """Sum and number of the values of each group."""
    return np.bincount(groups, weights=values).astype(np.float64), np.bincount(groups).astype(np.float64)
