"""Portfolios and thresholds on matrices made by hand: weighted time decides, and layers left out have no influence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.dispatch.dispatcher import DEFAULT, FASTEST, PROPERTIES, Rule, Split, ends
from autotune.dispatch.matrix import Matrix, portfolio, served, suggested_configs
from autotune.dispatch.plan import (
    chosen,
    left_out,
    make,
    nearest,
    single_best,
    with_default_first,
    with_interpolated,
)
from autotune.dispatch.thresholds import Costs, best_rule, between, simplest
from autotune.distance import SAME, property_similarity
from autotune.problem import Conv2dProblem, Layer
from autotune.trial import Config

KERNELS = 4
NO = np.inf


def layer(k: int, count: int = 1, **sizes: int) -> Layer:
    return Layer(f"k{k}", Conv2dProblem(n=100, c=4, h=20, w=20, k=k, r=3, s=3), count)


def config(name: str) -> Config:
    return Config.of("direct", {"for": name})


def matrix(layers: Sequence[Layer], times: Sequence[Sequence[float]], top_configs: Sequence[Sequence[int]]) -> Matrix:
    """The first column is the default."""
    times_us = np.array(times, dtype=np.float64)
    values = np.array([[item.of(one.problem) for item in PROPERTIES] for one in layers], dtype=np.int64)
    return Matrix(
        layers=tuple(layers),
        configs=tuple(config(str(number)) for number in range(times_us.shape[1])),
        times_us=times_us,
        failed=np.zeros(times_us.shape, dtype=np.bool_),
        padded_outputs=np.array([[one.problem.array("y").elements] * times_us.shape[1] for one in layers])
        * np.isfinite(times_us),
        best_us=times_us.min(axis=1),
        top_configs=tuple(map(tuple, top_configs)),
        default=0,
        config_similarity=np.eye(times_us.shape[1]),
        layer_similarity=property_similarity([item.power for item in PROPERTIES], values, values) / SAME,
        values=values,
    )


def costs(ks: Sequence[int], lost_us: Sequence[Sequence[float]]) -> Costs:
    """Each layer reports the loss of kernels, in microseconds; the first kernel has the smallest expected time."""
    lost = np.array(lost_us, dtype=np.float64)
    return Costs(
        properties=("k",),
        values=np.array([[k] for k in ks], dtype=np.int64),
        kernels=tuple("abcdef"[: lost.shape[1]]),
        lost_us=lost,
        nothing_us=np.full(len(ks), 1e6),
        times=np.tile(np.arange(lost.shape[1]), (len(ks), 1)),
    )


def first(rule: Rule) -> tuple[str, ...]:
    """The first choice at each end of a rule; nothing if the smallest expected time, which is a's, decides."""
    return ends(rule)


def test_a_threshold_loses_the_fewest_milliseconds_not_the_fewest_switch_points() -> None:
    """From 4 output channels on b is slightly faster on some layers, but far slower on one: a stays there."""
    ks = (1, 2, 4, 5, 6, 7, 8, 9)
    lost = [(0, 9), (0, 9), (1, 0), (0, 900), (1, 0), (1, 0), (50, 0), (50, 0)]
    found = best_rule(costs(ks, lost))
    assert isinstance(found, Split)
    assert (found.threshold, first(found)) == (between(5, 6), ("", "b"))
    by_count = min(
        (Split("k", cut, "a", "b") for cut in range(2, 10)),
        key=lambda rule: sum((k < rule.threshold) != (a < b) for k, (a, b) in zip(ks, lost, strict=True)),
    )
    assert by_count.threshold == 3, "counting switch points gives another answer"
    assert costs(ks, lost).of(by_count) == 900
    assert costs(ks, lost).of(found) == 1


def test_a_layers_count_decides() -> None:
    times = [(9, 10, 11), (9, 11, 10)]
    for counts, winner in (((3, 1), 1), ((1, 3), 2)):
        layers = [layer(8, counts[0]), layer(16, counts[1])]
        made = matrix(layers, [(20, *row[1:]) for row in times], [[1, 2], [1, 2]])
        assert portfolio(made, [0, 1], 1) == (winner,)
        assert single_best(made, [0, 1]) == winner


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), (12, 24), (12, 13), (4, 64)])
def test_a_threshold_lies_between_neighbours(low: int, high: int) -> None:
    assert low < between(low, high) <= high


def test_the_simpler_of_equal_rules_is_kept() -> None:
    made = costs((4, 8, 16, 32), [(0, 1.0), (0, 1.0), (1.1, 0), (1.1, 0)])
    rules = [best_rule(made), "b", "a", FASTEST]
    assert [made.of(rule) for rule in rules] == [0, 2.0, 2.2, 2.2]
    assert simplest(made, rules, within_us=0.5) == rules[0]
    assert simplest(made, rules, within_us=2.1) == "b"
    assert simplest(made, rules, within_us=2.5) == FASTEST, "it names no kernel"


def test_a_threshold_that_gains_nothing_is_left_out() -> None:
    made = costs((1, 2, 4, 5), [(0, 9), (0, 9), (1, 1), (0, 1)])
    assert best_rule(made) == FASTEST


def test_an_end_takes_the_kernel_that_it_names_else_the_least_expected_time() -> None:
    """a, which has the smallest expected time, may not support the layer of 8 output channels."""
    made = costs((4, 8, 16), [(2, 1, 50), (NO, 1, 50), (2, 1, 50)])
    assert made.of(FASTEST) == 2 + 1 + 2
    assert made.of("c") == 150
    assert made.of("a") == 2 + 1 + 2
    assert made.of(Split("k", 6, FASTEST, "c")) == 2 + 50 + 50


def test_a_kernel_is_expected_to_do_as_on_the_layers_that_are_most_similar() -> None:
    """1 is faster for few output channels, 2 for many; nobody has measured the layers between."""
    layers = [layer(k) for k in (4, 8, 32, 64, 10, 24)]
    few, many = (20, 10, 12), (20, 12, 10)
    made = matrix(layers, [few, few, many, many, many, few], [[1], [1], [2], [2], [2], [1]])
    assert chosen(made, [4, 5], make(made, range(4), KERNELS)) == (1, 2)


def test_what_idles_is_not_held_against_a_kernel_where_nothing_does() -> None:
    """1 is slower than 2 on layers where it leaves half of the device idle, and faster on others."""
    layers = [layer(k) for k in (4, 8, 16)]
    made = matrix(layers, [(40, 12, 10), (40, 12, 10), (40, 10, 11)], [[2], [2], [1]])
    assert chosen(made, [2], make(made, [0, 1], KERNELS, (1, 2))) == (2,)
    made.padded_outputs[:2, 1] *= 2
    assert chosen(made, [0, 2], make(made, [0, 1], KERNELS, (1, 2))) == (2, 1)


def test_a_layer_interpolated_between_two_batches_speaks_where_both_are_known() -> None:
    """1 and 2 are equally fast on the study's layers, and only interpolated layers distinguish them."""
    shape = layer(4)
    layers = [replace(shape, problem=shape.problem.with_runtime(n)) for n in (100, 1000, 316)]
    for slow, fast in ((1, 2), (2, 1)):
        times = [[20.0, 10.0, 10.0] for _ in layers]
        times[2][slow] = 15.0
        made = matrix(layers, times, [[1, 2], [1, 2]])
        assert with_interpolated(made, [0, 1]) == [0, 1, 2]
        assert with_interpolated(made, [1]) == [1]
        assert chosen(made, [0, 1], make(made, [0, 1], KERNELS)) == (fast, fast)


def test_a_portfolio_takes_the_largest_regret_away_first_and_nothing_for_nothing() -> None:
    layers = [layer(4), layer(8), layer(16)]
    made = matrix(layers, [(20, 10, 10, 12), (20, 19, 10, 12), (20, 19, 19, 10)], [[1, 2], [2, 3], [3]])
    assert portfolio(made, [0, 1, 2], 3) == (3, 2)
    assert portfolio(made, [0, 1, 2], 1) == (3,)


def test_a_config_that_shines_on_its_own_layer_alone_comes_after_one_that_others_vouch_for() -> None:
    """2 is slightly worse than 1 on the first layer, but all similar layers and a similar config (3) favour it."""
    layers = [layer(k) for k in (4, 8, 16)]
    made = matrix(layers, [(20, 10, 10.5, 11), (20, 19, 10, 11), (20, 19, 10, 11)], [[1], [2, 3], [2, 3]])
    assert portfolio(made, [0, 1, 2], 1) == (2,)
    assert portfolio(made, [0, 1, 2], 3)[0] == 2


def test_what_may_not_serve_is_passed_over() -> None:
    layers = [layer(4), layer(8), layer(16)]
    made = matrix(layers, [(20, NO, 10), (20, 10, 12), (NO, NO, NO)], [[2], [1], [0]])
    assert served(made, (1, 2, 0)).tolist() == [2, 1, -1]
    assert served(made, (2, 1, 0)).tolist() == [2, 2, -1]
    assert served(made, (0, 1)).tolist() == [0, 0, -1]


def test_what_fails_on_a_layer_is_no_candidate() -> None:
    made = matrix([layer(4), layer(8)], [(20, 10, NO), (20, NO, 10)], [[1], [2]])
    made.failed[0, 2] = True
    assert suggested_configs(made, [0, 1]) == (1,)
    assert suggested_configs(made, [1]) == (2,)


def example() -> Matrix:
    """Two kernels, one for few and one for many output channels, and a third that only the layer of 12 suggests."""
    layers = [layer(k) for k in (4, 6, 8, 12, 16, 24, 32, 48)]
    times = [
        (40, 10, 15, 12),
        (40, 10, 15, 12),
        (40, 10, 15, 12),
        (40, 14, 14, 5),
        *[(40, 15, 10, 12)] * 4,
    ]
    return matrix(layers, times, [[1], [1], [1], [3], [2], [2], [2], [2]])


def test_leaving_a_layer_out_leaves_out_what_only_it_suggests() -> None:
    made = example()
    rows = range(8)
    assert set(make(made, rows, KERNELS).kernels) == {1, 2, 3}
    assert set(make(made, [0, 1, 2, 4, 5, 6, 7], KERNELS).kernels) == {1, 2}
    without = left_out(made, rows, KERNELS)
    assert without[3] in (1, 2)
    assert without[6:] == (2, 2)
    made.times_us[3] = (40, 14, 14, 500)  # the times of a layer left out do not change its kernel
    assert left_out(made, rows, KERNELS)[3] == without[3]


def test_the_nearest_layers_kernel_stands_in() -> None:
    made = example()
    assert nearest(made, [0, 1, 2, 4, 5, 6, 7], 3) in (1, 2)
    assert nearest(made, [3], 4) == 3
    made.times_us[4, 3] = NO
    assert nearest(made, [3], 4) == 0
    made.times_us[4, 0] = NO
    assert nearest(made, [3], 4) == -1


def test_a_rule_that_says_nothing_of_layers_left_out_puts_the_default_first() -> None:
    """Each layer has a kernel of its own, which is far slower than the default on all others."""
    layers = [layer(k) for k in (4, 6, 8, 12)]
    times = [[20.0, *(10.0 if kernel == row else 90.0 for kernel in range(4))] for row in range(4)]
    made = matrix(layers, times, [[1], [2], [3], [4]])
    plan = make(made, range(4), KERNELS)
    assert with_default_first(made, range(4), plan, [2, 1, 1, 1]).rule == DEFAULT
    assert with_default_first(made, range(4), plan, [1, 2, 3, 4]).rule == plan.rule


def test_a_layer_unlike_the_others_gets_the_default() -> None:
    made = example()
    plan = make(made, range(7), KERNELS)
    assert chosen(made, [7], plan) == (2,)
    far = matrix([*made.layers[:7], layer(48 * 8)], made.times_us.tolist(), made.top_configs)
    assert chosen(far, [7], plan) == (0,)
