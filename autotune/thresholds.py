"""matrix -> dispatch: the rule of thresholds that loses the fewest milliseconds over a set of layers.

What is counted is time, each layer's weighted by how often the network runs it, and never the layers that are given
another kernel than their best: a threshold does not move for two kernels that are as fast as each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.dispatcher import Leaf, Rule, Split, leaves
from autotune.portfolio import Floats, Ints

SHARE = 10
"""Each side of a threshold has at least one in so many of the layers, rounded down."""


@dataclass(frozen=True)
class Costs:
    """What a rule for a set of layers costs."""

    properties: tuple[str, ...]
    values: Ints
    """[layers, properties]"""
    lost_us: Floats
    """[layers, kernels]; when the rule names a kernel"""
    kernels: tuple[str, ...]

    def of(self, rule: Rule) -> float:
        """Weighted microseconds that a rule loses."""
        return float(self.lost_us[np.arange(len(self.values)), self.named(rule)].sum())

    def named(self, rule: Rule) -> Ints:
        """[layers]; the position of the kernel that the rule names."""
        if isinstance(rule, Leaf):
            return np.full(len(self.values), self.kernels.index(rule.kernel), dtype=np.int64)
        below = self.values[:, self.properties.index(rule.property)] < rule.threshold
        return np.where(below, self.named(rule.below), self.named(rule.above))

    def part(self, rows: Ints) -> Costs:
        """The same of some of the layers."""
        return Costs(self.properties, self.values[rows], self.lost_us[rows], self.kernels)

    def gaps(self) -> Iterator[tuple[int, int, int]]:
        """Every property's position with two values that are neighbours among the layers."""
        for position in range(len(self.properties)):
            distinct = np.unique(self.values[:, position])
            for low, high in pairwise(distinct.tolist()):
                yield position, low, high


def between(low: int, high: int) -> int:
    """The threshold that tells two neighbouring values apart: the middle of their logarithms, above the lower one."""
    return max(low + 1, min(high, round(math.sqrt(max(low, 0.5) * high))))


def best_leaf(costs: Costs) -> Leaf:
    """The kernel that loses least when it comes first for all layers; the earlier one of equals."""
    return Leaf(costs.kernels[int(np.argmin(costs.lost_us.sum(axis=0)))])


def best_split(costs: Costs, least: int) -> Rule:
    """The single threshold that loses least, with at least `least` layers on each side; else one kernel."""
    best = best_leaf(costs)
    lost, found = costs.of(best), None
    for position, name in enumerate(costs.properties):
        order = np.argsort(costs.values[:, position], kind="stable")
        values = costs.values[order, position]
        below = np.cumsum(costs.lost_us[order], axis=0)
        total = below[-1] - below
        both = below.min(axis=1) + total.min(axis=1)
        cuts = np.flatnonzero(values[:-1] < values[1:])
        cuts = cuts[(cuts + 1 >= least) & (len(values) - cuts - 1 >= least)]
        if len(cuts) and both[cuts].min() < lost:
            cut = int(cuts[np.argmin(both[cuts])])
            lost, found = float(both[cut]), (name, int(values[cut]), int(values[cut + 1]), below[cut], total[cut])
    if found is None:
        return best
    name, low, high, under, over = found
    first, second = (Leaf(costs.kernels[int(np.argmin(side))]) for side in (under, over))
    return Split(name, between(low, high), first, second)


def best_pair(costs: Costs, least: int) -> Rule:
    """The tree of at most two thresholds in a row that loses least; each side has at least `least` layers."""
    best: Rule = best_split(costs, least)
    lost = costs.of(best)
    for position, low, high in costs.gaps():
        below = costs.values[:, position] <= low
        if min(below.sum(), (~below).sum()) < least:
            continue
        sides = [costs.part(np.flatnonzero(side)) for side in (below, ~below)]
        first, second = (best_split(side, least) for side in sides)
        both = sides[0].of(first) + sides[1].of(second)
        if both < lost:
            lost, best = both, Split(costs.properties[position], between(low, high), first, second)
    return merged(best)


def grown(costs: Costs, rule: Rule, least: int) -> Rule:
    """A tree whose two sides are made anew, each of at most two thresholds in a row."""
    if isinstance(rule, Leaf):
        return rule
    below = costs.values[:, costs.properties.index(rule.property)] < rule.threshold
    first, second = (best_pair(costs.part(np.flatnonzero(side)), least) for side in (below, ~below))
    return merged(Split(rule.property, rule.threshold, first, second))


def merged(rule: Rule) -> Rule:
    """The rule without thresholds whose two sides are the same."""
    if isinstance(rule, Leaf):
        return rule
    below, above = merged(rule.below), merged(rule.above)
    return below if below == above else Split(rule.property, rule.threshold, below, above)


def best_rule(costs: Costs, within_us: float) -> Rule:
    """The simplest rule that loses no more than `within_us` over the best: one kernel, a threshold, or a tree."""
    least = max(1, len(costs.values) // SHARE)
    pair = best_pair(costs, least)
    return simplest(costs, [best_leaf(costs), best_split(costs, least), pair, grown(costs, pair, least)], within_us)


def simplest(costs: Costs, rules: Sequence[Rule], within_us: float) -> Rule:
    """Of rules that lose no more than `within_us` over the best of them, the one with the fewest ends."""
    least = min(costs.of(rule) for rule in rules)
    near = [rule for rule in rules if costs.of(rule) <= least + within_us]
    return min(near, key=lambda rule: (leaves(rule), costs.of(rule)))
