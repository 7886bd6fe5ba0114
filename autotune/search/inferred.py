"""Search a space that isn't given in advance: it consists of all parameters that the study's trials have suggested so
far.

All trials are points of one Gaussian process, and a point may lack some of the parameters.
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
"""Number of trials before the model is used."""
FIRST_OF_BRANCH = 2
"""Number of trials that each alternative branch must have before the model is used. Until each branch has had LOOK
trials, the model doesn't decide alone.
"""
SPREAD_FROM = 10
"""Number of random points from which each of the first points is chosen: the one farthest from all earlier points. With
many more, it would be a corner of the space.
"""
SURE_FROM = 30
"""Number of trials times alternative branches from which the model's standard deviations count in full; below it, they
count proportionally less. A process is least certain at the ends of the ranges, while the first few trials are better
spent near the best point. The deviations also count in full while other trials run, so that parallel trials differ, and
if trials failed or have constraints.
"""
LOG_NOISE = -9.0
"""Prior median of the log noise variance of values, smaller than for kernel times. If trials have constraints, or while
other trials run, PRIOR_LOG_NOISE is used instead and interactions are not fitted, because parallel trials would
otherwise crowd together.
"""
DRAW = 1000
"""Number of random points scored for each proposal."""
ELITES = 5
"""Number of best points around which further points are scored."""
NEAR = 60
"""Number of points scored near each of the best points."""
REFINED, REFINED_LATE = 2, 4
"""Number of rounds in which points near the most promising ones are scored; REFINED_LATE applies once deviations count
in full. With constraints or failures, whose models take most of the time, REFINED always applies.
"""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A study's trials as points in a space."""

    values: Floats
    """values of the parameters, NaN where a trial lacks one [trials, parameters]"""
    outcomes: Floats
    """values to minimise: FAILED for a failure, NaN for a running trial [trials]"""
    limits: Mapping[str, Floats]
    """constraint to its values; above 0 is a violation, NaN means that a trial has no value [trials]"""

    @property
    def feasible(self) -> Flags:
        """Mask of the trials that don't violate any constraint."""
        violated = [amounts > 0 for amounts in self.limits.values()]
        return ~np.any(violated, axis=0) if violated else np.ones(len(self.outcomes), dtype=np.bool_)


class InferredSpaceModel:
    """Collects the parameters suggested by a study's trials, and proposes which values to try next."""

    def __init__(self) -> None:
        self._study = ""
        self._proposed: dict[int, Params] = {}
        self._space: dict[str, BaseDistribution] = {}
        self._surrogate = Surrogate(Axes(()))

    def search_space(self, study: Study) -> dict[str, BaseDistribution]:
        """Return every parameter that a trial has suggested and that has more than one value, with its latest range."""
        found: dict[str, BaseDistribution] = {}
        for trial in study.get_trials(deepcopy=False):
            found.update(trial.distributions)
        return {name: distribution for name, distribution in found.items() if not distribution.single()}

    def propose(
        self, study: Study, trial: FrozenTrial, space: Mapping[str, BaseDistribution], rng: np.random.Generator
    ) -> Params:
        """Propose values for the parameters of one branch."""
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
        """Draw a random value. In the first trial, numbers get the middle of their range."""
        axis = Axis.of(distribution)
        (value,) = axis.random(1, rng) if trial.number or axis.choices else axis.values(np.array([0.5]))
        chosen: CategoricalChoiceType = distribution.to_external_repr(float(value))
        return chosen

    def end(self, _study: Study, trial: FrozenTrial, _state: TrialState, _values: Sequence[float] | None) -> None:
        """Forget the trial's proposal, because the study stores its result."""
        self._proposed.pop(trial.number, None)

    def _tried(self, study: Study, space: Mapping[str, BaseDistribution], now: int) -> _Tried:
        """Return all trials that have any of the parameters, including running ones."""
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
        """Choose the values to try next."""
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
            if len(promised):  # without a feasible trial, every feasible point is an improvement
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
    """Predict the mean at some points, and the part of the standard deviation that an observation would explain."""
    mean, deviation = model.predict(points)
    return mean, np.maximum(deviation**2 - model.signal * model.noise, 1e-12) / deviation


def _violation(tried: _Tried) -> Floats:
    """Return the sum of each trial's violations, relative to the constraints' median violations."""
    total = np.zeros(len(tried.outcomes))
    for each in tried.limits.values():
        over = np.maximum(np.nan_to_num(each), 0)
        total += over / (float(median(over[over > 0])) if over.any() else 1.0)
    return total


def _values(params: Mapping[str, CategoricalChoiceType], space: Mapping[str, BaseDistribution]) -> Floats:
    """Convert parameters to Optuna's stored form, with NaN if one is missing or has another type [len(space)]."""
    values = np.full(len(space), np.nan)
    for place, (name, distribution) in enumerate(space.items()):
        if name in params:
            try:
                values[place] = distribution.to_internal_repr(params[name])
            except ValueError:
                continue
    return values


def _best_new(asked: Floats, gain: Floats, tried: Floats) -> Floats:
    """Return the untried point with the largest gain or, if all of them were tried, the point with the largest gain."""
    order = np.argsort(-gain, kind="stable")
    for place in order:
        if not (np.equal(tried, asked[place]) | (np.isnan(tried) & np.isnan(asked[place]))).all(axis=1).any():
            return _point(asked, int(place))
    return _point(asked, int(order[0]))


def _point(points: Floats, place: int) -> Floats:
    point: Floats = points[place]
    return point
