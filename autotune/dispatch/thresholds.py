"""matrix -> dispatch: compute the time that a rule loses over a set of layers, and the best threshold between kernels.

The loss is time, weighted by count, rather than the number of layers that don't get their best kernel. A threshold
between two equally fast kernels therefore has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.dispatch.dispatcher import FASTEST, Rule, Split, ends
from autotune.dispatch.matrix import Bools, Floats, Ints

_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Costs:
    """The costs of rules on a set of layers."""

    properties: tuple[str, ...]
    values: Ints
    """[layers, properties]"""
    kernels: tuple[str, ...]
    lost_us: Floats
    """[layers, kernels]; weighted loss with the kernel, halfway between measured and expected; infinite if it does not
    support the layer
    """
    nothing_us: Floats
    """[layers]; weighted loss without any kernel"""
    times: Ints
    """[layers, kernels]; expected time, by which kernels are ordered: relative time times padded outputs"""

    def of(self, rule: Rule) -> float:
        """Return a rule's weighted loss in microseconds."""
        if isinstance(rule, str):
            return float(self.lost_by(rule).sum())
        below = self.below(rule.property, rule.threshold)
        return float(np.where(below, self.lost_by(rule.below), self.lost_by(rule.above)).sum())

    def lost_by(self, first: str) -> Floats:
        """Return the weighted loss in microseconds [layers] if the same kernel is tried first on all layers."""
        serving = serving_kernels(first, self.kernels, np.isfinite(self.lost_us), self.times)
        lost_us: Floats = np.where(serving < 0, self.nothing_us, self.lost_us[np.arange(len(serving)), serving])
        return lost_us

    def below(self, name: str, threshold: int) -> Bools:
        """Return whether each layer is below a threshold [layers]."""
        below: Bools = self.values[:, self.properties.index(name)] < threshold
        return below


def gaps_of(properties: Sequence[str], values: Ints) -> Iterator[tuple[str, int]]:
    """Yield every threshold that separates two neighbouring layers, given their values [layers, properties]."""
    for position, name in enumerate(properties):
        for low, high in pairwise(np.unique(values[:, position]).tolist()):
            yield name, between(low, high)


def serving_kernels(first: str, kernels: Sequence[str], fits: Bools, times: Ints) -> Ints:
    """Return the position of the kernel that runs each layer if `first` is tried first [layers], or -1 if none does.

    `fits` and `times` are [layers, kernels]. For measured layers, `Dispatcher.choose` chooses the same kernels.
    """
    positions: Ints = np.where(fits.any(axis=1), np.argmin(np.where(fits, times, _LAST), axis=1), -1)
    if first == FASTEST:
        return positions
    at = kernels.index(first)
    preferred: Ints = np.where(fits[:, at], at, positions)
    return preferred


def between(low: int, high: int) -> int:
    """Return the threshold between two neighbouring values: halfway between their logarithms, above the lower value."""
    return max(low + 1, min(high, round(math.sqrt(max(low, 0.5) * high))))


def best_rule(costs: Costs) -> Rule:
    """Return the rule that loses the least: the best kernel to try first, or the best threshold between two kernels.

    A threshold is chosen only if it loses less than a single kernel, and a kernel is tried first only if that loses
    less than FASTEST.
    """
    options = [FASTEST, *costs.kernels]
    lost = np.stack([costs.lost_by(first) for first in options], axis=1)

    def best(rows: Bools) -> tuple[float, str]:
        totals = lost[rows].sum(axis=0)
        return float(totals.min()), options[int(np.argmin(totals))]

    rule: Rule
    least, rule = best(np.ones(len(lost), dtype=np.bool_))
    for name, threshold in gaps_of(costs.properties, costs.values):
        below = costs.below(name, threshold)
        (low, below_first), (high, above_first) = best(below), best(~below)
        if low + high < least and not math.isclose(low + high, least):  # by more than rounding errors
            least, rule = low + high, Split(name, threshold, below_first, above_first)
    return rule


def simplest(costs: Costs, rules: Sequence[Rule], within_us: float) -> Rule:
    """Return the simplest rule among those that lose at most `within_us` relative to the best one.

    The simplest rule has the fewest ends and mentions the fewest kernels.
    """
    least = min(costs.of(rule) for rule in rules)
    near = [rule for rule in rules if costs.of(rule) <= least + within_us]
    return min(near, key=lambda rule: (len(ends(rule)), sum(map(bool, ends(rule))), costs.of(rule)))
