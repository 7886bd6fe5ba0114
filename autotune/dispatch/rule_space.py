"""matrix -> search: the rules of at most one threshold as a search space, whose configs the project's search proposes.

A threshold takes only the values between neighbouring layers, and its two sides begin with different kernels.
"""

from __future__ import annotations

import numpy as np

from autotune.dispatch.dispatcher import FAMILY, Leaf, Rule, Split
from autotune.dispatch.thresholds import Costs
from autotune.family.space import ListedSpace
from autotune.family.template import Param
from autotune.trial import Config, Value

NONE = "none"
"""The property of a rule without a threshold."""


class RuleSpace(ListedSpace):
    """Every rule of at most one threshold for some layers and kernels, searched as a family's configs are."""

    template = FAMILY
    complete = True

    def __init__(self, costs: Costs) -> None:
        gaps = list(costs.gaps())
        thresholds = tuple(sorted({0, *(threshold for _, threshold in gaps)}))
        properties = (NONE, *dict.fromkeys(name for name, _ in gaps))
        self.params = (
            Param("property", properties, "what of a layer the threshold is on"),
            Param("threshold", thresholds, "the least value that is not below it"),
            Param("below_first", costs.kernels, "the kernel tried first for layers below it"),
            Param("above_first", costs.kernels, "the kernel tried first for the others"),
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
        self.rows = np.array(rows, dtype=np.int16).reshape(len(rows), len(self.params))

    def rule(self, config: Config) -> Rule:
        """The rule that a config of this space is."""
        values = config.values()
        name, threshold = str(values["property"]), int(values["threshold"])
        first, second = str(values["below_first"]), str(values["above_first"])
        if name == NONE:
            return Leaf((first,))
        return Split(name, threshold, Leaf((first,)), Leaf((second,)))

    def point(self, rule: Rule) -> Config | None:
        """The config that is a rule; None for a rule of more thresholds, or of values between the same layers."""
        match rule:
            case Leaf((first,)):
                values: tuple[Value, ...] = (NONE, 0, first, first)
            case Split(name, threshold, Leaf((first,)), Leaf((second,))):
                values = (name, threshold, first, second)
            case _:
                return None
        config = Config(FAMILY, tuple(zip((param.name for param in self.params), values, strict=True)))
        return None if self.row_of(config) is None else config
