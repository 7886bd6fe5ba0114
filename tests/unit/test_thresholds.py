"""Portfolios and thresholds on matrices made by hand: what counts is weighted time, and nothing of what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.dispatch_source import load_dispatch_template
from autotune.dispatcher import DEFAULT, Leaf, Split
from autotune.plan import Making, chosen, flat, left_out, make, nearest, single_best, without_unsure_ends
from autotune.portfolio import Matrix, candidates, lost_us, portfolio, served
from autotune.problem import Conv2dProblem, Layer
from autotune.rule_space import RuleSpace
from autotune.thresholds import Costs, best_rule, best_split, between
from autotune.trial import Config

PROPERTIES = load_dispatch_template().properties
MAKING = Making(PROPERTIES, kernels=4, noise=0.002)
NO = np.inf


def layer(k: int, count: int = 1, **sizes: int) -> Layer:
    return Layer(f"k{k}", Conv2dProblem(n=100, c=4, h=20, w=20, k=k, r=3, s=3), count)


def config(name: str) -> Config:
    return Config.of("direct", {"for": name})


def matrix(layers: Sequence[Layer], times: Sequence[Sequence[float]], leaders: Sequence[Sequence[int]]) -> Matrix:
    """The first column is the default."""
    times_us = np.array(times, dtype=np.float64)
    return Matrix(
        layers=tuple(layers),
        configs=tuple(config(str(number)) for number in range(times_us.shape[1])),
        times_us=times_us,
        failed=np.zeros(times_us.shape, dtype=np.bool_),
        best_us=times_us.min(axis=1),
        leaders=tuple(map(tuple, leaders)),
        default=0,
        values=np.array([[item.plain.of(one.problem) for item in PROPERTIES] for one in layers], dtype=np.int64),
    )


def costs(ks: Sequence[int], lost_us: Sequence[Sequence[float]]) -> Costs:
    kernels = tuple("abcdef"[: len(lost_us[0])])
    return Costs(("k",), np.array([[k] for k in ks], dtype=np.int64), np.array(lost_us, dtype=np.float64), kernels)


def test_a_threshold_loses_the_fewest_milliseconds_not_the_fewest_switch_points() -> None:
    """From 4 maps on b is faster, by a hair on some layers, but slower by far on one: a stays there."""
    ks = (1, 2, 4, 5, 6, 7, 8, 9)
    lost = [(0, 9), (0, 9), (1, 0), (0, 900), (1, 0), (1, 0), (50, 0), (50, 0)]
    found = best_split(costs(ks, lost), least=1)
    assert found == Split("k", between(5, 6), Leaf("a"), Leaf("b"))
    by_count = min(
        (Split("k", cut, Leaf("a"), Leaf("b")) for cut in range(2, 10)),
        key=lambda rule: int((np.array(lost)[np.arange(8), costs(ks, lost).named(rule)] > 0).sum()),
    )
    assert by_count == Split("k", 3, Leaf("a"), Leaf("b")), "counting switch points gives another answer"
    assert costs(ks, lost).of(by_count) == 900
    assert costs(ks, lost).of(found) == 1


def test_a_layers_count_decides() -> None:
    times = [(9, 10, 11), (9, 11, 10)]
    for counts, winner in (((3, 1), 1), ((1, 3), 2)):
        layers = [layer(8, counts[0]), layer(16, counts[1])]
        made = matrix(layers, [(20, *row[1:]) for row in times], [[1, 2], [1, 2]])
        assert portfolio(made, [0, 1], 1) == (winner,)
        assert single_best(made, [0, 1]) == winner
        lost = lost_us(made, served(made, (1, 2)))
        assert best_split(Costs(("k",), np.zeros((2, 1), np.int64), lost, ("1", "2", DEFAULT)), 1) == Leaf(str(winner))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), (12, 24), (12, 13), (4, 64)])
def test_a_threshold_lies_between_neighbours(low: int, high: int) -> None:
    assert low < between(low, high) <= high


def test_the_simpler_of_equal_rules_is_kept() -> None:
    lost = [(0, 1.0), (0, 1.0), (1.0, 0), (1.0, 0)]
    assert best_rule(costs((4, 8, 16, 32), lost), within_us=0.5) == Split("k", between(8, 16), Leaf("a"), Leaf("b"))
    assert best_rule(costs((4, 8, 16, 32), lost), within_us=2.5) == Leaf("a")


def test_a_tree_is_grown_where_one_threshold_is_not_enough() -> None:
    lost = [(0, 9, 9), (9, 0, 9), (9, 0, 9), (0, 9, 9)]
    rule = best_rule(costs((4, 8, 16, 32), lost), within_us=0.5)
    assert costs((4, 8, 16, 32), lost).of(rule) == 0
    assert isinstance(rule, Split)
    assert Split in {type(rule.below), type(rule.above)}


def test_a_portfolio_takes_the_largest_regret_away_first_and_nothing_for_nothing() -> None:
    layers = [layer(4), layer(8), layer(16)]
    made = matrix(layers, [(20, 10, 10, 11), (20, 19, 10, 11), (20, 19, 19, 10)], [[1, 2], [2, 3], [3]])
    assert portfolio(made, [0, 1, 2], 3) == (3, 2)
    assert portfolio(made, [0, 1, 2], 1) == (3,)


def test_what_a_kernel_does_for_the_only_layer_that_suggests_it_counts_last() -> None:
    layers = [layer(4), layer(8), layer(16)]
    made = matrix(layers, [(20, 10, 15), (20, 19, 15), (20, 19, 15)], [[1], [2], [2]])
    assert portfolio(made, [0, 1, 2], 1) == (2,)
    assert portfolio(made, [0, 1, 2], 2) == (2, 1)


def test_what_may_not_serve_is_passed_over() -> None:
    layers = [layer(4), layer(8), layer(16)]
    made = matrix(layers, [(20, NO, 10), (20, 10, 12), (NO, NO, NO)], [[2], [1], [0]])
    assert served(made, (1, 2)).tolist() == [[2, 2, 0], [1, 2, 0], [-1, -1, -1]]


def test_what_fails_on_a_layer_is_no_candidate() -> None:
    made = matrix([layer(4), layer(8)], [(20, 10, NO), (20, NO, 10)], [[1], [2]])
    made.failed[0, 2] = True
    assert candidates(made, [0, 1]) == (1,)
    assert candidates(made, [1]) == (2,)


def example() -> Matrix:
    """Two kernels, one for few maps and one for many, and a third that only the layer of 12 maps suggests."""
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
    whole = make(made, rows, MAKING)
    assert set(whole.kernels) == {1, 2, 3}
    without = make(made, [0, 1, 2, 4, 5, 6, 7], MAKING)
    assert set(without.kernels) == {1, 2}
    assert chosen(made, rows, whole)[3] == 3
    assert left_out(made, rows, MAKING)[3] in (1, 2)
    assert left_out(made, rows, MAKING)[5:] == (2, 2, 2)


def test_the_nearest_layers_kernel_stands_in() -> None:
    made = example()
    assert nearest(made, [0, 1, 2, 4, 5, 6, 7], 3) in (1, 2)
    assert nearest(made, [3], 4) == 3
    made.times_us[4, 3] = NO
    assert nearest(made, [3], 4) == 0
    made.times_us[4, 0] = NO
    assert nearest(made, [3], 4) == -1


def test_a_thresholds_flat_interval_is_that_between_its_layers() -> None:
    made = example()
    rule = Split("k", 15, Leaf("direct_1"), Leaf("direct_2"))
    plan = make(made, range(8), MAKING)
    (found,) = flat(made, range(8), replace(plan, rule=rule))
    assert (found.least, found.most) == (13, 16)
    choices = {
        threshold: chosen(made, range(8), replace(plan, rule=replace(rule, threshold=threshold)))
        for threshold in range(12, 18)
    }
    assert len({choices[threshold] for threshold in range(13, 17)}) == 1
    assert choices[12] != choices[13]
    assert choices[16] != choices[17]


def test_an_end_that_says_nothing_of_layers_left_out_is_unsure() -> None:
    """Each layer has a kernel of its own, which is far slower than the default on all others."""
    layers = [layer(k) for k in (4, 6, 8, 12)]
    times = [[20.0, *(10.0 if kernel == row else 90.0 for kernel in range(4))] for row in range(4)]
    made = matrix(layers, times, [[1], [2], [3], [4]])
    plan = replace(make(made, range(4), MAKING), rule=Leaf("direct_1"))
    poor = without_unsure_ends(made, range(4), plan, [2, 1, 1, 1])
    assert poor.rule == Leaf(DEFAULT)
    good = without_unsure_ends(made, range(4), plan, [1, 2, 3, 4])
    assert good.rule == plan.rule


def test_a_layer_unlike_the_others_gets_the_default() -> None:
    made = example()
    plan = make(made, range(7), MAKING)
    assert chosen(made, [7], plan) == (2,)
    far = matrix([*made.layers[:7], layer(48 * 8)], made.times_us.tolist(), made.leaders)
    assert chosen(far, [7], plan) == (0,)


def test_the_space_of_rules_holds_every_rule_of_one_threshold_once() -> None:
    space = RuleSpace(costs((4, 8, 8, 16), [(0, 1, 1)] * 4))
    assert len(space.rows) == 3 + 2 * 3 * 2
    rules = [space.rule(space.config(row)) for row in range(len(space.rows))]
    assert len(set(rules)) == len(rules)
    for row, rule in enumerate(rules):
        point = space.point(rule)
        assert point is not None
        assert space.row_of(point) == row
    assert space.point(Split("k", 5, Leaf("a"), Leaf("b"))) is None, "between the same layers as 6"
