"""The search in a space that is not given: its parameters are all that the study's trials have suggested so far.

All trials are points of one Gaussian process; some lack some of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalChoiceType
from optuna.trial import FrozenTrial, TrialState

from autotune.search.branches import Branches, Flags
from autotune.search.coordinates import Axes, Axis
from autotune.search.encoding import FIXED, Params
from autotune.search.gaussian_process import PRIOR_LOG_NOISE, Posterior
from autotune.search.proposer import LOOK, LOOK_EVERY
from autotune.search.space_model import FAILED, amounts, objective
from autotune.search.state import Floats
from autotune.search.surrogate import (
    MODELLED_FROM,
    Scale,
    Surrogate,
    log_chance_below,
    log_expected_improvement,
    weighed,
)

if TYPE_CHECKING:
    from optuna import Study

FIRST = 4
"""Trials before the model is used."""
FIRST_OF_BRANCH = 2
"""Trials of each alternative branch before the model is used. Each has LOOK trials before the model alone decides."""
SPREAD_FROM = 10
"""Number of random points from which the first points are chosen, each the farthest from those before. With many more
points the farthest would be corners of the space.
"""
SURE_FROM = 30
"""Trials times alternative branches from which the model's deviations count in full; before, they count in proportion.
A process is least certain at the ends of the ranges, and few trials are better spent near the best. They count in full
while others run, so that parallel trials differ, and where trials failed or have constraints.
"""
LOG_NOISE = -9.0
"""Prior median of the log noise variance of values: smaller than of kernel times. It does not apply where trials have
constraints, nor while others run, because parallel trials would crowd together. The same holds for fitted interactions.
"""
DRAW = 1000
"""Number of random points scored in each proposal."""
ELITES = 5
"""Number of best points whose neighbourhood is scored."""
NEAR = 60
"""Number of points near each of them."""
REFINED, REFINED_LATE = 2, 4
"""How often points near the most promising ones are scored; more often once deviations count in full. With constraints
or failures, whose models take most of the time, it stays at the first.
"""


@dataclass(frozen=True, slots=True)
class _Tried:
    """The trials of a study in terms of some parameters."""

    values: Floats
    """values of the parameters, NaN where a trial lacks one [trials, parameters]"""
    outcomes: Floats
    """the value to minimise: FAILED for a failure, NaN for a running trial [trials]"""
    limits: Mapping[str, Floats]
    """the values of each constraint, violated above 0, NaN where a trial has none [trials]"""

    @property
    def feasible(self) -> Flags:
        """Which trials violate no constraint."""
        violated = [amounts > 0 for amounts in self.limits.values()]
        return ~np.any(violated, axis=0) if violated else np.ones(len(self.outcomes), dtype=np.bool_)


class InferredSpaceModel:
    """The parameters that a study's trials suggested, and the next values to try."""

    def __init__(self) -> None:
        self._study = ""
        self._proposed: dict[int, Params] = {}
        self._space: dict[str, BaseDistribution] = {}
        self._surrogate = Surrogate(Axes(()))

    def search_space(self, study: Study) -> dict[str, BaseDistribution]:
        """Every parameter that a trial suggested and that has more than one value, with its latest range."""
        found: dict[str, BaseDistribution] = {}
        for trial in study.get_trials(deepcopy=False):
            found.update(trial.distributions)
        return {name: distribution for name, distribution in found.items() if not distribution.single()}

    def propose(
        self, study: Study, trial: FrozenTrial, space: Mapping[str, BaseDistribution], rng: np.random.Generator
    ) -> Params:
        """Values of the parameters of one branch."""
        if not space:
            return {}
        axes = Axes.of(space.values())
        if self._study != study.study_name or self._space != dict(space):
            self._study, self._space, self._surrogate = study.study_name, dict(space), Surrogate(axes)
        tried = self._tried(study, space, trial.number)
        fixed = _values(trial.system_attrs.get(FIXED, {}), space)
        branches = Branches(axes, tried.values, tried.outcomes == FAILED, fixed)
        row = self._chosen(axes, tried, branches, rng)
        params = {
            name: distribution.to_external_repr(float(value))
            for (name, distribution), value in zip(space.items(), row, strict=True)
            if not np.isnan(value)
        }
        self._proposed[trial.number] = params
        return params

    def independent(
        self, trial: FrozenTrial, _name: str, distribution: BaseDistribution, rng: np.random.Generator
    ) -> CategoricalChoiceType:
        """A value by chance; in the first trial, numbers get the middle of their range."""
        axis = Axis.of(distribution)
        (value,) = axis.random(1, rng) if trial.number or axis.choices else axis.values(np.array([0.5]))
        chosen: CategoricalChoiceType = distribution.to_external_repr(float(value))
        return chosen

    def end(self, _study: Study, trial: FrozenTrial, _state: TrialState, _values: Sequence[float] | None) -> None:
        """Nothing to do: the study stores the trial's result."""
        self._proposed.pop(trial.number, None)

    def _tried(self, study: Study, space: Mapping[str, BaseDistribution], now: int) -> _Tried:
        """The trials that have some of the parameters, running ones included."""
        rows: list[Floats] = []
        outcomes: list[float] = []
        limits: list[dict[str, float]] = []
        for trial in study.get_trials(deepcopy=False):
            ended = trial.state.is_finished()
            params = trial.params if ended else {**self._proposed.get(trial.number, {}), **trial.params}
            row = _values(params, space)
            if trial.number == now or np.isnan(row).all():
                continue
            rows.append(row)
            outcomes.append(objective(study, trial, trial.state, trial.values, outcomes) if ended else np.nan)
            limits.append(amounts(trial) if ended else {})
        names = dict.fromkeys(name for each in limits for name in each)
        by_name = {name: np.array([each.get(name, np.nan) for each in limits]) for name in names}
        return _Tried(np.array(rows).reshape(len(rows), len(space)), np.array(outcomes), by_name)

    def _chosen(self, axes: Axes, tried: _Tried, branches: Branches, rng: np.random.Generator) -> Floats:
        """The values to try next."""
        known = ~np.isnan(tried.outcomes)
        correct = known & (tried.outcomes != FAILED)
        alternatives = branches.alternatives
        first = max(FIRST, FIRST_OF_BRANCH * alternatives)
        points = axes.coordinates(branches.completed())
        look = alternatives > 1 and branches.least_tried < LOOK and len(points) % LOOK_EVERY == 0
        if look or len(points) < first or np.count_nonzero(correct) < MODELLED_FROM:
            asked = branches.random_of_least_tried(SPREAD_FROM, rng)
            apart = axes.apart(axes.coordinates(asked), points)
            return _point(asked, int(np.argmax(apart.min(axis=1))) if len(points) else 0)
        values = tried.outcomes[correct]
        scale = Scale.of(values)
        log_noise, joint = (LOG_NOISE, True) if known.all() and not tried.limits else (PRIOR_LOG_NOISE, False)
        model = self._surrogate.values(points[correct], values, scale, points[~known], log_noise=log_noise, joint=joint)
        limits = [
            self._surrogate.limit(place, points[given], amounts[given])
            for place, amounts in enumerate(tried.limits.values())
            if np.count_nonzero(given := np.isfinite(amounts)) >= MODELLED_FROM
        ]
        failed = tried.outcomes[known] == FAILED
        feasible = tried.feasible
        promised = model.predict(points[correct & feasible])[0]
        eager = known.all() and not limits and not failed.any()
        sure = min(1.0, len(points) * alternatives / SURE_FROM) if eager else 1.0

        def gains(asked: Floats) -> Floats:
            coordinates = axes.coordinates(asked)
            gain = np.zeros(len(asked))
            if len(promised):  # else any feasible point improves
                mean, deviation = _learned(model, coordinates)
                gain = log_expected_improvement(float(promised.min()), mean, sure * deviation)
            for limit in limits:
                gain += log_chance_below(0.0, *_learned(limit, coordinates))
            if failed.any():
                chances = self._surrogate.chances(points[known], failed, coordinates)
                gain = weighed(gain, np.log(chances), len(failed))
            return gain

        elites = tried.values[correct][np.lexsort([values, _violation(tried)[correct]])[:ELITES]]
        asked = np.concatenate([branches.random(DRAW, rng), branches.near(elites, NEAR, rng)])
        gain = gains(asked)
        for _ in range(REFINED_LATE if eager and sure == 1.0 else REFINED):
            nearer = branches.near(asked[np.argsort(-gain, kind="stable")[:ELITES]], NEAR, rng)
            asked, gain = np.concatenate([asked, nearer]), np.concatenate([gain, gains(nearer)])
        return _best_new(asked, gain, tried.values)


def _learned(model: Posterior, points: Floats) -> tuple[Floats, Floats]:
    """Mean at some points, and the part of the standard deviation that an observation would explain."""
    mean, deviation = model.predict(points)
    return mean, np.maximum(deviation**2 - model.signal * model.noise, 1e-12) / deviation


def _violation(tried: _Tried) -> Floats:
    """The sum of each trial's violations, each relative to the median violation of its constraint."""
    total = np.zeros(len(tried.outcomes))
    for each in tried.limits.values():
        over = np.maximum(np.nan_to_num(each), 0)
        total += over / (float(median(over[over > 0])) if over.any() else 1.0)
    return total


def _values(params: Mapping[str, CategoricalChoiceType], space: Mapping[str, BaseDistribution]) -> Floats:
    """Parameters as Optuna stores them, NaN for a parameter that is missing or was of another kind [len(space)]."""
    values = np.full(len(space), np.nan)
    for place, (name, distribution) in enumerate(space.items()):
        if name in params:
            try:
                values[place] = distribution.to_internal_repr(params[name])
            except ValueError:
                continue
    return values


def _best_new(asked: Floats, gain: Floats, tried: Floats) -> Floats:
    """The untried point with the largest gain; the largest of all if all were tried."""
    order = np.argsort(-gain, kind="stable")
    for place in order:
        if not (np.equal(tried, asked[place]) | (np.isnan(tried) & np.isnan(asked[place]))).all(axis=1).any():
            return _point(asked, int(place))
    return _point(asked, int(order[0]))


def _point(points: Floats, place: int) -> Floats:
    point: Floats = points[place]
    return point
