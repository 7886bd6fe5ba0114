"""A config as Optuna sees it: a categorical family, and the parameters of each family under its own prefix;
and the rows of a family next to one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution, CategoricalChoiceType, CategoricalDistribution
from optuna.trial import Trial

from autotune.search.state import FeasibleSpace, Ints, SearchState

Hashes = npt.NDArray[np.uint64]


class Neighbourhood:
    """Looks up the rows of one family by their value indices.

    A row's hash is linear in its value indices, modulo 2^64 with fixed random multipliers, so a neighbour's hash is
    the row's plus a difference. Two of 100,000 rows share a hash with a chance of 3e-10.
    """

    def __init__(self, space: FeasibleSpace) -> None:
        counts = [len(param.values) for param in space.params]
        multipliers = np.random.default_rng(0).integers(1, 2**63, size=len(counts), dtype=np.uint64)
        self._rows = np.asarray(space.rows, dtype=np.uint64)
        self._multipliers = multipliers
        hashes = self._hash(self._rows)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._parameter = np.repeat(np.arange(len(counts)), counts)
        self._value = np.concatenate(
            [np.arange(count, dtype=np.uint64) for count in counts] or [np.array([], np.uint64)]
        )

    def find(self, row: Ints) -> int | None:
        """The position of a row of value indices; None if it is infeasible."""
        found = self._lookup(self._hash(row[None, :].astype(np.uint64)))
        return int(found[0]) if len(found) else None

    def within_one(self, position: int) -> Ints:
        """Positions of the feasible rows that differ in exactly one parameter."""
        return self._lookup(self._hashes_of(position, self._steps(position)))

    def within_two(self, position: int) -> Ints:
        """Positions of the feasible rows that differ in exactly two parameters."""
        steps = self._steps(position)
        pairs = steps[:, None] + steps[None, :]
        changed = self._parameter[self._value != self._rows[position][self._parameter]]
        return self._lookup(self._hashes_of(position, pairs[changed[:, None] < changed[None, :]]))

    def _hash(self, rows: Hashes) -> Hashes:
        hashes: Hashes = (rows * self._multipliers).sum(axis=1, dtype=np.uint64)
        return hashes

    def _steps(self, position: int) -> Hashes:
        """The change of a row's hash, modulo 2^64, for changing one parameter."""
        now = self._rows[position][self._parameter]
        steps: Hashes = ((self._value - now) * self._multipliers[self._parameter])[self._value != now]
        return steps

    def _hashes_of(self, position: int, steps: Hashes) -> Hashes:
        hashes: Hashes = self._hash(self._rows[position : position + 1]) + steps
        return hashes

    def _lookup(self, hashes: Hashes) -> Ints:
        if not len(self._hashes):
            return np.array([], dtype=np.int64)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: Ints = self._order[places[self._hashes[places] == hashes]]
        return found


FAMILY = "family"
"""Optuna's name of the parameter that picks the kernel family."""

FIXED = "fixed_params"
"""Optuna's attribute of a trial whose parameters `Study.enqueue_trial` set."""
Params = dict[str, CategoricalChoiceType]
"""Optuna's parameters of a trial."""


class Encoding:
    """Convert a config index to Optuna parameters and back.

    With `choices` the values of the spaces are positions in these; then there is no family and no prefix, and families
    are distinguished by their parameter sets, which must all be different.
    """

    def __init__(
        self,
        state: SearchState,
        *,
        choices: Mapping[str, tuple[CategoricalChoiceType, ...]] | None = None,
    ) -> None:
        self._state = state
        self._names = tuple(space.template for space in state.spaces)
        self._family: dict[str, CategoricalDistribution] = {}
        if choices is None:
            self._family = {FAMILY: CategoricalDistribution(self._names or ("",))}
            self._own: tuple[dict[str, CategoricalDistribution], ...] = tuple(
                {f"{space.template}.{param.name}": CategoricalDistribution(param.values) for param in space.params}
                for space in state.spaces
            )
        else:
            self._own = tuple(
                {param.name: CategoricalDistribution(choices[param.name]) for param in space.params}
                for space in state.spaces
            )
        self._rows: dict[int, Neighbourhood] = {}

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
        if family not in self._rows:
            self._rows[family] = Neighbourhood(self._state.spaces[family])
        found = self._rows[family].find(row)
        return None if found is None else self._state.offsets[family] + found

    def agreeing(self, params: Mapping[str, CategoricalChoiceType]) -> Ints:
        """The free configs that have the given values."""
        free = np.flatnonzero(self._state.free)
        return np.array([index for index in free if params.items() <= self.params(int(index)).items()], dtype=np.int64)

    def suggest(self, trial: Trial, index: int) -> None:
        """Make an asked Optuna trial suggest the parameters of the config that its sampler chose."""
        for name, dist in (self._family | self._own[self._state.family_of(index)]).items():
            trial.suggest_categorical(name, dist.choices)
