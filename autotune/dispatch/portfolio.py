"""store -> dispatch: what each layer's time would be with each kernel, and the few kernels worth keeping.

A matrix has a row for each layer and a column for each config that is among the best few of some layer. Behind the
study's layers come those that were interpolated: no network runs them, and they suggest no config. A portfolio is
chosen from its columns greedily, by how much regret the next one takes away. Regret is the time lost over the layer's
own best, as a fraction of it; a layer's weight is how often the network runs it. A kernel that another layer suggests
may be faster than a layer's own best, and have a regret below zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autotune.problem import Layer
from autotune.trial import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LEAST_REGRET, MOST_REGRET = -0.4, 3.0
"""Bounds of regret when configs are compared: a larger one disqualifies a kernel, a smaller one is
a measurement error.
"""
PRIOR = 0.4
"""Expected log regret of a config about which nothing is known."""
PRIOR_WEIGHT = 0.05
"""The weight of that prior, relative to a layer's own measurement."""
LIKE_WEIGHT = 0.3
"""The weight of an estimate from similar configs; smaller, because a measurement is more reliable."""
IDLING = 0.5
"""The power of its padded outputs with which a kernel's time grows: if half of the device idles, the other half runs
faster. For the kernels of `dispatch-40` on an H200 it is 0.6.
"""
NOTHING_FITS = 10.0
"""Regret of a layer that no kernel supports: it remains to be tuned."""


@dataclass(frozen=True)
class Matrix:
    """Layers by configs."""

    layers: tuple[Layer, ...]
    configs: tuple[Config, ...]
    times_us: Floats
    """[layers, configs]; infinite if a config does not support a layer or fails on it"""
    failed: Bools
    """[layers, configs]; whether a config supports a layer by its predicate but is not correct"""
    padded_outputs: Ints
    """[layers, configs]; outputs that the device could compute in a launch's time; 0 if a config does not support the
    layer
    """
    best_us: Floats
    """[layers]; of the layer's own best kernel"""
    top_configs: tuple[tuple[int, ...], ...]
    """each study layer's best few configs, best first; interpolated layers have none"""
    default: int
    """position of the safe default among the configs"""
    values: Ints
    """[layers, properties]; similarity is computed from them, and thresholds may test them"""
    config_similarity: Floats
    """[configs, configs]; 1 for the same config, less for different configs of a family, 0 for other families"""
    layer_similarity: Floats
    """[layers, layers]; 1 for the same layer, less for less similar ones"""
    techniques: Mapping[str, int] = field(default_factory=dict)
    """the config of each technique that the study's rules name"""

    @property
    def weights(self) -> Floats:
        """[layers]; how often the network runs each."""
        return np.array([layer.count for layer in self.layers], dtype=np.float64)

    @property
    def regrets(self) -> Floats:
        """[layers, configs]; infinite if a config does not support a layer."""
        regrets: Floats = self.times_us / self.best_us[:, None] - 1
        return regrets

    @property
    def idling(self) -> Floats:
        """[layers, configs]; the log of the factor by which idle parts of the device lengthen a config's time."""
        outputs = np.array([[layer.problem.output.elements] for layer in self.layers])
        logs: Floats = IDLING * np.log(np.maximum(self.padded_outputs, outputs) / outputs)
        return logs


def suggested_configs(matrix: Matrix, rows: Sequence[int]) -> tuple[int, ...]:
    """The candidate configs for these layers: their own best few, without those that fail on any of them.

    Configs that only other layers contribute are excluded, so that nothing is learned from a layer that is left out.
    """
    asked = [row for row in rows if row < len(matrix.top_configs)]
    suggested = sorted({config for row in asked for config in matrix.top_configs[row]} - {matrix.default})
    return tuple(config for config in suggested if not matrix.failed[list(rows), config].any())


def measured(matrix: Matrix) -> Floats:
    """[layers, configs]; log regrets, 0 where a config may not serve a layer."""
    regrets = np.where(np.isfinite(matrix.regrets), matrix.regrets, 0.0)
    logs: Floats = np.log1p(np.clip(regrets, LEAST_REGRET, MOST_REGRET))
    return logs


def expected(matrix: Matrix, own: Floats, near: Floats, by: Sequence[int], of: Sequence[int]) -> Floats:
    """[rows, of]; log regrets to expect of configs where nothing idles, PRIOR where little is known.

    They are what layers, weighted by `own` [rows, layers], say of these configs, and less so what layers, weighted by
    `near`, say of those like them among `by`.
    """
    serves = np.isfinite(matrix.regrets).astype(np.float64)
    said = serves * (measured(matrix) - matrix.idling)
    similar = matrix.config_similarity[np.ix_(list(by), list(of))]
    heard, weight = near @ said[:, list(by)] @ similar, near @ serves[:, list(by)] @ similar
    of_like = (heard + PRIOR_WEIGHT * PRIOR) / (weight + PRIOR_WEIGHT)
    logs: Floats = (own @ said[:, list(of)] + LIKE_WEIGHT * of_like) / (own @ serves[:, list(of)] + LIKE_WEIGHT)
    return logs


def near(matrix: Matrix, rows: Sequence[int]) -> Floats:
    """[rows, layers]; how much each of these layers says of each: the nearer the more, and the others nothing."""
    weights = np.zeros((len(rows), len(matrix.layers)))
    weights[:, list(rows)] = matrix.layer_similarity[np.ix_(list(rows), list(rows))]
    return weights


def halfway(matrix: Matrix, rows: Sequence[int], configs: Sequence[int]) -> Floats:
    """[rows, configs]; log regrets halfway between measured and expected; infinite if the config does not support the
    layer.

    The expectation uses the other layers, weighted by similarity, similar configs, and the idle part of the device. A
    layer's own measurement alone says little about unseen layers.
    """
    cells = np.ix_(list(rows), list(configs))
    of_others = near(matrix, rows) * (1 - np.eye(len(matrix.layers)))[list(rows)]
    by = sorted({*suggested_configs(matrix, rows), *configs, matrix.default})
    logs = expected(matrix, of_others, of_others, by, configs)
    found: Floats = (measured(matrix)[cells] + logs + matrix.idling[cells]) / 2
    return np.where(np.isfinite(matrix.regrets[cells]), found, np.inf)


def portfolio(matrix: Matrix, rows: Sequence[int], most: int) -> tuple[int, ...]:
    """The portfolio: at most this many configs, without the default, in the order in which they were chosen.

    Each is the config that reduces the weighted regret of the layers most, given those chosen before. Regrets count by
    their logarithm, so that no single layer decides.
    """
    eligible = suggested_configs(matrix, rows)
    if not eligible:
        return ()
    here, cost = list(rows), halfway(matrix, rows, eligible)
    having = np.log1p(np.minimum(matrix.regrets[here, matrix.default], NOTHING_FITS))
    weights = matrix.weights[here]
    chosen: list[int] = []
    while len(chosen) < most:
        gains = weights @ np.maximum(having[:, None] - cost, 0)
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        chosen.append(eligible[best])
        having = np.minimum(having, cost[:, best])
    return tuple(chosen)


def served(matrix: Matrix, order: Sequence[int]) -> Ints:
    """[layers]; the first of these configs that supports each layer, or -1."""
    fits = np.isfinite(matrix.times_us[:, list(order)])
    found: Ints = np.where(fits.any(axis=1), np.array(order)[np.argmax(fits, axis=1)], -1)
    return found


def lost_us(matrix: Matrix, configs: Ints) -> Floats:
    """[layers]; weighted microseconds lost relative to each layer's best, with the chosen configs; -1 in them means
    none.
    """
    rows = np.arange(len(matrix.layers))
    times = np.where(configs < 0, np.inf, matrix.times_us[rows, np.maximum(configs, 0)])
    times = np.where(np.isfinite(times), times, (1 + NOTHING_FITS) * matrix.best_us)
    lost: Floats = matrix.weights * (times - matrix.best_us)
    return lost
