"""verify -> measure: take samples of a kernel until there are enough, and summarise them as a `Timing`.

When to stop depends only on the samples taken so far.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.devices.device import Health, Sample
from autotune.trial import Launching, Timing

RACE_FACTOR = 3.0  # a kernel that takes this many times as long as the best one is not timed further
FIRST_RUN_US = 100.0  # additional time for loading code in a first run, which takes 40 to 80 us on an H200
BEHIND = 1.05  # a kernel that is certainly slower by this factor is not timed more precisely
KNOWN = 0.002  # half-width of a ratio's 95 % confidence interval, below which no more rounds are needed
APART = 0.01  # two kernels that certainly differ by this fraction are not timed more precisely
THROTTLED = 0.9  # fraction of the worker's median clock below which a sample is repeated
MOST_DISCARDED = 0.2  # maximum fraction of samples to discard; further throttled samples are kept and counted
_JUDGED_AFTER = 20  # number of clocks needed for a median
_JUDGED_EVERY = 5  # rounds between two checks for contenders to drop


@dataclass(frozen=True, slots=True)
class Converged:
    """Stop when the median's 95 % confidence interval is narrow enough, or when time or samples run out.

    Stop immediately if even the fastest sample is far behind the best kernel, and soon if the kernel is certain to be
    slower. Only the top trials need precise times, because the order of slower kernels doesn't matter.
    """

    best_us: float = math.inf
    """time of the best kernel"""
    relative: float = 0.01
    """sufficient half-width, as a fraction of the median"""
    absolute_us: float = 0.5
    """half-width that is always sufficient: the resolution of device events"""
    least: int = 5
    """minimum number of samples before the median counts as precise, or the kernel as certainly slower"""
    most: int = 50
    """maximum number of samples"""
    budget_us: float = 1_000_000.0
    """limit for the sum of all samples"""
    batch: int = 5
    """number of samples between two checks of the precision"""

    def enough(self, samples_us: Sequence[float]) -> bool:
        """Return whether to stop after these samples."""
        count = len(samples_us)
        if lost(samples_us, self.best_us) or count >= self.most:
            return True
        if count < self.least:
            return False
        if sum(samples_us) >= self.budget_us or surely_behind(samples_us, self.best_us):
            return True
        if (count - self.least) % self.batch:
            return False
        goal = max(self.relative * statistics.median(samples_us), self.absolute_us)
        return median_half_width(samples_us) <= goal


def lost(samples_us: Sequence[float], best_us: float) -> bool:
    """Return whether even the fastest sample exceeds RACE_FACTOR times the best time."""
    return bool(samples_us) and min(samples_us) > RACE_FACTOR * best_us


def surely_behind(samples_us: Sequence[float], best_us: float) -> bool:
    """Return whether even the fastest sample exceeds BEHIND times the best time."""
    return bool(samples_us) and min(samples_us) > BEHIND * best_us


def lost_at_first(first_us: float, best_us: float) -> bool:
    """Return whether a kernel's first run already shows that it has lost the race."""
    return lost([first_us - FIRST_RUN_US], best_us)


def median_half_width(samples_us: Sequence[float]) -> float:
    """Return half the width of the median's 95 % confidence interval, from order statistics (binomial, p = 1/2)."""
    ordered = sorted(samples_us)
    count = len(ordered)
    reach = 0.98 * math.sqrt(count)  # 1.96 / 2 * sqrt(count) ranks on each side of the middle
    low = max(0, math.floor((count - 1) / 2 - reach))
    high = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return (ordered[high] - ordered[low]) / 2


class Samples:
    """One kernel's samples. Samples at a throttled clock are repeated, up to a fraction of MOST_DISCARDED."""

    def __init__(self, take: Callable[[], Sample], clocks: Clocks, first: Sequence[Sample] = ()) -> None:
        self._take, self._clocks = take, clocks
        self.taken: list[Sample] = []
        self.discarded = self.throttled = 0
        for sample in first:
            self._judge(sample)

    def add(self) -> None:
        """Take one more valid sample."""
        count = len(self.taken)
        while len(self.taken) == count:
            self._judge(self._take())

    def _judge(self, sample: Sample) -> None:
        if self._clocks.throttled(sample.sm_clock_mhz):
            if self.discarded + 1 <= MOST_DISCARDED * (len(self.taken) + self.discarded + 1):
                self.discarded += 1
                return
            self.throttled += 1
        self.taken.append(sample)

    @property
    def samples_us(self) -> list[float]:
        """The time of each sample."""
        return [sample.us for sample in self.taken]

    def timing(self, cache: str, health: Health, *, passes: int = 1, launch: Launching = "stream") -> Timing:
        """Summarise the samples. `health` was read after the last one; `passes` is the number of passes per sample."""
        clocks = tuple(sample.sm_clock_mhz for sample in self.taken if sample.sm_clock_mhz is not None)
        return replace(
            summarise(self.samples_us, cache),
            sm_clocks_mhz=clocks if len(clocks) == len(self.taken) else (),
            discarded=self.discarded,
            throttled=self.throttled,
            passes=passes,
            launch=launch,
            power_w=health.power_w,
            temperature_c=health.temperature_c,
        )


class Clocks:
    """The clocks during a worker's samples.

    A sample's clock is compared with the median of earlier ones, because some GPUs never reach the nominal clock.
    """

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=500)

    def throttled(self, clock_mhz: float | None) -> bool:
        """Return whether a sample's clock is far below the worker's median so far."""
        if clock_mhz is None:
            return False
        low = len(self._seen) >= _JUDGED_AFTER and clock_mhz < THROTTLED * statistics.median(self._seen)
        self._seen.append(clock_mhz)
        return low


def measure(samples: Samples, criterion: Converged) -> None:
    """Take samples until there are enough."""
    while not criterion.enough(samples.samples_us):
        samples.add()


def interleave(
    all_samples: Sequence[Samples],
    *,
    budget_s: float,
    least: int,
    most: int,
    rng: random.Random,
    clock: Callable[[], float],
    contested: Callable[[Sequence[Samples]], Sequence[Samples]] = list,
) -> None:
    """Sample the contenders in rounds for about `budget_s` of wall-clock time.

    Each round samples each contender once, in random order, so that two contenders can be compared in pairs: sample i
    of each contender comes from round i. From time to time, contenders that `contested` doesn't return are dropped.
    Sampling ends when it returns none.
    """
    started = clock()
    order = list(all_samples)
    for rounds in range(most):
        if rounds and not rounds % _JUDGED_EVERY:
            left = list(contested(order))
            if not left and rounds >= least:
                break
            order = left or order
        if rounds >= least and clock() - started >= budget_s:
            break
        rng.shuffle(order)
        for samples in order:
            samples.add()


def close_contest(contenders: Sequence[Samples]) -> Sequence[Samples]:
    """Return the contenders that haven't lost the race.

    Returns none if the fastest contender's median and its ratio to each of the others are known precisely.
    """
    medians = [statistics.median(samples.samples_us) for samples in contenders]
    best_us = min(medians)
    best = contenders[medians.index(best_us)]
    close = [each for each in contenders if not lost(each.samples_us, best_us)]
    known = median_half_width(best.samples_us) <= KNOWN * best_us
    return [] if known and all(_is_known_apart(best, each) for each in close if each is not best) else close


def _is_known_apart(best: Samples, other: Samples) -> bool:
    """Return whether the ratio to the other contender is known precisely enough."""
    low, _, high = paired_ratio(best.samples_us, other.samples_us)
    return high < 1 - APART or (high - low) / 2 <= KNOWN


def paired_ratio(ours_us: Sequence[float], theirs_us: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of ours / theirs over common rounds with its 95 % confidence interval: low, median, high."""
    ratios = [ours / theirs for ours, theirs in zip(ours_us, theirs_us, strict=False)]
    half = median_half_width(ratios)
    median = statistics.median(ratios)
    return median - half, median, median + half


def summarise(samples_us: Sequence[float], cache: str) -> Timing:
    """Return a timing with the median and quartiles of these samples, which are in the order of measurement."""
    if len(samples_us) == 1:
        q1 = median = q3 = samples_us[0]
    else:
        q1, median, q3 = statistics.quantiles(samples_us, n=4, method="inclusive")
    return Timing(tuple(samples_us), median, q1, q3, cache)
