"""A config as Optuna sees it: the parameters of its family, and the family's name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalChoiceType, CategoricalDistribution
from optuna.trial import Trial

from autotune.search.state import Ints, SearchState

FAMILY = "family"
"""Optuna's name of the parameter that picks the kernel family."""

FIXED = "fixed_params"
"""Optuna's attribute of a trial whose parameters `Study.enqueue_trial` set."""
Params = dict[str, CategoricalChoiceType]
"""Optuna's parameters of a trial."""


class Encoding:
    """Convert a config index to Optuna parameters and back.

    Families without names are distinguished by their parameter sets, which must all be different.
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
        """The family and all families' parameters."""
        return {**self._family, **{name: dist for own in self._own for name, dist in own.items()}}

    @property
    def family(self) -> dict[str, CategoricalDistribution]:
        """The parameter that selects the family; empty if there is none."""
        return self._family

    def own(self, family: int) -> dict[str, CategoricalDistribution]:
        """One family's parameters."""
        return self._own[family]

    def distributions(self, index: int) -> dict[str, BaseDistribution]:
        """The parameters that a trial of this config was drawn from."""
        return {**self._family, **self._own[self._state.family_of(index)]}

    def params(self, index: int) -> Params:
        """The Optuna parameters of a config."""
        family = self._state.family_of(index)
        row = self._state.row(index)
        params: Params = dict.fromkeys(self._family, self._names[family])
        for (name, dist), position in zip(self._own[family].items(), row, strict=True):
            params[name] = dist.to_external_repr(float(position))
        return params

    def family_index(self, params: Mapping[str, CategoricalChoiceType]) -> int:
        """The position of the family that Optuna parameters name. Raises ValueError if they name none."""
        if self._family:
            return self._names.index(str(params.get(FAMILY)))
        return [set(own) for own in self._own].index(set(params))

    def row(self, params: Mapping[str, CategoricalChoiceType]) -> Ints:
        """The value indices that Optuna parameters name, feasible or not."""
        own = self._own[self.family_index(params)]
        return np.array([int(dist.to_internal_repr(params[name])) for name, dist in own.items()], dtype=np.int64)

    def index_of(self, params: Mapping[str, CategoricalChoiceType]) -> int | None:
        """The config that Optuna parameters name; None if it is not feasible."""
        try:
            family, row = self.family_index(params), self.row(params)
        except (KeyError, ValueError):  # a parameter is missing, or has a value that is not in the space
            return None
        found = self._state.neighbourhood(family).find(row)
        return None if found is None else self._state.offsets[family] + found

    def agreeing(self, params: Mapping[str, CategoricalChoiceType]) -> Ints:
        """The free configs that have the given values."""
        free = np.flatnonzero(self._state.free)
        return np.array([index for index in free if params.items() <= self.params(int(index)).items()], dtype=np.int64)

    def suggest(self, trial: Trial, index: int) -> None:
        """Make an asked Optuna trial suggest the parameters of the config that its sampler chose."""
        for name, dist in (self._family | self._own[self._state.family_of(index)]).items():
            trial.suggest_categorical(name, dist.choices)
