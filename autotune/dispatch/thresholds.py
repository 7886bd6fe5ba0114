"""matrix -> dispatch: the time that a rule loses over a set of layers, and the best thresholds between kernels.

The loss is time, weighted by count. It is not the number of layers that do not get their best kernel, so a threshold
between two equally fast kernels does not move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autotune.dispatch.dispatcher import FASTEST, Leaf, Rule, Split, ends, leaves
from autotune.dispatch.matrix import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Gap:
    """A threshold between two neighbouring values of a property."""

    property: str
    threshold: int
    """the smallest value on the upper side"""


_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Costs:
    """The costs of rules for a set of layers."""

    properties: tuple[str, ...]
    values: Ints
    """[layers, properties]"""
    kernels: tuple[str, ...]
    lost_us: Floats
    """[layers, kernels]; weighted loss with the kernel, halfway between measured and expected; infinite if it does not
    support the layer
    """
    nothing_us: Floats
    """[layers]; the same without any kernel"""
    times: Ints
    """[layers, kernels]; the measure that orders kernels: relative time times padded outputs"""

    def of(self, rule: Rule) -> float:
        """The weighted loss of a rule in microseconds."""
        if isinstance(rule, Leaf):
            return float(self.lost_by(rule).sum())
        below = self.below(Gap(rule.property, rule.threshold))
        return self.part(below).of(rule.below) + self.part(~below).of(rule.above)

    def lost_by(self, leaf: Leaf) -> Floats:
        """[layers]; the weighted loss in microseconds if they end at the same leaf."""
        serving = serving_kernels(leaf, self.kernels, np.isfinite(self.lost_us), self.times)
        lost_us: Floats = np.where(serving < 0, self.nothing_us, self.lost_us[np.arange(len(serving)), serving])
        return lost_us

    def below(self, gap: Gap) -> Bools:
        """[layers]; whether each layer is below a threshold."""
        below: Bools = self.values[:, self.properties.index(gap.property)] < gap.threshold
        return below

    def part(self, rows: Bools) -> Costs:
        """The same of some of the layers."""
        names = ("values", "lost_us", "nothing_us", "times")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def gaps_of(properties: Sequence[str], values: Ints) -> Iterator[Gap]:
    """Every threshold that separates two neighbouring layers, by their values [layers, properties]."""
    for position, name in enumerate(properties):
        for low, high in pairwise(np.unique(values[:, position]).tolist()):
            yield Gap(name, between(low, high))


def serving_kernels(leaf: Leaf, kernels: Sequence[str], fits: Bools, times: Ints) -> Ints:
    """[layers]; the position of the kernel that a leaf chooses for each layer; -1: none supports it.

    `fits` and `times` are [layers, kernels]. For measured layers this is what `Dispatcher.choose` returns.
    """
    positions: Ints = np.where(fits.any(axis=1), np.argmin(np.where(fits, times, _LAST), axis=1), -1)
    for first in reversed([kernels.index(name) for name in leaf.kernels]):
        positions = np.where(fits[:, first], first, positions)
    return positions


def between(low: int, high: int) -> int:
    """The threshold between two neighbouring values: the middle of their logarithms, above the lower one."""
    return max(low + 1, min(high, round(math.sqrt(max(low, 0.5) * high))))


def best_tree(costs: Costs, depth: int) -> Rule:
    """The best rule of at most `depth` nested thresholds; each minimises the loss if the rule ends below it.

    A leaf puts a kernel first only if that loses less than no kernel, and a threshold is added only if it reduces the
    loss.
    """
    options = [FASTEST, *(Leaf((name,)) for name in costs.kernels)]
    lost = np.stack([costs.lost_by(leaf) for leaf in options], axis=1)
    least = float(lost.sum(axis=0).min())
    best_gap: Gap | None = None
    for gap in gaps_of(costs.properties, costs.values) if depth else ():
        below = costs.below(gap)
        total = sum(float(lost[side].sum(axis=0).min()) for side in (below, ~below))
        if total < least and not math.isclose(total, least):  # by more than rounding
            least, best_gap = total, gap
    if best_gap is None:
        return options[int(np.argmin(lost.sum(axis=0)))]
    below = costs.below(best_gap)
    return Split(
        best_gap.property, best_gap.threshold, *(best_tree(costs.part(side), depth - 1) for side in (below, ~below))
    )


def simplest(costs: Costs, rules: Sequence[Rule], within_us: float) -> Rule:
    """The rule with the fewest leaves and named kernels among those that lose at most `within_us`
    relative to the best.
    """
    least = min(costs.of(rule) for rule in rules)
    near = [rule for rule in rules if costs.of(rule) <= least + within_us]
    return min(near, key=lambda rule: (leaves(rule), sum(len(leaf.kernels) for leaf in ends(rule)), costs.of(rule)))
