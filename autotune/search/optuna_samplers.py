"""Optuna's samplers, which a study may name, restricted to feasible new configs."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial

from autotune.errors import StudyError
from autotune.search.encoding import Encoding, Params
from autotune.search.proposer import uniform
from autotune.search.space_model import Choose, ListedSpaceModel

DRAWS = 8
"""Number of draws from an Optuna sampler before its last one is moved to the nearest feasible new config."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of Optuna's samplers, as a study may name it."""

    make: Callable[[int], BaseSampler]
    """makes a sampler from a seed"""
    ordinal: bool = False
    """encodes values by their position instead of as categories"""
    keeps_state: bool = False
    """stores attributes on the trials that it is asked for, so a resumed search must ask for them again"""
    package: str = ""
    """the package that must be installed in addition to Optuna"""


def _tpe(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TPESampler(seed=seed, group=True, multivariate=True, constant_liar=True, warn_independent_sampling=False)


def _cmaes(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CmaEsSampler(seed=seed, with_margin=True, warn_independent_sampling=False)


PEERS: Mapping[str, Peer] = {
    "tpe": Peer(_tpe),
    "tpe_ordinal": Peer(_tpe, ordinal=True),
    "nsgaii": Peer(lambda seed: NSGAIISampler(seed=seed, population_size=20), keeps_state=True),
    "cmaes": Peer(_cmaes, ordinal=True, keeps_state=True, package="cmaes"),
}
"""Optuna's samplers by the name in a study. Excluded: its GP (takes seconds per proposal), grid and brute force (a
space within the budget is enumerated anyway), and QMC (needs scipy, ignores constraints).
"""


def require(sampler: str, peer: Peer) -> None:
    """Raise StudyError if a sampler's package is not installed."""
    if peer.package and importlib.util.find_spec(peer.package) is None:
        raise StudyError(f"sampler = {sampler!r} needs the package {peer.package}: pip install {peer.package}")


@dataclass(slots=True)
class RejectedProposals:
    """The number of proposals that could not be used. They cost nothing; at most DRAWS per config."""

    infeasible: int = 0
    repeated: int = 0


def by_chance(
    rows: ListedSpaceModel, _study: optuna.Study, _trial: FrozenTrial, rng: np.random.Generator, forced: int | None
) -> int:
    """A random free config of a random family."""
    return uniform(rows.state, rng) if forced is None else forced


def drawing(peer: Peer, refused: RejectedProposals) -> Choose:
    """Choose an Optuna sampler's proposal: its first feasible new draw, or the free config nearest to its last draw.

    A given config is used instead, but the sampler is asked all the same, because some samplers count their asks.
    """

    def choose(
        rows: ListedSpaceModel, study: optuna.Study, trial: FrozenTrial, rng: np.random.Generator, forced: int | None
    ) -> int:
        state, encoding = rows.state, rows.encoding
        inner = peer.make(int(rng.integers(2**32)))
        params: Params = {}
        for _ in range(1 if forced is not None or peer.keeps_state else DRAWS):
            params = _params(inner, encoding, study, trial)
            if forced is not None:
                return forced
            index = encoding.index_of(params)
            if index is not None and state.free[index]:
                return index
            if index is None:
                refused.infeasible += 1
            else:
                refused.repeated += 1
        return state.nearest_free(encoding.family_index(params), encoding.row(params), rng)

    return choose


def _params(inner: BaseSampler, encoding: Encoding, study: optuna.Study, trial: FrozenTrial) -> Params:
    """One complete draw of an Optuna sampler: the parameters that it samples jointly, then the others one by one."""
    inner.before_trial(study, trial)
    params: Params = {}
    space = inner.infer_relative_search_space(study, trial)
    if space:
        params.update(inner.sample_relative(study, trial, space))
    for name, dist in encoding.family.items():
        if name not in params:
            params[name] = inner.sample_independent(study, trial, name, dist)
    for name, dist in encoding.own(encoding.family_index(params)).items():
        if name not in params:
            params[name] = inner.sample_independent(study, trial, name, dist)
    return params
