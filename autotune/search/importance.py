"""trial -> search: find out which parameters determine a family's times.

Importances are Optuna's PED-ANOVA (Watanabe et al. 2023): the difference between the distribution of a parameter's
values in the fastest tenth of the trials and in all trials. (Optuna's fANOVA needs scikit-learn.)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from autotune.trial import Config, Value

LEAST_TRIALS = 20
"""Number of correct trials needed to compute a family's importances."""


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of each parameter of a family."""

    trials: int
    """number of correct trials"""
    params: tuple[tuple[str, float], ...]
    """parameter to its importance, largest first; they add up to 1"""


def importance(params: Mapping[str, Sequence[Value]], timed: Iterable[tuple[Config, float]]) -> Importance | None:
    """Compute the importances of parameters, given with their values, from configs and their times in microseconds.

    Returns None if there are fewer than LEAST_TRIALS configs, or if no parameter or no time varies.
    """
    rows = sorted(
        ([values.index(config.params[name]) for name, values in params.items()], math.log(time_us))
        for config, time_us in timed
    )
    varied: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(tuple(range(len(params[name]))))
        for column, name in enumerate(params)
        if len({places[column] for places, _ in rows}) > 1
    }
    if len(rows) < LEAST_TRIALS or not varied or len({log_time for _, log_time in rows}) == 1:
        return None
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    optuna.logging.set_verbosity(verbosity)
    for places, log_time in rows:
        chosen = {name: place for name, place in zip(params, places, strict=True) if name in varied}
        study.add_trial(optuna.trial.create_trial(params=chosen, distributions=varied, value=log_time))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    fixed = dict.fromkeys(params.keys() - varied.keys(), 0.0)
    return Importance(len(rows), tuple(sorted({**shares, **fixed}.items(), key=lambda item: (-item[1], item[0]))))
