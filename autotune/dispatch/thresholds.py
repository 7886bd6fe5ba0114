"""matrix -> dispatch: the rule of thresholds that loses the fewest milliseconds over a set of layers.

What is counted is time, each layer's weighted by how often the network runs it, and never the layers that are given
another kernel than their best: a threshold does not move for two kernels that are as fast as each other.

At each end of a rule a kernel has a pace: the time to expect of it on the layers that end there, by what these, the
layers near them and like configs say, where nothing of the device idles. What idles is known of any layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autotune.dispatch.portfolio import Bools, Floats, Ints
from autotune.dispatcher.dispatcher import Leaf, Rule, Split, leaves

DEPTH = 3
"""Thresholds in a row, at most."""
SHARE = 20
"""Each side of a threshold has at least one in so many of the layers, rounded down."""
UNIT = 1000
"""Pace, before it is squared, of a kernel that takes as long as a layer's best."""
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Costs:
    """What a rule for a set of layers costs."""

    properties: tuple[str, ...]
    values: Ints
    """[layers, properties]"""
    kernels: tuple[str, ...]
    lost_us: Floats
    """[layers, kernels]; weighted, when the kernel serves the layer, halfway between what was measured and what is
    expected; infinite where it may not"""
    nothing_us: Floats
    """[layers]; the same when nothing does"""
    expected: Floats
    """[layers, kernels]; log regrets, where nothing idles"""
    room: Ints
    """[layers, kernels]; as in the matrix"""

    def leaf(self, first: str | None = None) -> Leaf:
        """The kernels with their paces for these layers, the least first; another one before all if asked for."""
        squares = np.rint((UNIT * np.exp(self.expected.mean(axis=0))) ** 2).astype(np.int64).tolist()
        paces = dict(zip(self.kernels, squares, strict=True)) | ({first: 0} if first else {})
        kernels = sorted(paces, key=lambda name: paces[name])
        return Leaf(tuple(kernels), tuple(paces[name] for name in kernels))

    def of(self, rule: Rule) -> float:
        """Weighted microseconds that a rule loses."""
        if isinstance(rule, Leaf):
            serving = taken(rule, self.kernels, np.isfinite(self.lost_us), self.room)
            lost = self.lost_us[np.arange(len(serving)), serving]
            return float(np.where(serving < 0, self.nothing_us, lost).sum())
        below = self.below(rule.property, rule.threshold)
        return self.part(below).of(rule.below) + self.part(~below).of(rule.above)

    def below(self, name: str, threshold: int) -> Bools:
        """[layers]; which lie below a threshold."""
        found: Bools = self.values[:, self.properties.index(name)] < threshold
        return found

    def part(self, rows: Bools) -> Costs:
        """The same of some of the layers."""
        names = ("values", "lost_us", "nothing_us", "expected", "room")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def gaps(self) -> Iterator[tuple[str, int]]:
        """Every threshold that tells two neighbouring layers apart: the property and the value."""
        for position, name in enumerate(self.properties):
            for low, high in pairwise(np.unique(self.values[:, position]).tolist()):
                yield name, between(low, high)


def taken(leaf: Leaf, kernels: Sequence[str], fits: Bools, room: Ints) -> Ints:
    """[layers]; the position of the kernel that an end of a rule takes for each; -1: none fits.

    `fits` and `room` are [layers, kernels]. The same as `Dispatcher.choose` says, of layers that were measured.
    """
    order = [kernels.index(name) for name in dict.fromkeys([*leaf.kernels, *kernels])]
    squares = np.zeros((len(fits), len(order)), dtype=np.int64)
    if leaf.paces:
        squares[:] = _LAST - 1
        squares[:, : len(leaf.paces)] = np.array(leaf.paces) * room[:, order[: len(leaf.paces)]]
    first = np.argmin(np.where(fits[:, order], squares, _LAST), axis=1)
    found: Ints = np.where(fits.any(axis=1), np.array(order)[first], -1)
    return found


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
