"""matrix -> dispatch: build plans from some of a matrix's layers, and compute their regret on each layer.

Regret is measured on layers that the plan hasn't seen. Each layer is left out once, together with the kernels that only
this layer contributes, and the plan is rebuilt from the other layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import geometric_mean

import numpy as np

from autotune.dispatch.dispatcher import (
    DEFAULT,
    FASTEST,
    PROPERTIES,
    Property,
    Rule,
    Split,
    expected_relative_times,
)
from autotune.dispatch.matrix import (
    NOTHING_FITS,
    Bools,
    Floats,
    Ints,
    Matrix,
    expected,
    halfway,
    lost_us,
    near,
    portfolio,
    served,
    suggested_configs,
)
from autotune.dispatch.thresholds import Costs, serving_kernels
from autotune.distance import layer_distance, property_similarity
from autotune.problem import Layer, Problem
from autotune.trial import Config

EVIDENCE = 3
"""Number of left-out layers needed to show that the default should come first."""
BEST_TIME = 1000
"""The relative time, before squaring, of a kernel as fast as a layer's best kernel."""


@dataclass(frozen=True)
class Plan:
    """A dispatcher for a matrix's layers, in terms of positions in the matrix."""

    kernels: tuple[int, ...]
    """positions of the configs in the portfolio"""
    names: tuple[str, ...]
    """names of the kernels, followed by DEFAULT"""
    properties: tuple[Property, ...]
    rule: Rule
    known: tuple[int, ...]
    """the known layers: the layers that the plan was built from, and the layers interpolated between them"""
    relative_times: tuple[tuple[int, ...], ...]
    """relative times of each kernel, followed by the default, on each known layer"""


def make(matrix: Matrix, rows: Sequence[int], kernels: int, wanted: Sequence[int] = ()) -> Plan:
    """Build a plan from some layers and the layers interpolated between them.

    At most `kernels` configs are chosen, not counting the default and the `wanted` ones. Configs that only other layers
    contribute aren't considered.
    """
    known = with_interpolated(matrix, rows)
    kept = dict.fromkeys([*portfolio(matrix, known, kernels), *wanted])
    chosen_kernels = tuple(kernel for kernel in kept if kernel != matrix.default)
    names = (*kernel_names([matrix.configs[kernel] for kernel in chosen_kernels]), DEFAULT)
    columns = matrix.values[list(rows)].T.tolist()
    properties = tuple(item.around(column) for item, column in zip(PROPERTIES, columns, strict=True))
    squares = (BEST_TIME * np.exp(expected_here(matrix, known, (*chosen_kernels, matrix.default)))) ** 2
    relative_times = tuple(map(tuple, np.rint(squares).astype(np.int64).T.tolist()))
    return Plan(chosen_kernels, names, properties, FASTEST, tuple(known), relative_times)


def expected_here(matrix: Matrix, rows: Sequence[int], configs: Sequence[int]) -> Floats:
    """Return expected log regrets [rows, configs] on some layers, from their times and those of similar configs."""
    own = np.eye(len(matrix.layers))[list(rows)]
    by = sorted({*suggested_configs(matrix, rows), *configs})
    return expected(matrix, own, near(matrix, rows), by, configs)


def with_interpolated(matrix: Matrix, rows: Sequence[int]) -> list[int]:
    """Return some of a study's layers, followed by the interpolated layers between them."""
    known = {layer.problem for layer in interpolated_layers([matrix.layers[row] for row in rows])}
    beyond = range(len(matrix.top_configs), len(matrix.layers))
    return [*rows, *(row for row in beyond if matrix.layers[row].problem in known)]


def noise_us(matrix: Matrix, rows: Sequence[int], noise: float) -> float:
    """Return the weighted difference, in microseconds, within which two rules count as equal.

    It is the noise of a sum over the layers; `noise` is the noise of a single time, as a fraction.
    """
    return noise * float(np.linalg.norm(matrix.weights[list(rows)] * matrix.best_us[list(rows)]))


def kernel_names(configs: Sequence[Config]) -> tuple[str, ...]:
    """Name each kernel after its family, with a number."""
    seen: Counter[str] = Counter()
    names = []
    for config in configs:
        seen[config.template] += 1
        names.append(f"{config.template}_{seen[config.template]}")
    return tuple(names)


def costs_of(matrix: Matrix, plan: Plan) -> Costs:
    """Return the costs of choosing each of a plan's kernels on each of its known layers."""
    here, columns = list(plan.known), [*plan.kernels, matrix.default]
    weights, best = matrix.weights[here], matrix.best_us[here]
    return Costs(
        properties=tuple(item.name for item in plan.properties),
        values=matrix.values[here],
        kernels=plan.names,
        lost_us=(weights * best)[:, None] * np.expm1(halfway(matrix, here, columns)),
        nothing_us=weights * NOTHING_FITS * best,
        times=expected_times(matrix, here, plan),
    )


def expected_times(matrix: Matrix, rows: Sequence[int], plan: Plan) -> Ints:
    """Return expected times [rows, kernels] of the plan's kernels, followed by the default.

    An expected time is the relative time multiplied by the padded outputs.
    """
    powers = [item.power for item in plan.properties]
    similar = property_similarity(powers, matrix.values[list(rows)], matrix.values[list(plan.known)])
    outputs = matrix.padded_outputs[np.ix_(list(rows), [*plan.kernels, matrix.default])]
    times: Ints = expected_relative_times(similar, np.array(plan.relative_times).T) * outputs
    return times


def out_of_range_rows(matrix: Matrix, rows: Sequence[int], plan: Plan) -> tuple[bool, ...]:
    """Return whether each of these layers is outside the trusted range of the plan's rule."""
    least, most = (np.array([getattr(item, end) for item in plan.properties]) for end in ("least", "most"))
    values = matrix.values[list(rows)]
    outside: Bools = np.any((values < least) | (values > most), axis=1)
    return tuple(outside.tolist())


def ends_of(matrix: Matrix, rows: Sequence[int], plan: Plan) -> tuple[str, ...]:
    """Return which kernel to try first on each of these layers, or the default where the rule isn't trusted."""
    names = [item.name for item in plan.properties]
    ends = []
    for row, outside in zip(rows, out_of_range_rows(matrix, rows, plan), strict=True):
        rule: Rule = DEFAULT if outside else plan.rule
        if isinstance(rule, Split):
            rule = rule.below if matrix.values[row, names.index(rule.property)] < rule.threshold else rule.above
        ends.append(rule)
    return tuple(ends)


def chosen(matrix: Matrix, rows: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Return the config that the plan chooses for each of these layers, or -1 if no kernel supports it."""
    columns = (*plan.kernels, matrix.default)
    fits, times = np.isfinite(matrix.times_us[np.ix_(list(rows), columns)]), expected_times(matrix, rows, plan)
    configs = []
    for at, end in enumerate(ends_of(matrix, rows, plan)):
        (position,) = serving_kernels(end, plan.names, fits[[at]], times[[at]]).tolist()
        configs.append(columns[position] if position >= 0 else -1)
    return tuple(configs)


def left_out(matrix: Matrix, rows: Sequence[int], kernels: int) -> tuple[int, ...]:
    """Return, for each layer, the config chosen by a plan of all other layers, or -1 if none supports it."""
    return tuple(chosen(matrix, [row], make(matrix, others(rows, row), kernels))[0] for row in rows)


def others(rows: Sequence[int], row: int) -> list[int]:
    """Return all rows but one."""
    return [other for other in rows if other != row]


def single_best(matrix: Matrix, rows: Sequence[int]) -> int:
    """Return the config that loses the least over some layers, using the default on layers that it doesn't support."""
    eligible = (*suggested_configs(matrix, rows), matrix.default)
    losses = [lost_us(matrix, served(matrix, (config, matrix.default)))[list(rows)].sum() for config in eligible]
    return eligible[int(np.argmin(losses))]


def nearest(matrix: Matrix, rows: Sequence[int], row: int) -> int:
    """Return the best config of the most similar layer whose config supports this layer.

    If there is none, return the default, or -1 if that doesn't support this layer either.
    """
    problem = matrix.layers[row].problem
    for other in sorted(rows, key=lambda other: layer_distance(matrix.layers[other].problem, problem)):
        for config in matrix.top_configs[other]:
            if np.isfinite(matrix.times_us[row, config]):
                return config
    return matrix.default if np.isfinite(matrix.times_us[row, matrix.default]) else -1


def with_default_first(matrix: Matrix, rows: Sequence[int], plan: Plan, left_out_configs: Sequence[int]) -> Plan:
    """Put the default first if left-out layers lost more time with the rule than with the default."""
    serving = np.full(len(matrix.layers), -1, dtype=np.int64)
    serving[list(rows)] = left_out_configs
    lost = lost_us(matrix, serving)[list(rows)].sum()
    of_default = lost_us(matrix, np.full(len(matrix.layers), matrix.default))[list(rows)].sum()
    return replace(plan, rule=DEFAULT) if len(rows) >= EVIDENCE and lost > of_default else plan


def times_of(matrix: Matrix, rows: Sequence[int], configs: Sequence[int]) -> tuple[float | None, ...]:
    """Return each layer's time with its config in microseconds, or None if the config doesn't support it."""
    return tuple(
        None if config < 0 or not np.isfinite(matrix.times_us[row, config]) else float(matrix.times_us[row, config])
        for row, config in zip(rows, configs, strict=True)
    )


def regrets(times_us: Sequence[float | None], best_us: Sequence[float]) -> Floats:
    """Return the lost time as a fraction of the best time. It is infinite if no kernel supports the layer."""
    return np.array(
        [np.inf if time_us is None else time_us / best - 1 for time_us, best in zip(times_us, best_us, strict=True)]
    )


def interpolated_layers(layers: Sequence[Layer], but: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """Return each shape at the geometric mean of every two neighbouring batch sizes.

    Layers in `layers` and in `but` are left out. An interpolated layer's count is the geometric mean of the counts of
    its shape.
    """
    batches = sorted({layer.problem.runtime_size for layer in layers})
    middles = [round(geometric_mean(pair)) for pair in pairwise(batches)]
    shapes: dict[Problem, list[Layer]] = {}
    for layer in layers:
        shapes.setdefault(layer.problem.with_runtime(1), []).append(layer)
    known = {layer.problem for layer in (*layers, *but)}
    interpolated = [
        Layer(f"{same[0].name} at n = {n}", shape.with_runtime(n), round(geometric_mean(layer.count for layer in same)))
        for shape, same in shapes.items()
        for n in middles
    ]
    return tuple(layer for layer in interpolated if layer.problem not in known)
