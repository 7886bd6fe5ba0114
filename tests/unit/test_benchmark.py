"""When timing stops, on samples recorded on a GPU; the precision of a median; rounds of contenders.

The recorded lists are the 32 runs, in order, of single configs of a convolution on an RTX A6000, in microseconds. They
are from the spaces published with the T4 benchmark of auto-tuners (Kernel Tuner's `convolution_milo`).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest

from autotune.devices.device import Health, Sample
from autotune.measurement.benchmark import (
    Clocks,
    Converged,
    Samples,
    close_contest,
    interleave,
    lost,
    lost_at_first,
    measure,
    median_half_width,
    paired_ratio,
    summarise,
)
from autotune.trial import Config, Outcome, Timing, Trial
from autotune.tuning.layer_finals import Contender, decide

STEADY = (
    *(6843.90, 6870.81, 6862.83, 6872.67, 6872.59, 6852.56, 6849.48, 6861.46, 6854.44, 6860.24, 6854.70, 6870.70),
    *(6859.41, 6860.28, 6858.20, 6861.46, 6860.26, 6845.74, 6851.37, 6845.38, 6857.91, 6858.12, 6852.40, 6856.20),
    *(6852.59, 6857.37, 6855.52, 6859.43, 6855.29, 6853.43, 6855.49, 6865.41),
)
FIRST_IS_SLOW = (
    *(7218.18, 4454.40, 4445.18, 4469.76, 4443.14, 4445.18, 4442.11, 4448.32, 4463.62, 4490.24, 4494.34, 4438.02),
    *(4456.45, 4451.33, 4442.11, 4487.17, 4467.71, 4436.99, 4459.52, 4482.98, 4450.30, 4447.14, 4442.11, 4489.22),
    *(4478.98, 4454.40, 4412.42, 4413.44, 4413.44, 4458.50, 4407.30, 4457.47),
)
DRIFTING = (
    *(4595.71, 3821.57, 3023.87, 3022.85, 3021.82, 3022.85, 2812.93, 2579.46, 2581.50, 2579.46, 2578.43, 2579.46),
    *(2579.46, 2579.42, 2580.48, 2487.30, 2473.98, 2473.98, 2472.96, 2473.98, 2473.98, 2472.96, 2472.96, 2472.96),
    *(2473.98, 2473.98, 2473.98, 2472.96, 2472.96, 2473.98, 2472.96, 2473.98),
)
TWO_CLOCKS = (
    *(1220.29, 1174.71, 1171.10, 1168.86, 1168.47, 1169.35, 1175.85, 1171.48, 1172.02, 1174.82, 1171.89, 1172.37),
    *(1172.10, 1171.75, 1172.15, 1171.26, 1513.44, 1547.57, 1546.38, 1547.68, 1547.61, 1545.40, 1545.94, 1545.27),
    *(1546.57, 1543.54, 1545.13, 1545.27, 1546.57, 1544.64, 1545.27, 1528.35),
)


def stops_after(samples_us: Sequence[float], criterion: Converged) -> int | None:
    """The samples of a list that the criterion uses; None if the list is not enough."""
    return next((count for count in range(len(samples_us) + 1) if criterion.enough(samples_us[:count])), None)


def shuffled(samples_us: Sequence[float], seed: int) -> list[float]:
    """The same samples in another order."""
    return random.Random(seed).sample(samples_us, len(samples_us))


def test_a_steady_kernel_needs_the_least() -> None:
    assert stops_after(STEADY, Converged()) == 5


def test_one_slow_start_costs_a_few_samples_and_moves_nothing() -> None:
    count = stops_after(FIRST_IS_SLOW, Converged())
    assert count is not None
    assert 5 < count <= 15
    assert statistics.median(FIRST_IS_SLOW[:count]) == pytest.approx(statistics.median(FIRST_IS_SLOW), rel=0.003)


def test_a_drifting_kernel_is_watched_until_the_drift_has_ended() -> None:
    count = stops_after(DRIFTING, Converged())
    assert count is None or count > 20
    strict = stops_after(DRIFTING, Converged(relative=0.001))
    assert strict is None


@pytest.mark.parametrize("seed", range(20))
def test_a_kernel_between_two_clocks_takes_all_there_is(seed: int) -> None:
    mixed = shuffled(TWO_CLOCKS, seed)
    count = stops_after(mixed, Converged())
    if count is not None:
        fast = sum(one < 1400 for one in mixed[:count])
        assert abs(fast - count / 2) > 1.5, "it stops only where one clock has a clear majority"
    assert stops_after([*mixed, *mixed], Converged(relative=0.0001, absolute_us=0.0)) == 50


def heavy_tailed(seed: int, count: int) -> list[float]:
    """Times with a log-normal body and an occasional sample that is many times as long."""
    rng = np.random.default_rng(seed)
    body = 100 * np.exp(0.004 * rng.standard_normal(count))
    return [float(time_us) for time_us in body * np.where(rng.random(count) < 0.08, 1 + rng.pareto(1.2, count), 1.0)]


def test_a_heavy_tail_does_not_move_the_median() -> None:
    counts = []
    for seed in range(200):
        samples = heavy_tailed(seed, 50)
        count = stops_after(samples, Converged())
        assert count is not None
        counts.append(count)
        assert statistics.median(samples[:count]) == pytest.approx(100, rel=0.02)
    assert statistics.median(counts) <= 10


def test_the_clocks_resolution_is_good_enough() -> None:
    ticks = [4.0, 4.5, 4.0, 4.5, 5.0] * 10
    assert stops_after(ticks, Converged()) == 5
    assert stops_after(ticks, Converged(absolute_us=0.1)) == 50


def test_a_long_kernel_ends_with_its_time_budget() -> None:
    wild = [30_000.0 * (1 + at % 7) for at in range(50)]
    count = stops_after(wild, Converged(budget_us=1_000_000))
    assert count is not None
    assert sum(wild[: count - 1]) < 1_000_000 <= sum(wild[:count])
    assert stops_after([2_000_000.0, 1.0, 3.0, 2.0, 900.0], Converged()) == 5, "but never before the least"


def test_the_criterion_is_a_function_of_the_samples_alone() -> None:
    criterion = Converged()
    answers = [criterion.enough(DRIFTING[:count]) for count in range(30)]
    assert [criterion.enough(DRIFTING[:count]) for count in reversed(range(30))] == answers[::-1]


@pytest.mark.parametrize("count", [10, 15, 25, 50])
@pytest.mark.parametrize("shape", ["normal", "exponential", "uniform"])
def test_the_confidence_interval_holds_the_true_median(count: int, shape: str) -> None:
    rng = np.random.default_rng([count, len(shape)])
    true = {"normal": 10.0, "exponential": np.log(2), "uniform": 0.5}[shape]
    inside = 0
    for _ in range(600):
        samples = {
            "normal": rng.normal(10, 1, count),
            "exponential": rng.exponential(1, count),
            "uniform": rng.random(count),
        }[shape].tolist()
        half, ordered = median_half_width(samples), sorted(samples)
        assert 0 < 2 * half <= ordered[-1] - ordered[0]
        low = next(at for at in ordered if any(abs(other - at - 2 * half) < 1e-12 for other in ordered))
        inside += low <= true <= low + 2 * half
    assert inside / 600 > 0.93
    assert inside / 600 < 0.999


def test_the_interval_narrows_with_the_root_of_the_samples() -> None:
    rng = np.random.default_rng(1)
    few = np.mean([median_half_width(rng.normal(0, 1, 25).tolist()) for _ in range(300)])
    many = np.mean([median_half_width(rng.normal(0, 1, 400).tolist()) for _ in range(300)])
    assert few / many == pytest.approx(4, rel=0.25)


def test_a_race_ends_at_the_first_hopeless_sample() -> None:
    assert stops_after([301.0, 299.0], Converged(100.0)) == 1
    assert stops_after([300.0, *[299.0] * 9], Converged(100.0)) == 5


def test_only_the_leaders_are_timed_to_the_end() -> None:
    wavering = [110.0, 118.0, 106.0, 121.0, 113.0, 109.0, 117.0, 120.0] * 8
    assert stops_after(wavering, Converged(100.0)) == 5, "surely behind"
    assert stops_after(wavering, Converged(104.0)) == stops_after(wavering, Converged()) != 5


def at_clocks(*clocks_mhz: float) -> Samples:
    """The samples on a device whose clock has these values, after a session at 1,980 MHz; times follow the clock."""
    clocks = Clocks()
    for _ in range(100):
        assert not clocks.throttled(1980.0)
    values = iter(clocks_mhz)

    def take() -> Sample:
        clock_mhz = next(values)
        return Sample(198_000.0 / clock_mhz, clock_mhz)

    return Samples(take, clocks)


def test_a_throttled_sample_is_measured_again() -> None:
    samples = at_clocks(1980, 1980, 1965, 1980, 1400, 1980, 1980)
    for _ in range(6):
        samples.add()
    timing = samples.timing("cold", Health(350.0, 61.0))
    assert list(timing.sm_clocks_mhz) == [1980, 1980, 1965, 1980, 1980, 1980]
    assert (timing.discarded, timing.throttled) == (1, 0)
    assert timing.q3_us < 101
    assert (timing.power_w, timing.temperature_c) == (350.0, 61.0)


def test_a_gpu_that_stays_throttled_is_measured_as_it_is_and_the_samples_are_marked() -> None:
    samples = at_clocks(*[1400.0] * 40)
    for _ in range(20):
        samples.add()
    timing = samples.timing("cold", Health())
    assert timing.throttled == 20
    assert timing.discarded <= 0.2 * (20 + timing.discarded)
    assert set(timing.sm_clocks_mhz) == {1400.0}


def test_the_session_not_the_nominal_clock_says_what_is_throttled() -> None:
    clocks = Clocks()
    assert not any(clocks.throttled(1200.0) for _ in range(300)), "a GPU that never runs faster is not throttled"
    assert clocks.throttled(1000.0)
    assert not clocks.throttled(None)


def test_a_race_is_not_lost_by_one_slow_sample() -> None:
    assert lost([900.0], 100.0)
    assert not lost([900.0, 200.0], 100.0)
    assert not lost([], 100.0)


def measured(samples_us: Iterator[float], criterion: Converged) -> Timing:
    """The measurement from samples of a device without a clock or sensors."""
    samples = Samples(lambda: Sample(next(samples_us)), Clocks())
    measure(samples, criterion)
    return samples.timing("cold", Health())


def test_measuring_takes_what_the_criterion_wants() -> None:
    samples = iter(FIRST_IS_SLOW)
    timing = measured(samples, Converged())
    assert timing.samples_us == FIRST_IS_SLOW[: len(timing.samples_us)]
    assert len(timing.samples_us) == stops_after(FIRST_IS_SLOW, Converged())
    assert timing.cache == "cold"


def test_a_short_kernels_first_run_says_nothing_and_a_long_ones_does() -> None:
    """The first run of a kernel of 17 us was observed to take 75."""
    assert not lost_at_first(75.0, 17.0)
    assert lost_at_first(2000.0, 17.0)
    assert not lost_at_first(2900.0, 1000.0)
    assert lost_at_first(3200.0, 1000.0)


def test_a_lost_race_keeps_its_one_time() -> None:
    timing = measured(iter([500.0, 500.0]), Converged(100.0))
    assert (timing.samples_us, timing.median_us, timing.q1_us, timing.q3_us) == ((500.0,), 500.0, 500.0, 500.0)


@pytest.mark.parametrize("samples", [STEADY, DRIFTING, TWO_CLOCKS, (3.0, 1.0), (5.0, 1.0, 9.0, 7.0)])
def test_quartiles_are_numpys(samples: tuple[float, ...]) -> None:
    timing = summarise(samples, "cold")
    expected = np.percentile(samples, [25, 50, 75])
    assert (timing.q1_us, timing.median_us, timing.q3_us) == pytest.approx(tuple(expected))
    assert timing.samples_us == samples, "in the order taken"


class Bench:
    """Contenders on a device that slows down as it gets warm, with a clock that advances with their samples."""

    def __init__(self, times_us: Sequence[float]) -> None:
        self.times_us = times_us
        self.log: list[int] = []
        self.now_s = 0.0

    def sample(self, contender: int) -> Sample:
        """Run one contender."""
        self.log.append(contender)
        time_us = self.times_us[contender] * (1 + len(self.log) / 100)
        self.now_s += 1e-6 * time_us
        return Sample(time_us)

    def rounds(self, *, budget_s: float, least: int, most: int, seed: int = 0) -> list[list[float]]:
        """All contenders' samples."""
        all_samples = [Samples(partial(self.sample, at), Clocks()) for at in range(len(self.times_us))]
        interleave(
            all_samples, budget_s=budget_s, least=least, most=most, rng=random.Random(seed), clock=lambda: self.now_s
        )
        return [samples.samples_us for samples in all_samples]


def test_every_contender_runs_once_a_round_in_changing_order() -> None:
    bench = Bench([100.0, 200.0, 300.0])
    taken = bench.rounds(budget_s=1e9, least=2, most=12)
    assert [len(samples) for samples in taken] == [12, 12, 12]
    rounds = [tuple(bench.log[at : at + 3]) for at in range(0, 36, 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert len(set(rounds)) >= 4


def test_rounds_end_with_the_budget_but_not_before_the_least() -> None:
    assert [len(one) for one in Bench([100.0]).rounds(budget_s=0.0, least=7, most=50)] == [7]
    bench = Bench([100.0, 100.0])
    taken = bench.rounds(budget_s=0.005, least=2, most=1000)
    assert 10 < len(taken[0]) < 30
    assert bench.now_s == pytest.approx(0.005, rel=0.1)


def contest(*draws: Callable[[], float]) -> list[int]:
    """Samples of each contender in rounds without end, whose samples are drawn."""
    all_samples = [Samples(partial(drawn, draw), Clocks()) for draw in draws]
    rng = random.Random(0)
    interleave(all_samples, budget_s=1.0, least=11, most=400, rng=rng, clock=lambda: 0.0, contested=close_contest)
    return [len(samples.samples_us) for samples in all_samples]


def drawn(draw: Callable[[], float]) -> Sample:
    """A drawn sample."""
    return Sample(draw())


def test_who_is_three_times_as_slow_leaves_and_the_close_ones_go_on_until_they_are_known() -> None:
    rng = np.random.default_rng(3)
    noisy, noisier, slow = (partial(rng.normal, mean, mean / 150) for mean in (100.0, 100.5, 320.0))
    first, second, behind = contest(noisy, noisier, slow)
    assert behind == 5
    assert first == second
    assert 60 < first < 240, "half-widths of 0.2 % need about (1.25 * 1.96 * 0.94 % / 0.2 %)^2 = 133 rounds"


def test_contenders_that_are_far_apart_need_few_rounds_and_noisy_ones_all() -> None:
    rng = np.random.default_rng(3)
    steady, other = (partial(rng.normal, mean, mean / 1000) for mean in (100.0, 104.0))
    assert contest(steady, other) == [15, 15]
    wild = partial(rng.normal, 100.0, 10.0)
    assert contest(wild, wild) == [400, 400]


def test_pairs_are_of_the_rounds_that_both_took_part_in() -> None:
    assert paired_ratio([1.0, 2.0, 3.0, 9.0], [2.0, 4.0, 6.0]) == (0.5, 0.5, 0.5)


def test_pairs_cancel_a_drift_that_both_contenders_share() -> None:
    ours, theirs = Bench([100.0, 110.0]).rounds(budget_s=1e9, least=2, most=30)
    assert statistics.median(ours) == pytest.approx(100 * 1.3, rel=0.1), "the drift is large"
    low, ratio, high = paired_ratio(ours, theirs)
    assert low <= ratio <= high
    assert ratio == pytest.approx(100 / 110, rel=0.01)
    assert high < 1


def test_equal_contenders_are_not_told_apart() -> None:
    rng = np.random.default_rng(5)
    wins = 0
    for _ in range(200):
        ours, theirs = rng.normal(100, 2, (2, 30)).tolist()
        low, _, high = paired_ratio(ours, theirs)
        wins += not low <= 1 <= high
    assert wins / 200 < 0.1


def test_after_disturbed_rounds_a_simpler_kernel_wins_only_if_it_is_as_fast() -> None:
    """A disturbance of the fast kernel in the third round is enough for a tie of three rounds."""

    def contender(number: int, size: int, *samples_us: float) -> Contender:
        trial = Trial(number, Config.of("direct", {"tile": number}), Outcome.CORRECT)
        return Contender(trial, summarise(samples_us, "cold"), size)

    fast, slow = contender(0, 900, 324, 330, 60000), contender(1, 300, 17522, 17530, 17540)
    assert decide([slow, fast], None, noise=0.05) is fast
    assert decide([slow, fast], 1, noise=0.05) is slow, "a tie leaves the incumbent in its place"
    equal = contender(2, 300, 328, 333, 340)
    assert decide([equal, fast], None, noise=0.05) is equal
