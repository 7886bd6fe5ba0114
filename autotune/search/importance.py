"""trial -> search: which parameters determine a family's times.

Importances are Optuna's PED-ANOVA (Watanabe et al. 2023): how differently a parameter is set in the fastest tenth of
the trials. (Optuna's fANOVA needs scikit-learn.)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from autotune.search.state import FeasibleSpace, Floats

LEAST_TRIALS = 20
"""Minimum number of correct trials of a family."""


@dataclass(frozen=True, slots=True)
class Importance:
    """The importances of one family's parameters."""

    trials: int
    """correct ones"""
    params: tuple[tuple[str, float], ...]
    """parameter to its importance, largest first; they add up to 1"""


def importance(space: FeasibleSpace, times_us: Floats) -> Importance | None:
    """The importances from the rows of a space and their times; infinite times are ignored. None for fewer than
    LEAST_TRIALS.
    """
    timed = np.flatnonzero(np.isfinite(times_us))
    rows, log_times = np.asarray(space.rows[timed], dtype=np.int64), np.log(times_us[timed])
    varied = [column for column in range(len(space.params)) if len(np.unique(rows[:, column])) > 1]
    if len(timed) < LEAST_TRIALS or not varied or np.ptp(log_times) == 0:
        return None
    names = [space.params[column].name for column in varied]
    choices: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(tuple(range(len(space.params[column].values))))
        for name, column in zip(names, varied, strict=True)
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
    return Importance(len(timed), tuple(sorted({**shares, **fixed}.items(), key=lambda item: (-item[1], item[0]))))
