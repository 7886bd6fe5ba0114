"""store -> dispatch: what each layer's time would be with each kernel, and the few kernels worth keeping.

A matrix has a row for each layer and a column for each config that is among the best few of some layer. A portfolio is
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

NOTHING_FITS = 10.0
"""Regret that a layer counts with when no kernel may serve it: it is left to be tuned."""


@dataclass(frozen=True)
class Matrix:
    """Layers by configs."""

    layers: tuple[Layer, ...]
    configs: tuple[Config, ...]
    times_us: Floats
    """[layers, configs]; infinite where a config may not serve a layer, or fails on it"""
    failed: Bools
    """[layers, configs]; where a config may serve a layer by its predicate, and is not correct"""
    best_us: Floats
    """[layers]; of the layer's own best kernel"""
    leaders: tuple[tuple[int, ...], ...]
    """of each layer, its best few configs, the best first"""
    default: int
    """the safe default among the configs"""
    values: Ints
    """[layers, properties]; what thresholds may ask for"""
    techniques: Mapping[str, int] = field(default_factory=dict)
    """the config of each technique that the study's rules name"""

    @property
    def weights(self) -> Floats:
        """[layers]; how often the network runs each."""
        return np.array([layer.count for layer in self.layers], dtype=np.float64)

    @property
    def regrets(self) -> Floats:
        """[layers, configs]; infinite where a config may not serve a layer."""
        regrets: Floats = self.times_us / self.best_us[:, None] - 1
        return regrets


def candidates(matrix: Matrix, rows: Sequence[int]) -> tuple[int, ...]:
    """The configs that a portfolio for these layers may have: their own best few, without what fails on any of them.

    A config that only other layers suggest is left out, so that nothing of a layer that is left out gets in.
    """
    suggested = sorted({config for row in rows for config in matrix.leaders[row]} - {matrix.default})
    return tuple(config for config in suggested if not matrix.failed[list(rows), config].any())


def portfolio(matrix: Matrix, rows: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many configs beside the default, in the order in which they were chosen.

    Each is the one that takes away the most weighted regret of the layers, if each layer had the best of those chosen
    that may serve it; regret counts by its logarithm, so that no single layer decides. What a config does for the only
    layer that suggests it says nothing of others, so it counts only once nothing else is gained.
    """
    offered = np.array(candidates(matrix, rows), dtype=np.int64)
    if not len(offered):
        return ()
    weights = matrix.weights[list(rows)]
    for_others = np.where(_alone(matrix, rows, offered), np.inf, matrix.regrets[list(rows)][:, offered])
    chosen: list[int] = []
    for regrets in (for_others, matrix.regrets[list(rows)][:, offered]):
        cost = np.log1p(np.minimum(regrets, NOTHING_FITS))
        having = np.log1p(np.minimum(matrix.regrets[list(rows), matrix.default], NOTHING_FITS))
        having = np.minimum(having, cost[:, chosen].min(axis=1, initial=np.inf))
        while len(chosen) < most:
            gains = weights @ np.maximum(having[:, None] - cost, 0)
            best = int(np.argmax(gains))
            if gains[best] <= 0:
                break
            chosen.append(best)
            having = np.minimum(having, cost[:, best])
    return tuple(int(offered[config]) for config in chosen)


def _alone(matrix: Matrix, rows: Sequence[int], offered: Ints) -> Bools:
    """[rows, offered]; where a layer is the only one that suggests a config."""
    suggests = np.array([np.isin(offered, matrix.leaders[row]) for row in rows])
    alone: Bools = suggests & (suggests.sum(axis=0) == 1)
    return alone


def fall_through(matrix: Matrix, rows: Sequence[int], kernels: Sequence[int]) -> tuple[int, ...]:
    """The kernels in the order of their mean regret where they may serve: what is passed on to is best on the whole."""

    def mean(kernel: int) -> float:
        regrets, weights = matrix.regrets[list(rows), kernel], matrix.weights[list(rows)]
        serves = np.isfinite(regrets)
        return float(np.average(regrets[serves], weights=weights[serves])) if serves.any() else NOTHING_FITS

    return tuple(sorted(kernels, key=mean))


def served(matrix: Matrix, kernels: Sequence[int]) -> Ints:
    """[layers, kernels + 1]; the config that serves a layer when a rule names a kernel, or the default (the last).

    What may not serve is passed over for the kernels in their order, then the default; -1 where nothing fits.
    """
    order = [*kernels, matrix.default]
    fits = np.isfinite(matrix.times_us[:, order])
    found = np.empty((len(matrix.layers), len(order)), dtype=np.int64)
    for position in range(len(order)):
        tried = [position, *(other for other in range(len(order)) if other != position)]
        first = np.argmax(fits[:, tried], axis=1)
        found[:, position] = np.where(fits.any(axis=1), np.array(order)[np.array(tried)[first]], -1)
    return found


def lost_us(matrix: Matrix, configs: Ints) -> Floats:
    """Microseconds lost over each layer's best, weighted, where [layers, ...] configs serve; -1: nothing does."""
    rows = np.arange(len(matrix.layers)).reshape((-1,) + (1,) * (configs.ndim - 1))
    best = matrix.best_us.reshape(rows.shape)
    times = np.where(configs < 0, np.inf, matrix.times_us[rows, np.maximum(configs, 0)])
    times = np.where(np.isfinite(times), times, (1 + NOTHING_FITS) * best)
    lost: Floats = matrix.weights.reshape(rows.shape) * (times - best)
    return lost
