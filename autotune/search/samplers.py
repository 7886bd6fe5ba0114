"""Optuna samplers over a landscape: one that chooses a feasible row, and what Optuna's own make of it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial

from autotune.errors import StudyError
from autotune.search.encoding import FAMILY, Encoding
from autotune.search.landscape import Landscape
from autotune.trial import Value

DRAWS = 8
"""Draws from an Optuna sampler before its last one is moved to the nearest feasible new config."""

Choose = Callable[[optuna.Study, FrozenTrial], int]
"""Picks a landscape index for an asked trial."""


class RowSampler(BaseSampler):
    """Hands Optuna a whole feasible config at once, so that no infeasible or repeated one is ever suggested."""

    def __init__(self, encoding: Encoding, choose: Choose) -> None:
        self._encoding = encoding
        self._choose = choose
        self.index = -1
        """the landscape index chosen last"""

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002  (Optuna's signature)
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Every parameter of every family."""
        return self._encoding.every

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Value]:
        """The parameters of one feasible config."""
        self.index = self._choose(study, trial)
        return self._encoding.params(self.index)

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        param_name: str,
        param_distribution: BaseDistribution,  # noqa: ARG002
    ) -> Value:
        """Never used: every parameter is chosen with the others."""
        raise AssertionError(f"{param_name} was not chosen together with its config")


@dataclass(frozen=True, slots=True)
class Peer:
    """One of Optuna's samplers, as a study may name it."""

    make: Callable[[int], BaseSampler]
    """a fresh sampler from a seed"""
    ordinal: bool = False
    """sees values by their position instead of as categories"""
    keeps_state: bool = False
    """leaves notes on the trials it was asked for, so that a resumed search must ask for them again"""
    package: str = ""
    """what has to be installed beside Optuna"""


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
"""Optuna's samplers by the name that a study gives. Left out: its GP (seconds a proposal), grid and brute force
(a space within the budget is enumerated anyway), QMC (needs scipy, knows no constraint)."""


def require(sampler: str, peer: Peer) -> None:
    """Raise StudyError when a sampler's package is not installed."""
    if peer.package and importlib.util.find_spec(peer.package) is None:
        raise StudyError(f"sampler = {sampler!r} needs the package {peer.package}: pip install {peer.package}")


@dataclass(slots=True)
class Refused:
    """How many proposals could not be used; they are free, and at most DRAWS for each config that is."""

    infeasible: int = 0
    repeated: int = 0


def draw(
    peer: Peer,
    landscape: Landscape,
    encoding: Encoding,
    rng: np.random.Generator,
    forced: int | None,
    refused: Refused,
) -> Choose:
    """What an Optuna sampler proposes: its first feasible new draw, else the free config nearest to its last draw.

    With `forced` the sampler is asked all the same (some count their asks) and then overruled.
    """
    inner = peer.make(int(rng.integers(2**32)))

    def choose(study: optuna.Study, trial: FrozenTrial) -> int:
        params: dict[str, Value] = {}
        for _ in range(1 if forced is not None or peer.keeps_state else DRAWS):
            params = _params(inner, encoding, study, trial)
            if forced is not None:
                return forced
            index = landscape.index_of(encoding.family_index(params), encoding.row(params))
            if index is not None and landscape.free[index]:
                return index
            if index is None:
                refused.infeasible += 1
            else:
                refused.repeated += 1
        return landscape.nearest_free(encoding.family_index(params), encoding.row(params), rng)

    return choose


def _params(inner: BaseSampler, encoding: Encoding, study: optuna.Study, trial: FrozenTrial) -> dict[str, Value]:
    """One whole draw of an Optuna sampler: what it samples jointly, then the rest one by one."""
    inner.before_trial(study, trial)
    params: dict[str, Value] = {}
    space = inner.infer_relative_search_space(study, trial)
    if space:
        params.update(inner.sample_relative(study, trial, space))
    if FAMILY not in params:
        params[FAMILY] = inner.sample_independent(study, trial, FAMILY, encoding.family)
    for name, dist in encoding.own(encoding.family_index(params)).items():
        if name not in params:
            params[name] = inner.sample_independent(study, trial, name, dist)
    return params
