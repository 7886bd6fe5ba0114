"""The samplers besides the project's own that a study may name, restricted to feasible new configs."""

from __future__ import annotations

import warnings

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial

from autotune.search.encoding import Encoding, Params
from autotune.search.proposer import uniform
from autotune.search.space_model import ListedSpaceModel

DRAWS = 8
"""Number of draws from TPE before its last one is moved to the nearest feasible new config."""


def by_chance(rows: ListedSpaceModel, _study: optuna.Study, _trial: FrozenTrial, rng: np.random.Generator) -> int:
    """A random free config of a random family."""
    return uniform(rows.state, rng)


def by_tpe(rows: ListedSpaceModel, study: optuna.Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
    """The first feasible new draw of Optuna's TPE, or the free config nearest to its last draw."""
    state, encoding = rows.state, rows.encoding
    tpe = _tpe(int(rng.integers(2**32)))
    params: Params = {}
    for _ in range(DRAWS):
        params = _params(tpe, encoding, study, trial)
        index = encoding.index_of(params)
        if index is not None and state.free[index]:
            return index
    return state.nearest_free(encoding.family_index(params), encoding.row(params), rng)


def _tpe(seed: int) -> TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TPESampler(seed=seed, group=True, multivariate=True, constant_liar=True, warn_independent_sampling=False)


def _params(tpe: TPESampler, encoding: Encoding, study: optuna.Study, trial: FrozenTrial) -> Params:
    """One complete draw: the parameters that are sampled jointly, then the others one by one."""
    tpe.before_trial(study, trial)
    params: Params = {}
    space = tpe.infer_relative_search_space(study, trial)
    if space:
        params.update(tpe.sample_relative(study, trial, space))
    for name, dist in encoding.family.items():
        if name not in params:
            params[name] = tpe.sample_independent(study, trial, name, dist)
    for name, dist in encoding.own(encoding.family_index(params)).items():
        if name not in params:
            params[name] = tpe.sample_independent(study, trial, name, dist)
    return params
