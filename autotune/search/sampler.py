"""The project's search as an Optuna sampler for any study."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalChoiceType
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.search.encoding import Params
from autotune.search.inferred import InferredSpaceModel
from autotune.search.space_model import CONSTRAINTS, ListedSpaceModel
from autotune.search.state import Family

if TYPE_CHECKING:
    from optuna import Study


def listed(configs: Iterable[Mapping[str, CategoricalChoiceType]]) -> list[Family]:
    """Group configs into a family for each set of parameters. A parameter's values are collected from all configs.

    Raises ValueError for an empty list and for a config without parameters.
    """
    groups: dict[frozenset[str], list[Mapping[str, CategoricalChoiceType]]] = {}
    values: dict[str, dict[CategoricalChoiceType, None]] = {}
    for config in configs:
        if not config:
            raise ValueError("space: a config has no parameters")
        groups.setdefault(frozenset(config), []).append(config)
        for name, value in config.items():
            values.setdefault(name, {})[value] = None
    if not groups:
        raise ValueError("space: contains no configs")
    choices = {name: _ordered(tuple(found)) for name, found in values.items()}
    places = {name: {value: place for place, value in enumerate(found)} for name, found in choices.items()}
    families = []
    for group in groups.values():
        params = {name: choices[name] for name in group[0]}
        rows = dict.fromkeys(tuple(places[name][config[name]] for name in params) for config in group)
        families.append(Family("", params, np.array(list(rows), dtype=np.int16)))
    return families


def _ordered(values: tuple[CategoricalChoiceType, ...]) -> tuple[CategoricalChoiceType, ...]:
    """Sort values in ascending order if they are all numbers, or else keep their order."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else values


class StudySampler(BaseSampler):
    """An Optuna sampler for one objective whose proposals depend only on the seed, the trial's number and the study."""

    def __init__(
        self,
        proposals: ListedSpaceModel | InferredSpaceModel,
        *,
        seed: int | None = None,
        number: Callable[[FrozenTrial], int] | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
    ) -> None:
        self._proposals = proposals
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._number = number
        self._constraints_func = constraints_func
        self._lock = threading.RLock()

    def infer_relative_search_space(
        self,
        study: Study,
        trial: FrozenTrial,  # noqa: ARG002  (Optuna's signature)
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that are chosen together: the given space's parameters or, if there is no space, all
        trials' so far.
        """
        with self._lock:
            return self._proposals.search_space(study)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Params:
        """Choose values for these parameters or, if the space is conditional, for some of them."""
        self._require_one_objective(study)
        with self._lock:
            return self._proposals.propose(study, trial, search_space, self._rng(trial))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> CategoricalChoiceType:
        """Draw a random value for a parameter that wasn't chosen together with the others."""
        self._require_one_objective(study)
        with self._lock:
            rng = self._rng(trial, crc32(param_name.encode()))
            return self._proposals.independent(trial, param_name, param_distribution, rng)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:  # noqa: ARG002
        """Raise ValueError for a study with several objectives before anything runs."""
        self._require_one_objective(study)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Add a trial's result and the values of its constraints."""
        with self._lock:
            if self._constraints_func is not None and state in (TrialState.COMPLETE, TrialState.PRUNED):
                found = tuple(float(value) for value in self._constraints_func(trial))
                if any(np.isnan(found)):
                    raise ValueError(f"constraints_func: NaN in {found} for trial {trial.number}")
                study._storage.set_trial_system_attr(trial._trial_id, CONSTRAINTS, found)
                trial = study._storage.get_trial(trial._trial_id)
            self._proposals.end(study, trial, state, values)

    def _rng(self, trial: FrozenTrial, *more: int) -> np.random.Generator:
        """Return the generator for a trial's own random numbers."""
        return np.random.default_rng([self._seed, trial.number if self._number is None else self._number(trial), *more])

    def _require_one_objective(self, study: Study) -> None:
        """Raise ValueError for a study with several objectives."""
        if len(study.directions) > 1:
            raise ValueError(
                f"{type(self).__name__} minimises or maximises one value, the study has {len(study.directions)}"
            )

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the lock, which can't be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


class AutotuneSampler(StudySampler):
    """Models values and failures with Gaussian processes, for any Optuna study with a single objective.

    Without `space`, the sampler uses the parameters that the objective suggests. They can be of any kind, and a trial
    doesn't have to suggest all of them. If you know the feasible configs, list them in `space` (as dicts from parameter
    to value): the sampler then proposes only these, each at most once, and `suggest` returns a trial's config. The
    model learns from trials that fail, are pruned, return an infinite value or violate a constraint, and takes running
    trials into account. Each proposal depends only on the seed, the trial's number and the study. Several threads may
    share one sampler.

    `constraints_func` is the same as in Optuna: values above 0 are violations. `Trial.set_constraint` works without it.

    Raises ValueError for a space without configs, and in a study with several objectives.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        space: Iterable[Mapping[str, CategoricalChoiceType]] | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
    ) -> None:
        self._rows = None if space is None else ListedSpaceModel(listed(space))
        super().__init__(self._rows or InferredSpaceModel(), seed=seed, constraints_func=constraints_func)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Add a trial's result. After the last feasible config, `Study.optimize` stops."""
        super().after_trial(study, trial, state, values)
        if self._rows is not None and self._rows.exhausted:
            with contextlib.suppress(RuntimeError):  # outside `Study.optimize`
                study.stop()

    def suggest(self, trial: Trial) -> Params:
        """Choose a feasible config for a trial and return all of its parameters.

        Raises ValueError if no space was given, and SpaceExhausted if every config has been proposed.
        """
        if self._rows is None:
            raise ValueError("AutotuneSampler: suggest needs the space of feasible configs: AutotuneSampler(space=...)")
        return self._rows.encoding.params(self._rows.suggest(trial))
