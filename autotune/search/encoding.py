"""Convert configs to Optuna's parameters: the family's parameters plus the family's name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalChoiceType, CategoricalDistribution
from optuna.trial import Trial

from autotune.search.state import Ints, SearchState

FAMILY = "family"
"""Optuna's name for the parameter that selects the kernel family."""

FIXED = "fixed_params"
"""Optuna's attribute for the parameters of an enqueued trial that `Study.enqueue_trial` set."""
Params = dict[str, CategoricalChoiceType]
"""Parameter name to value, as in an Optuna trial."""


class Encoding:
    """Converts a config index to Optuna parameters and back.

    Families without names are told apart by their parameter sets, which must all be different.
    """

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._names = tuple(family.name for family in state.families)
        self._family = {FAMILY: CategoricalDistribution(self._names)} if any(self._names) else {}
        self._own = tuple(
            {name: CategoricalDistribution(values) for name, values in family.params.items()}
            for family in state.families
        )

    @property
    def every(self) -> dict[str, BaseDistribution]:
        """The parameter that selects the family, and the parameters of all families."""
        return {**self._family, **{name: dist for own in self._own for name, dist in own.items()}}

    def distributions(self, index: int) -> dict[str, BaseDistribution]:
        """Return the distributions of this config's parameters in a trial."""
        return {**self._family, **self._own[self._state.family_of(index)]}

    def params(self, index: int) -> Params:
        """Return the Optuna parameters of a config."""
        family = self._state.family_of(index)
        row = self._state.row(index)
        params: Params = dict.fromkeys(self._family, self._names[family])
        for (name, dist), position in zip(self._own[family].items(), row, strict=True):
            params[name] = dist.to_external_repr(float(position))
        return params

    def family_index(self, params: Mapping[str, CategoricalChoiceType]) -> int:
        """Return the position of the family with these Optuna parameters. Raises ValueError if there is none."""
        if self._family:
            return self._names.index(str(params.get(FAMILY)))
        return [set(own) for own in self._own].index(set(params))

    def row(self, params: Mapping[str, CategoricalChoiceType]) -> Ints:
        """Return the value indices of Optuna parameters, feasible or not."""
        own = self._own[self.family_index(params)]
        return np.array([int(dist.to_internal_repr(params[name])) for name, dist in own.items()], dtype=np.int64)

    def index_of(self, params: Mapping[str, CategoricalChoiceType]) -> int | None:
        """Return the index of the config with these Optuna parameters, or None if it isn't feasible."""
        try:
            family, row = self.family_index(params), self.row(params)
        except (KeyError, ValueError):  # a parameter is missing, or has a value that is not in the space
            return None
        found = self._state.neighbourhood(family).find(row)
        return None if found is None else self._state.offsets[family] + found

    def agreeing(self, params: Mapping[str, CategoricalChoiceType]) -> Ints:
        """Return the indices of the free configs that have the given values."""
        free = np.flatnonzero(self._state.free)
        return np.array([index for index in free if params.items() <= self.params(int(index)).items()], dtype=np.int64)

    def suggest(self, trial: Trial, index: int) -> None:
        """Make an Optuna trial suggest the parameters of the config that the sampler has chosen for it."""
        for name, dist in (self._family | self._own[self._state.family_of(index)]).items():
            trial.suggest_categorical(name, dist.choices)
