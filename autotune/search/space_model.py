"""Follow an Optuna study's trials as rows of given spaces, and propose each feasible config at most once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from optuna import TrialPruned
from optuna.distributions import BaseDistribution, CategoricalChoiceType
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.search.encoding import FIXED, Encoding, Params
from autotune.search.proposer import Proposer
from autotune.search.state import Family, SearchState

if TYPE_CHECKING:
    from optuna import Study


CONSTRAINTS = "constraints"
"""Optuna's attribute for a trial's constraints: a list, or one attribute `constraints:NAME` for each."""
FAILED = math.inf
FARTHEST = 1e150
"""The largest value. Larger values are replaced by it, so that differences are finite."""


def outcome(
    study: Study,
    trial: FrozenTrial,
    state: TrialState,
    values: Sequence[float] | None,
    so_far: Sequence[float],
) -> float:
    """Return the value to minimise, or FAILED for a trial that failed, was pruned, is infinite or violates a
    constraint.

    If a trial reported a value before it was pruned, that value is used, but it is taken to be no better than the
    median of `so_far`.
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
    """Return the value to minimise, whether or not the trial violates a constraint."""
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
    """Return the values of a trial's constraints, which are violated above 0. Optuna stores them in two forms."""
    attributes = trial.system_attrs
    listed = {str(place): value for place, value in enumerate(attributes.get(CONSTRAINTS) or ())}
    return listed | {key: value for key, value in attributes.items() if key.startswith(f"{CONSTRAINTS}:")}


CLAIM = "autotune:claim"
"""Attribute of an Optuna trial that contains the parameters of the config proposed for it."""


class SpaceExhausted(TrialPruned):
    """Every feasible config has been proposed. Within `Study.optimize`, the trial counts as pruned."""


class ListedSpaceModel:
    """Tracks a study's trials over the rows of some spaces, and chooses the next row.

    Trials that end in this process are added in the order they end. All others (from `Study.add_trial`, from other
    processes, or enqueued) are added in the order of their numbers. If a config was evaluated twice, the first trial
    counts. Trials of configs outside the spaces are ignored.
    """

    def __init__(
        self,
        families: Sequence[Family],
        *,
        least: float | None = None,
        choose: Choose | None = None,
    ) -> None:
        self.state = SearchState(families, least=least)
        self.encoding = Encoding(self.state)
        self._choose = choose or by_model
        self._proposer: Proposer | None = None
        self._study: str | None = None
        self._ended: set[int] = set()
        self._asked: dict[int, int] = {}

    @property
    def proposer(self) -> Proposer:
        """The project's own search on these rows."""
        self._proposer = self._proposer or Proposer(self.state)
        return self._proposer

    @property
    def exhausted(self) -> bool:
        """Whether every feasible config has been evaluated."""
        return not self.state.pending and not self.state.free.any()

    def suggest(self, trial: Trial) -> int:
        """Make a trial suggest all parameters of the config chosen for it, and return the config's index.

        Raises SpaceExhausted, and ValueError for a trial enqueued with an infeasible config.
        """
        _ = trial.relative_params  # Optuna samples on first access
        if trial.number not in self._asked:
            raise ValueError(f"trial {trial.number} was enqueued with a config that is not feasible")
        index = self._asked[trial.number]
        self.encoding.suggest(trial, index)
        return index

    def search_space(self, _study: Study) -> dict[str, BaseDistribution]:
        """Return every parameter of every family."""
        return self.encoding.every

    def propose(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution], rng: np.random.Generator
    ) -> Params:
        """Choose a config for a trial and return its parameters.

        Raises SpaceExhausted, and ValueError if no free config has the enqueued trial's parameters.
        """
        while True:
            self.follow(study)
            enqueued = self._asked.get(trial.number)
            forced = self._agreeing(trial, rng) if enqueued is None else enqueued
            if forced is None and not self.state.free.any():
                raise SpaceExhausted(f"all {len(self.state)} feasible configs were proposed")
            index = self._choose(self, rng) if forced is None else forced
            self._take(trial.number, index)
            if self._claimed(study, trial, index) or enqueued is not None:
                break
            self._drop(trial.number)
            study._storage.set_trial_system_attr(trial._trial_id, CLAIM, {})
        return {name: value for name, value in self.encoding.params(index).items() if name in search_space}

    def _agreeing(self, trial: FrozenTrial, rng: np.random.Generator) -> int | None:
        """Return a free config with an enqueued trial's parameters, or None if the trial wasn't enqueued."""
        fixed: Params = trial.system_attrs.get(FIXED, {})
        if not fixed:
            return None
        agreeing = self.encoding.agreeing(fixed)
        if not len(agreeing):
            raise ValueError(f"trial {trial.number} was enqueued: no feasible config that is left has {fixed}")
        return int(rng.choice(agreeing))

    def _claimed(self, study: Study, trial: FrozenTrial, index: int) -> bool:
        """Claim a config for a trial, or return False if another process has claimed it in the meantime.

        Each process writes its own claim before it reads the others', so at least one of two processes sees the
        other's.
        """
        params = self.encoding.params(index)
        study._storage.set_trial_system_attr(trial._trial_id, CLAIM, params)
        others = (other for other in study.get_trials(deepcopy=False) if other.number != trial.number)
        return all(other.system_attrs.get(CLAIM) != params for other in others)

    def independent(
        self, trial: FrozenTrial, name: str, distribution: BaseDistribution, _rng: np.random.Generator
    ) -> CategoricalChoiceType:
        """Raise ValueError, because all parameters of a config are chosen together."""
        known = self.encoding.every
        if name in known and known[name] != distribution:
            raise ValueError(f"{name}: the feasible configs have {known[name]}, the trial suggests {distribution}")
        raise ValueError(f"{name} is not a parameter of the feasible config that was chosen for trial {trial.number}")

    def end(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Add the result of a trial that has ended."""
        if trial.number in self._ended:
            return
        self._ended.add(trial.number)
        index = self._asked.get(trial.number)
        if index is None or not trial.params.items() <= self.encoding.params(index).items():
            self._drop(trial.number)
            index = self.encoding.index_of(trial.params)
        self._asked.pop(trial.number, None)
        if index is not None:
            so_far = [observation.value for observation in self.state.observations]
            self.state.tell(index, outcome(study, trial, state, values, so_far))

    def follow(self, study: Study) -> None:
        """Add the study's new trials. If it is a different study, forget all earlier trials first."""
        if study.study_name != self._study:
            if self._study is not None:
                self.state.forget()
                self._ended.clear()
                self._asked.clear()
                self._proposer = None  # a Proposer keeps fitted models
            self._study = study.study_name
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._ended:
                continue
            attrs, finished = trial.system_attrs, trial.state.is_finished()
            if CLAIM in attrs or not finished:
                index = self.encoding.index_of(attrs.get(CLAIM, trial.params or attrs.get(FIXED, {})))
                if index != self._asked.get(trial.number):  # first seen, or another process drew again
                    self._drop(trial.number)
                    if index is not None:
                        self._take(trial.number, index)
            if finished:
                self.end(study, trial, trial.state, trial.values)

    def _take(self, number: int, index: int) -> None:
        """Record which config a trial has."""
        self._asked[number] = index
        if self.state.free[index]:
            self.state.ask(index)

    def _drop(self, number: int) -> None:
        """Forget a trial's config, which is free again unless another trial has it too."""
        index = self._asked.pop(number, None)
        if index is not None and index not in self._asked.values():
            self.state.release(index)


Choose = Callable[[ListedSpaceModel, np.random.Generator], int]
"""A function that chooses the index of the next config."""


def by_model(rows: ListedSpaceModel, rng: np.random.Generator) -> int:
    """Choose the proposal of the project's own search."""
    return rows.proposer.propose(rng)
