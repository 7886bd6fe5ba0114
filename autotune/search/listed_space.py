"""Convert a list of feasible configs to the spaces that the search uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from optuna.distributions import CategoricalChoiceType

from autotune.search.state import SpaceParam
from autotune.trial import Config

Choices = Mapping[str, tuple[CategoricalChoiceType, ...]]


@dataclass(frozen=True, slots=True)
class _Positions:
    """A parameter whose values are positions in its choices."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListedSpace:
    """The configs that have the same parameters, as rows of positions in the parameters' choices."""

    template: str
    params: tuple[SpaceParam, ...]
    rows: npt.NDArray[np.int16]
    complete: bool = True
    default: Config | None = None
    padded_work: npt.NDArray[np.int64] | None = None

    def config(self, row: int, /) -> Config:
        """A row as a config."""
        items = zip(self.params, self.rows[row], strict=True)
        return Config(self.template, tuple((param.name, int(position)) for param, position in items))

    def row_of(self, config: Config, /) -> int | None:
        """The row of a config."""
        wanted = np.array([position for _, position in config.pairs], dtype=np.int64)
        found = np.flatnonzero((self.rows == wanted).all(axis=1))
        return int(found[0]) if len(found) else None


def listed(configs: Iterable[Mapping[str, CategoricalChoiceType]]) -> tuple[tuple[ListedSpace, ...], Choices]:
    """Spaces of the configs with equal parameter sets, and each parameter's choices, numbers in ascending order.

    Raises ValueError for an empty list and for a config without parameters.
    """
    groups: dict[frozenset[str], dict[tuple[CategoricalChoiceType, ...], None]] = {}
    orders: dict[frozenset[str], tuple[str, ...]] = {}
    values: dict[str, dict[CategoricalChoiceType, None]] = {}
    for config in configs:
        if not config:
            raise ValueError("space: a config has no parameters")
        order = orders.setdefault(frozenset(config), tuple(config))
        groups.setdefault(frozenset(config), {})[tuple(config[name] for name in order)] = None
        for name, value in config.items():
            values.setdefault(name, {})[value] = None
    if not groups:
        raise ValueError("space: there is no config in it")
    choices = {name: _ordered(tuple(found)) for name, found in values.items()}
    places = {name: {value: place for place, value in enumerate(found)} for name, found in choices.items()}
    return tuple(
        ListedSpace(
            template=" ".join(orders[names]),
            params=tuple(_Positions(name, tuple(range(len(choices[name])))) for name in orders[names]),
            rows=np.array(
                [[places[name][value] for name, value in zip(orders[names], row, strict=True)] for row in rows],
                dtype=np.int16,
            ),
        )
        for names, rows in groups.items()
    ), choices


def _ordered(values: tuple[CategoricalChoiceType, ...]) -> tuple[CategoricalChoiceType, ...]:
    """Numbers in ascending order, other values in their given order."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else values
