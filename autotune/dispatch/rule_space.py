"""study -> search: a threshold and a kernel for each side as one search space.

A config of the space is a rule: the property, the threshold, and the parameters of both kernels. A kernel runs every
layer on its side, compiled for each layer's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.dispatch.dispatcher import FAMILY
from autotune.dispatch.matrix import Bools, Ints
from autotune.dispatch.thresholds import Gap
from autotune.family.space import ListedSpace, SearchSpace
from autotune.family.template import Param
from autotune.trial import Config, Value

MOST_ROWS = 200_000
"""The maximum number of rules in a space. A larger space keeps some of the kernels of each side, chosen by the seed."""
_BELOW, _ABOVE = "below", "above"


@dataclass(frozen=True, slots=True)
class Pair:
    """A rule of one threshold between two kernels."""

    gap: Gap
    below: Config
    above: Config

    def config(self) -> Config:
        """The rule as the config of a trial."""
        values: dict[str, Value] = {"property": self.gap.property, "threshold": self.gap.threshold}
        for side, kernel in ((_BELOW, self.below), (_ABOVE, self.above)):
            values[side] = kernel.template
            values |= {f"{side}_{name}": value for name, value in kernel.pairs}
        return Config.of(FAMILY, values)

    @classmethod
    def of(cls, config: Config) -> Pair | None:
        """The rule of a trial's config; None if it is a rule of another kind."""
        match config.params:
            case {"property": str(name), "threshold": int(threshold), "below": str(below), "above": str(above), **rest}:
                sides = (_side(_BELOW, below, rest), _side(_ABOVE, above, rest))
                return cls(Gap(name, threshold), *sides)
        return None


def _side(side: str, family: str, values: Mapping[str, Value]) -> Config:
    prefix = f"{side}_"
    kept = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return Config.of(family, kept)


@dataclass(frozen=True)
class Side:
    """The kernels of one family or technique that a side may have, and the layers that each supports."""

    name: str
    family: str
    params: tuple[Param, ...]
    rows: Ints
    """value indices [kernels, params]"""
    serves: Bools
    """[kernels, layers]"""

    @classmethod
    def of(cls, name: str, spaces: Sequence[SearchSpace | None]) -> Side:
        """A side from each layer's configs of a family; None: the family does not support the layer."""
        served = [(layer, space) for layer, space in enumerate(spaces) if space is not None and len(space.rows)]
        _, some = served[0]
        rows, inverse = np.unique(np.concatenate([space.rows for _, space in served]), axis=0, return_inverse=True)
        serves = np.zeros((len(rows), len(spaces)), dtype=np.bool_)
        layers = np.repeat([layer for layer, _ in served], [len(space.rows) for _, space in served])
        serves[inverse.reshape(-1), layers] = True
        return cls(name, some.template, tuple(some.params), rows, serves)

    def has(self, config: Config) -> bool:
        """Whether a side may have this kernel."""
        return self._row_of(config) is not None

    def config(self, row: int) -> Config:
        """The kernel in a row."""
        values = zip(self.params, self.rows[row].tolist(), strict=True)
        return Config(self.family, tuple((one.name, one.values[at]) for one, at in values))

    def serving(self, layers: Bools) -> Ints:
        """The rows of the kernels that support all of some layers."""
        return np.flatnonzero(self.serves[:, layers].all(axis=1))

    def order(self, rng: np.random.Generator, first: Sequence[Config]) -> Ints:
        """[kernels]; their positions in a random order that begins with the configs in `first`."""
        named = [row for config in first if (row := self._row_of(config)) is not None]
        order = dict.fromkeys([*named, *rng.permutation(len(self.rows)).tolist()])
        return np.argsort(np.array([*order], dtype=np.int64))

    def _row_of(self, config: Config) -> int | None:
        if config.template != self.family:
            return None
        values = config.params
        if any(values.get(one.name) not in one.values for one in self.params):
            return None
        indices = [one.values.index(values[one.name]) for one in self.params]
        matches = np.flatnonzero((self.rows == indices).all(axis=1))
        return int(matches[0]) if len(matches) else None


class RuleSpace(ListedSpace):
    """The rules between a kernel of one side and one of the other."""

    def __init__(
        self,
        below: Side,
        above: Side,
        gaps: Mapping[Gap, Bools],
        *,
        seed: int,
        first: Sequence[Config] = (),
        most_rows: int = MOST_ROWS,
    ) -> None:
        """`gaps` are the thresholds with the layers below each; `first` are the kernels to keep if some must be
        dropped.
        """
        self.template = f"{below.name} / {above.name}"
        properties = tuple(dict.fromkeys(gap.property for gap in gaps))
        thresholds = tuple(sorted({gap.threshold for gap in gaps}))
        self.params = (
            Param("property", properties, "what of a layer the threshold is on"),
            Param("threshold", thresholds, "the least value that is not below it"),
            *(Param(f"{_BELOW}_{one.name}", one.values, one.doc) for one in below.params),
            *(Param(f"{_ABOVE}_{one.name}", one.values, one.doc) for one in above.params),
        )
        rng = np.random.default_rng(seed)
        orders = below.order(rng, first), above.order(rng, first)
        self.complete = True
        self._below, self._above = below, above
        rows = []
        for gap, mask in gaps.items():
            low, high = below.serving(mask), above.serving(~mask)
            if len(low) * len(high) > most_rows // len(gaps):
                self.complete = False
                low, high = _some(low, high, orders, most_rows // len(gaps))
            pairs = np.stack(np.meshgrid(low, high, indexing="ij"), axis=-1).reshape(-1, 2)
            head = np.broadcast_to((properties.index(gap.property), thresholds.index(gap.threshold)), (len(pairs), 2))
            rows.append(np.concatenate([head, below.rows[pairs[:, 0]], above.rows[pairs[:, 1]]], axis=1))
        self.rows = np.unique(np.concatenate(rows), axis=0).astype(np.int16)

    def pair(self, config: Config) -> Pair:
        """The rule for a config of this space."""
        values = config.params
        gap = Gap(str(values["property"]), int(values["threshold"]))
        return Pair(gap, _side(_BELOW, self._below.family, values), _side(_ABOVE, self._above.family, values))

    def point(self, pair: Pair) -> Config | None:
        """The config of this space for a rule; None if it has none."""
        if (pair.below.template, pair.above.template) != (self._below.family, self._above.family):
            return None
        values = pair.config().params
        config = Config.of(self.template, {one.name: values[one.name] for one in self.params if one.name in values})
        return None if self.row_of(config) is None else config


def _some(low: Ints, high: Ints, orders: tuple[Ints, Ints], most: int) -> tuple[Ints, Ints]:
    """The first kernels of each side in their orders, as many as make at most `most` pairs."""
    each = math.isqrt(most)
    lows = min(len(low), max(each, most // len(high)))
    sides = ((low, orders[0], lows), (high, orders[1], most // lows))
    kept_low, kept_high = (np.sort(rows[np.argsort(order[rows])][:count]) for rows, order, count in sides)
    return kept_low, kept_high
