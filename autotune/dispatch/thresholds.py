"""matrix -> dispatch: the rule of thresholds that loses the fewest milliseconds over a set of layers.

What is counted is time, each layer's weighted by how often the network runs it, and never the layers that are given
another kernel than their best: a threshold does not move for two kernels that are as fast as each other.

At each end of a rule the kernels are tried in an order: first what is expected to lose least on layers like those that
end there, by what these and like configs say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autotune.dispatch.portfolio import Floats, Ints, expected
from autotune.dispatcher.dispatcher import Leaf, Rule, Split, leaves

DEPTH = 3
"""Thresholds in a row, at most."""
SHARE = 10
"""Each side of a threshold has at least one in so many of the layers, rounded down."""


@dataclass(frozen=True)
class Costs:
    """What a rule for a set of layers costs."""

    properties: tuple[str, ...]
    values: Ints
    """[layers, properties]"""
    kernels: tuple[str, ...]
    lost_us: Floats
    """[layers, kernels]; weighted, when the kernel serves the layer; infinite where it may not"""
    nothing_us: Floats
    """[layers]; the same when nothing does"""
    said: Floats
    """[layers, kernels]; what each layer says of each kernel and those like it: log regrets"""
    evidence: Floats
    """[layers, kernels]; how much it says"""

    def leaf(self, first: str | None = None) -> Leaf:
        """The kernels in the order for these layers, another one first if asked for."""
        order = np.argsort(expected(self.said.sum(axis=0), self.evidence.sum(axis=0)), kind="stable")
        names = [self.kernels[position] for position in order]
        return Leaf(tuple(dict.fromkeys([*([first] if first else []), *names])))

    def of(self, rule: Rule) -> float:
        """Weighted microseconds that a rule loses."""
        if isinstance(rule, Leaf):
            order = [self.kernels.index(name) for name in rule.kernels]
            lost = self.lost_us[:, order]
            fits = np.isfinite(lost)
            first = lost[np.arange(len(lost)), np.argmax(fits, axis=1)]
            return float(np.where(fits.any(axis=1), first, self.nothing_us).sum())
        below = self.below(rule.property, rule.threshold)
        return self.part(below).of(rule.below) + self.part(~below).of(rule.above)

    def below(self, name: str, threshold: int) -> np.typing.NDArray[np.bool_]:
        """[layers]; which lie below a threshold."""
        found: np.typing.NDArray[np.bool_] = self.values[:, self.properties.index(name)] < threshold
        return found

    def part(self, rows: np.typing.NDArray[np.bool_]) -> Costs:
        """The same of some of the layers."""
        names = ("values", "lost_us", "nothing_us", "said", "evidence")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def gaps(self) -> Iterator[tuple[str, int]]:
        """Every threshold that tells two neighbouring layers apart: the property and the value."""
        for position, name in enumerate(self.properties):
            for low, high in pairwise(np.unique(self.values[:, position]).tolist()):
                yield name, between(low, high)


def between(low: int, high: int) -> int:
    """The threshold that tells two neighbouring values apart: the middle of their logarithms, above the lower one."""
    return max(low + 1, min(high, round(math.sqrt(max(low, 0.5) * high))))


def grown(costs: Costs, depth: int, least: int) -> Rule:
    """A tree of at most so many thresholds in a row, each the one that loses least when the rule ends beneath it.

    Each side of a threshold has at least `least` layers. Where no threshold loses less than none, there is none.
    """
    best: Rule = costs.leaf()
    if depth == 0 or len(costs.values) < 2 * least:
        return best
    lost = costs.of(best)
    for name, threshold in costs.gaps():
        below = costs.below(name, threshold)
        if min(below.sum(), (~below).sum()) < least:
            continue
        rule = Split(name, threshold, costs.part(below).leaf(), costs.part(~below).leaf())
        if costs.of(rule) < lost:
            lost, best = costs.of(rule), rule
    if isinstance(best, Leaf):
        return best
    below = costs.below(best.property, best.threshold)
    first, second = (grown(costs.part(side), depth - 1, least) for side in (below, ~below))
    return replace(best, below=first, above=second)


def best_rule(costs: Costs, within_us: float) -> Rule:
    """The simplest rule that loses no more than `within_us` over the best: one order, a threshold, or a tree."""
    least = max(1, len(costs.values) // SHARE)
    return simplest(costs, [grown(costs, depth, least) for depth in range(DEPTH + 1)], within_us)


def simplest(costs: Costs, rules: Sequence[Rule], within_us: float) -> Rule:
    """Of rules that lose no more than `within_us` over the best of them, the one with the fewest ends."""
    least = min(costs.of(rule) for rule in rules)
    near = [rule for rule in rules if costs.of(rule) <= least + within_us]
    return min(near, key=lambda rule: (leaves(rule), costs.of(rule)))
