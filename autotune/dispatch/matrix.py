"""store -> dispatch: each layer's time with each kernel (the matrix), and which kernels to keep (the portfolio).

A matrix has a row for each layer and a column for each config that is among the best few of some layer. Interpolated
layers follow the study's own. No network runs them, and they don't contribute configs. A portfolio's configs are chosen
from the columns one at a time, each being the one that reduces regret most. Regret is the time lost relative to the
layer's own best kernel, as a fraction of that kernel's time, weighted by how often the network runs the layer. It is
negative if another layer's kernel is faster than the layer's own best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from autotune.dispatch.cells import SAFE, Row, Run, measure, read_row
from autotune.dispatch.dispatcher import PROPERTIES
from autotune.distance import SAME, config_similarity, property_similarity
from autotune.errors import StoreError, StudyError
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import StudyKey
from autotune.study import Study
from autotune.trial import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FEW = 4
"""Number of a layer's fastest configs that are tried on other layers."""
WIDE = 4
"""Number of a layer's nearly fastest configs that are tried because they support the most layers."""
NEAR = 1.15
"""A config is nearly fastest if its time is at most this multiple of the layer's best."""
LEAST_REGRET, MOST_REGRET = -0.4, 3.0
"""Bounds of regret when configs are compared.

A larger regret disqualifies a kernel; a smaller regret is taken for a measurement error.
"""
PRIOR = 0.4
"""Expected log regret of a config that was never measured."""
PRIOR_WEIGHT = 0.05
"""Weight of the prior, relative to a layer's own measurement."""
LIKE_WEIGHT = 0.3
"""Weight of an estimate from similar configs, below 1 because a measurement is more reliable."""
IDLING = 0.5
"""A kernel's time grows with this power of its padded outputs.

The power is below 1 because the busy half of a half-idle device runs faster. For the kernels of `dispatch-40` on an
H200, it is 0.6.
"""
NOTHING_FITS = 10.0
"""Regret of a layer that no kernel supports and that still has to be tuned."""


@dataclass(frozen=True)
class Matrix:
    """The times of layers with configs."""

    layers: tuple[Layer, ...]
    configs: tuple[Config, ...]
    times_us: Floats
    """[layers, configs]; infinite if a config does not support a layer or fails on it"""
    failed: Bools
    """[layers, configs]; whether the config supports the layer by its predicate but is not correct"""
    padded_outputs: Ints
    """[layers, configs]; outputs that the device could compute in a launch's time; 0 if the config does not support the
    layer
    """
    best_us: Floats
    """[layers]; time of the layer's own best kernel in microseconds"""
    top_configs: tuple[tuple[int, ...], ...]
    """the best few configs of each study layer, best first; interpolated layers have none"""
    default: int
    """position of the safe default in `configs`"""
    values: Ints
    """[layers, properties]; the values that determine similarity and that thresholds test"""
    config_similarity: Floats
    """[configs, configs]; 1 for the same config, less for different configs of a family, 0 for different families"""
    layer_similarity: Floats
    """[layers, layers]; 1 for the same layer, less for layers that are less similar"""
    techniques: Mapping[str, int] = field(default_factory=dict)
    """the config of each technique that the study's rules name, as a position in `configs`"""

    @property
    def weights(self) -> Floats:
        """[layers]; the number of times that the network runs each layer."""
        return np.array([layer.count for layer in self.layers], dtype=np.float64)

    @property
    def regrets(self) -> Floats:
        """[layers, configs]; regret as a fraction of the best time, infinite if a config doesn't support a layer."""
        regrets: Floats = self.times_us / self.best_us[:, None] - 1
        return regrets

    @property
    def idling(self) -> Floats:
        """[layers, configs]; the log of the factor by which idle parts of the device lengthen a config's time."""
        outputs = np.array([[layer.problem.output.elements] for layer in self.layers])
        logs: Floats = IDLING * np.log(np.maximum(self.padded_outputs, outputs) / outputs)
        return logs


def suggested_configs(matrix: Matrix, rows: Sequence[int]) -> tuple[int, ...]:
    """Return the candidate configs for these layers: their best few, except for configs that fail on one of the layers.

    Configs that only other layers contribute are excluded, so that a left-out layer has no influence.
    """
    own_rows = [row for row in rows if row < len(matrix.top_configs)]
    suggested = sorted({config for row in own_rows for config in matrix.top_configs[row]} - {matrix.default})
    return tuple(config for config in suggested if not matrix.failed[list(rows), config].any())


def measured(matrix: Matrix) -> Floats:
    """Return log regrets [layers, configs], with 0 where a config doesn't support a layer."""
    regrets = np.where(np.isfinite(matrix.regrets), matrix.regrets, 0.0)
    logs: Floats = np.log1p(np.clip(regrets, LEAST_REGRET, MOST_REGRET))
    return logs


def expected(matrix: Matrix, own: Floats, near: Floats, by: Sequence[int], of: Sequence[int]) -> Floats:
    """Return the expected log regrets [rows, of] of configs if no part of the device is idle.

    Each one is a weighted mean of two parts: the config's own measurements, with the weights `own` [rows, layers], and,
    with less influence, those of similar configs among `by`, with the weights `near` [rows, layers]. If little is
    known, the result is near PRIOR.
    """
    serves = np.isfinite(matrix.regrets).astype(np.float64)
    logs = serves * (measured(matrix) - matrix.idling)
    similar = matrix.config_similarity[np.ix_(list(by), list(of))]
    total, weight = near @ logs[:, list(by)] @ similar, near @ serves[:, list(by)] @ similar
    from_similar = (total + PRIOR_WEIGHT * PRIOR) / (weight + PRIOR_WEIGHT)
    mean: Floats = (own @ logs[:, list(of)] + LIKE_WEIGHT * from_similar) / (own @ serves[:, list(of)] + LIKE_WEIGHT)
    return mean


def near(matrix: Matrix, rows: Sequence[int]) -> Floats:
    """Return how similar these layers are to each other [rows, layers], with 0 for all other layers."""
    weights = np.zeros((len(rows), len(matrix.layers)))
    weights[:, list(rows)] = matrix.layer_similarity[np.ix_(list(rows), list(rows))]
    return weights


def halfway(matrix: Matrix, rows: Sequence[int], configs: Sequence[int]) -> Floats:
    """Return log regrets [rows, configs] halfway between measured and expected regrets.

    If the config doesn't support the layer, the value is infinite. The expected regret is computed from the other
    layers, weighted by similarity, from similar configs, and from the idle part of the device, because a layer's own
    measurement says little about unseen layers.
    """
    cells = np.ix_(list(rows), list(configs))
    of_others = near(matrix, rows) * (1 - np.eye(len(matrix.layers)))[list(rows)]
    by = sorted({*suggested_configs(matrix, rows), *configs, matrix.default})
    logs: Floats = (
        measured(matrix)[cells] + expected(matrix, of_others, of_others, by, configs) + matrix.idling[cells]
    ) / 2
    return np.where(np.isfinite(matrix.regrets[cells]), logs, np.inf)


def portfolio(matrix: Matrix, rows: Sequence[int], most: int) -> tuple[int, ...]:
    """Choose a portfolio of at most `most` configs, not counting the default, in the order in which they were chosen.

    Each config is the one that most reduces the layers' weighted regret, given those chosen before. Regrets count by
    their logarithm, so that no single layer decides.
    """
    eligible = suggested_configs(matrix, rows)
    if not eligible:
        return ()
    cost = halfway(matrix, rows, eligible)
    least = np.log1p(np.minimum(matrix.regrets[list(rows), matrix.default], NOTHING_FITS))
    weights = matrix.weights[list(rows)]
    chosen: list[int] = []
    while len(chosen) < most:
        gains = weights @ np.maximum(least[:, None] - cost, 0)
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        chosen.append(eligible[best])
        least = np.minimum(least, cost[:, best])
    return tuple(chosen)


def served(matrix: Matrix, order: Sequence[int]) -> Ints:
    """Return the first of these configs that supports each layer [layers], or -1 if none does."""
    fits = np.isfinite(matrix.times_us[:, list(order)])
    configs: Ints = np.where(fits.any(axis=1), np.array(order)[np.argmax(fits, axis=1)], -1)
    return configs


def lost_us(matrix: Matrix, configs: Ints) -> Floats:
    """Return the weighted microseconds that each layer loses relative to its best [layers] with the given configs.

    -1 in `configs` means that the layer has no kernel.
    """
    rows = np.arange(len(matrix.layers))
    times = np.where(configs < 0, np.inf, matrix.times_us[rows, np.maximum(configs, 0)])
    times = np.where(np.isfinite(times), times, (1 + NOTHING_FITS) * matrix.best_us)
    lost: Floats = matrix.weights * (times - matrix.best_us)
    return lost


def default_config(template: KernelTemplate) -> Config:
    """Return the config with every parameter's first value."""
    return Config(template.name, tuple((param.name, param.values[0]) for param in template.params))


def tuned_rows(run: Run, layers: Sequence[Layer]) -> list[Row]:
    """Read the stored times of a study's layers. Raises StoreError if a layer has no correct kernel on this device."""
    rows = [read_row(run, layer) for layer in layers]
    for row in rows:
        if not row.own:
            tune = f"run `autotune tune {run.study.shown}` first"
            raise StoreError(
                f"{run.store.path}: {row.name} has no correct kernel on {run.evaluator.info.name}; "
                + run.store.best.advice(row.name, run.evaluator.info, tune)
            )
    return rows


def build_matrix(
    run: Run,
    key: StudyKey,
    tuned: Sequence[Row],
    *,
    held: Set[int] = frozenset(),
    interpolated: Sequence[Layer] = (),
    named: Mapping[str, Config] = MappingProxyType({}),
) -> tuple[Matrix, int]:
    """Build the matrix of the study's layers and the interpolated ones, and return it with the number of cells measured
    now.

    The matrix includes the `named` configs. Held-out layers don't contribute configs. Interpolated layers that no
    kernel supports are dropped. If the run is stopped, the cells measured so far are returned.
    """
    rows = [*tuned, *(replace(read_row(run, layer), own={}) for layer in interpolated)]
    default = default_config(run.templates[SAFE])
    outputs_of: dict[Config, tuple[int, ...]] = {}

    def padded_outputs(config: Config) -> tuple[int, ...]:
        if config not in outputs_of:
            outputs_of[config] = tuple(row.padded_outputs(config) for row in rows)
        return outputs_of[config]

    seen = [number for number in range(len(tuned)) if number not in held]
    top_configs = [
        _top_configs(row, lambda config: sum(padded_outputs(config)[number] > 0 for number in seen))
        if number in seen
        else ()
        for number, row in enumerate(tuned)
    ]
    configs = tuple(dict.fromkeys([default, *(config for few in top_configs for config in few), *named.values()]))
    wanted = [
        (
            row,
            [one for one in configs if one not in row.times_us and padded_outputs(one)[number] and row.evaluable(one)],
        )
        for number, row in enumerate(rows)
    ]
    measured = measure(run, key, wanted, run.observe)
    kept = [number for number, row in enumerate(rows) if number < len(tuned) or row.best_us is not None]
    rows = [rows[number] for number in kept]
    fits = np.array([padded_outputs(config) for config in configs], dtype=np.int64).T[kept]
    times = np.array([[row.times_us.get(config) or np.inf for config in configs] for row in rows])
    # A cell that was not evaluated, because the run was stopped or the device cannot run it, counts as failed.
    due = [[number < len(tuned) or config in row.times_us for config in configs] for number, row in enumerate(rows)]
    values = np.array([[item.of(row.layer.problem) for item in PROPERTIES] for row in rows], dtype=np.int64)
    positions = {config: position for position, config in enumerate(configs)}
    matrix = Matrix(
        layers=tuple(row.layer for row in rows),
        configs=configs,
        times_us=np.where(fits > 0, times, np.inf),
        failed=(fits > 0) & ~np.isfinite(times) & np.array(due),
        padded_outputs=fits,
        best_us=np.array([row.best_us for row in rows]),
        top_configs=tuple(tuple(positions[config] for config in few) for few in top_configs),
        default=0,
        config_similarity=config_similarity({name: one.params for name, one in run.templates.items()}, configs),
        layer_similarity=property_similarity([item.power for item in PROPERTIES], values, values) / SAME,
        values=values,
        techniques={name: positions[config] for name, config in named.items()},
    )
    return matrix, measured


def _top_configs(row: Row, serves: Callable[[Config], int]) -> tuple[Config, ...]:
    """Return a layer's fastest few configs, and the nearly fastest ones that support the most layers."""
    near = [config for config, time_us in row.own.items() if time_us <= NEAR * min(row.own.values())]
    wide = sorted(near, key=lambda config: -serves(config))  # stable: among equals, the faster config is first
    return tuple(dict.fromkeys([*list(row.own)[:FEW], *wide[:WIDE]]))


def technique_configs(study: Study, rows: Sequence[Row]) -> dict[str, Config]:
    """Find the config for each technique used in the study's rules.

    This is the config that supports the most layers or, among equals, the fastest. Raises StudyError for a technique
    without a correct trial.
    """
    used = {side for rule in study.rules for side in (rule.below, rule.above)}
    configs: dict[str, Config] = {}
    for technique in study.techniques:
        if technique.name not in used:
            continue
        times: dict[Config, list[float]] = {}
        for row in rows:
            for config, time_us in row.times_us.items():
                if time_us is not None and technique.has(config):
                    times.setdefault(config, []).append(time_us)
        if not times:
            raise StudyError(
                f"{study.shown}: a rule names the technique {technique.name!r}, which has no "
                f"correct kernel; run `autotune ladder {study.shown}` first"
            )
        configs[technique.name] = min(times, key=lambda config: (-len(times[config]), sum(times[config]), str(config)))
    return configs
