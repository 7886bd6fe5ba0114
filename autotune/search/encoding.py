"""A config as Optuna sees it: a categorical family, and each family's parameters under its own prefix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import Trial

from autotune.search.landscape import Ints, Landscape
from autotune.trial import Value

FAMILY = "family"
"""Optuna's name of the parameter that picks the kernel family."""


class Encoding:
    """Landscape index to Optuna parameters and back; `ordinal` encodes a value by its position."""

    def __init__(self, landscape: Landscape, *, ordinal: bool) -> None:
        self._landscape = landscape
        self._names = tuple(space.template for space in landscape.spaces)
        self._family: BaseDistribution = CategoricalDistribution(self._names or ("",))
        self._own: tuple[dict[str, BaseDistribution], ...] = tuple(
            {
                f"{space.template}.{param.name}": IntDistribution(0, len(param.values) - 1)
                if ordinal
                else CategoricalDistribution(param.values)
                for param in space.params
            }
            for space in landscape.spaces
        )

    @property
    def every(self) -> dict[str, BaseDistribution]:
        """The family and all families' parameters."""
        return {FAMILY: self._family} | {name: dist for own in self._own for name, dist in own.items()}

    @property
    def family(self) -> BaseDistribution:
        """The distribution of the family."""
        return self._family

    def own(self, family: int) -> dict[str, BaseDistribution]:
        """One family's parameters."""
        return self._own[family]

    def distributions(self, index: int) -> dict[str, BaseDistribution]:
        """What a trial of this config was drawn from."""
        return {FAMILY: self._family} | self._own[self._landscape.family_of(index)]

    def params(self, index: int) -> dict[str, Value]:
        """The Optuna parameters of a config."""
        family = self._landscape.family_of(index)
        row = self._landscape.row(index)
        params: dict[str, Value] = {FAMILY: self._names[family]}
        for (name, dist), position in zip(self._own[family].items(), row, strict=True):
            params[name] = (
                int(position) if isinstance(dist, IntDistribution) else dist.to_external_repr(float(position))
            )
        return params

    def family_index(self, params: Mapping[str, Value]) -> int:
        """The position of the family that Optuna parameters name."""
        return self._names.index(str(params[FAMILY]))

    def row(self, params: Mapping[str, Value]) -> Ints:
        """The value indices that Optuna parameters name, feasible or not."""
        own = self._own[self.family_index(params)]
        return np.array([int(dist.to_internal_repr(params[name])) for name, dist in own.items()], dtype=np.int64)

    def suggest(self, trial: Trial, index: int) -> None:
        """Have an asked Optuna trial suggest the parameters of the config that its sampler chose."""
        for name, dist in self.distributions(index).items():
            if isinstance(dist, IntDistribution):
                trial.suggest_int(name, dist.low, dist.high)
            elif isinstance(dist, CategoricalDistribution):
                trial.suggest_categorical(name, dist.choices)
