"""verify -> measure: samples of one kernel until they say enough -> `Timing`.

A stopping criterion is a pure object: it sees the samples so far and nothing else.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.trial import Timing

RACE_FACTOR = 3.0  # a kernel this many times slower than the best known is not timed further


class Criterion(Protocol):
    """Decides when a list of samples is enough."""

    def enough(self, samples_us: Sequence[float]) -> bool:
        """Whether to stop after these samples."""


@dataclass(frozen=True, slots=True)
class Converged:
    """Stop when the median's 95 % confidence half-width is small, or when time or samples run out."""

    relative: float = 0.01
    """half-width over median"""
    absolute_us: float = 0.5
    """half-width that is always good enough: the resolution of device events"""
    least: int = 5
    """samples, before anything is judged"""
    most: int = 50
    """samples"""
    budget_us: float = 1_000_000.0
    """summed samples"""
    batch: int = 5
    """samples between two judgements"""

    def enough(self, samples_us: Sequence[float]) -> bool:
        """Whether the samples' median is known well enough."""
        count = len(samples_us)
        if count >= self.most or (count >= self.least and sum(samples_us) >= self.budget_us):
            return True
        if count < self.least or (count - self.least) % self.batch:
            return False
        goal = max(self.relative * statistics.median(samples_us), self.absolute_us)
        return median_half_width(samples_us) <= goal


@dataclass(frozen=True, slots=True)
class Race:
    """Stop at once when the first sample is far behind the best known kernel, else as `then` says."""

    best_us: float
    then: Criterion

    def enough(self, samples_us: Sequence[float]) -> bool:
        """Whether the race is lost or the samples suffice."""
        return lost(samples_us, self.best_us) or self.then.enough(samples_us)


def lost(samples_us: Sequence[float], best_us: float) -> bool:
    """Whether even the fastest sample is more than RACE_FACTOR times the best known."""
    return bool(samples_us) and min(samples_us) > RACE_FACTOR * best_us


def median_half_width(samples_us: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the median, from order statistics (binomial, p = 1/2)."""
    ordered = sorted(samples_us)
    count = len(ordered)
    reach = 0.98 * math.sqrt(count)  # 1.96 / 2 * sqrt(count) ranks on each side of the middle
    low = max(0, math.floor((count - 1) / 2 - reach))
    high = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return (ordered[high] - ordered[low]) / 2


def measure(sample: Callable[[], float], criterion: Criterion, *, cache: str) -> Timing:
    """Take samples (microseconds) until the criterion has enough."""
    samples: list[float] = []
    while not criterion.enough(samples):
        samples.append(sample())
    return summarise(samples, cache)


def interleave(
    samplers: Sequence[Callable[[], float]],
    *,
    budget_s: float,
    least: int,
    most: int,
    rng: random.Random,
    clock: Callable[[], float],
) -> list[list[float]]:
    """Sample contenders in rounds, each once a round in a random order, for about `budget_s` of wall clock.

    Sample i of each contender was taken in round i, so that two contenders can be compared in pairs.
    """
    taken: list[list[float]] = [[] for _ in samplers]
    started = clock()
    order = list(range(len(samplers)))
    for rounds in range(most):
        if rounds >= least and clock() - started >= budget_s:
            break
        rng.shuffle(order)
        for position in order:
            taken[position].append(samplers[position]())
    return taken


def paired_ratio(ours_us: Sequence[float], theirs_us: Sequence[float]) -> tuple[float, float, float]:
    """Low, median and high of ours / theirs over rounds: the median and its 95 % confidence interval."""
    ratios = [ours / theirs for ours, theirs in zip(ours_us, theirs_us, strict=True)]
    half = median_half_width(ratios)
    median = statistics.median(ratios)
    return median - half, median, median + half


def summarise(samples_us: Sequence[float], cache: str) -> Timing:
    """Median and quartiles of samples in the order taken."""
    if len(samples_us) == 1:
        q1 = median = q3 = samples_us[0]
    else:
        q1, median, q3 = statistics.quantiles(samples_us, n=4, method="inclusive")
    return Timing(tuple(samples_us), median, q1, q3, cache)
