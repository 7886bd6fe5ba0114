"""matrix -> search: the rules of at most one threshold as a search space, whose configs the project's search proposes.

A threshold takes only the values between neighbouring layers, and its two sides begin with different kernels; what is
tried after these follows from the layers of the side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.dispatcher import FAMILY, Leaf, Rule, Split
from autotune.thresholds import Costs
from autotune.trial import Config, Value

NONE = "none"
"""The property of a rule without a threshold."""


@dataclass(frozen=True, slots=True)
class RuleParam:
    """A parameter and its ordered values."""

    name: str
    values: tuple[Value, ...]


class RuleSpace:
    """Every rule of at most one threshold for some layers and kernels, searched as a family's configs are."""

    template = FAMILY
    complete = True

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        gaps = list(costs.gaps())
        thresholds = tuple(sorted({0, *(threshold for _, threshold in gaps)}))
        properties = (NONE, *dict.fromkeys(name for name, _ in gaps))
        self.params = (
            RuleParam("property", properties),
            RuleParam("threshold", thresholds),
            RuleParam("below_first", costs.kernels),
            RuleParam("above_first", costs.kernels),
        )
        kernels = range(len(costs.kernels))
        rows = [(0, thresholds.index(0), kernel, kernel) for kernel in kernels]
        rows += [
            (properties.index(name), thresholds.index(threshold), below, above)
            for name, threshold in gaps
            for below in kernels
            for above in kernels
            if below != above
        ]
        self.rows: npt.NDArray[np.int16] = np.array(rows, dtype=np.int16).reshape(len(rows), len(self.params))
        self._position: dict[tuple[int, ...], int] = {row: position for position, row in enumerate(rows)}

    @property
    def default(self) -> Config | None:
        """The first kernel for every layer."""
        return self.config(0) if len(self.rows) else None

    def config(self, row: int) -> Config:
        """The config in a row."""
        indices = self.rows[row]
        return Config(
            FAMILY,
            tuple((param.name, param.values[int(index)]) for param, index in zip(self.params, indices, strict=True)),
        )

    def row_of(self, config: Config) -> int | None:
        """The row of a config; None when it is not in this space."""
        values = config.values()
        if config.template != FAMILY or values.keys() != {param.name for param in self.params}:
            return None
        if any(values[param.name] not in param.values for param in self.params):
            return None
        return self._position.get(tuple(param.values.index(values[param.name]) for param in self.params))

    def rule(self, config: Config) -> Rule:
        """The rule that a config of this space is."""
        values = config.values()
        name, threshold = str(values["property"]), int(values["threshold"])
        first, second = str(values["below_first"]), str(values["above_first"])
        if name == NONE:
            return self._costs.leaf(first)
        below = self._costs.below(name, threshold)
        return Split(name, threshold, self._costs.part(below).leaf(first), self._costs.part(~below).leaf(second))

    def point(self, rule: Rule) -> Config | None:
        """The config that is a rule; None for a rule of more thresholds, or of values between the same layers."""
        match rule:
            case Leaf((first, *_)):
                values: tuple[Value, ...] = (NONE, 0, first, first)
            case Split(name, threshold, Leaf((first, *_)), Leaf((second, *_))):
                values = (name, threshold, first, second)
            case _:
                return None
        config = Config(FAMILY, tuple(zip((param.name for param in self.params), values, strict=True)))
        return None if self.row_of(config) is None or self.rule(config) != rule else config
