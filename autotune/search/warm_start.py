"""space -> search: an initial design of the configs that were fast on similar layers and devices.

A Gaussian process for each family predicts how far behind its layer's best a config is, from the fastest trials of the
nearest layers and devices. It sees a config by what that comes to on a layer: beside the parameters, all that the
header derives from them and from the problem, such as rows a thread, blocks over the output channels, registers and
warps. Those carry over where parameters do not: 20 rows a thread are as good a choice elsewhere, a tile of 22 rows that
the layer's 80 rows even out to 20 need not be. The feasible config with the smallest prediction comes next; what the
layer's own first trials say counts for those that follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from autotune.devices.device import DeviceInfo
from autotune.distance import device_distance, layer_distance
from autotune.errors import TemplateError
from autotune.expressions.vectorized import Columns, column_of
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Problem
from autotune.search.initial_design import WARM_START
from autotune.trial import Config

Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

MOST = 10
"""Maximum number of configs that a search starts with."""
NEAREST = 8
"""Number of pairs of layer and device to consider."""
NEAR = 4.0
"""Maximum distance of the nearest layer for a warm start."""
FARTHEST = 12.0
"""Distance beyond which a layer is ignored if another one is near."""
CAP = 1.0
"""Log of the largest distinguishable slowdown, which is also the prediction without any information."""
SHARED = 0.6
"""Share of the variance that belongs to a family on a layer as a whole; the rest belongs to its configs."""
SHARED_DECAY = 0.25
"""How fast the information about a whole family decreases with the distance of layer and device."""
DECAY = 0.1
"""How fast the information about a config decreases with that distance."""
NOISE = 0.02
"""Variance of a prediction's error that does not depend on distance, relative to the signal's."""
HOPE = 0.3
"""Number of deviations by which a config must be better than predicted, relative to tried configs of its family;
without it the list consists of variants of one tile.
"""
AGAIN = 0.08
"""Penalty of a family's next config for each of its pending ones, so that a misleading family does not get all of them
before results arrive.
"""
DRAWN = 2000
"""Number of random feasible configs of a family to score."""
NEIGHBOURS = 30
"""Number of feasible configs nearest to each of the BEST sources to score as well."""
BEST = 30


class TunedTrial(Protocol):
    """One of the fastest trials of a family on some layer and device."""

    @property
    def name(self) -> str:
        """`study.layer` of a study that has it."""

    @property
    def problem(self) -> Problem: ...
    @property
    def device(self) -> DeviceInfo: ...
    @property
    def config(self) -> Config: ...
    @property
    def median_us(self) -> float: ...


@dataclass(frozen=True, slots=True)
class TunedLayer:
    """A layer on a device that was tuned before, with its fastest trials."""

    trials: tuple[TunedTrial, ...]
    distance: float
    """from the layer and device to tune"""

    @property
    def name(self) -> str:
        """`study.layer on DEVICE`."""
        return f"{self.trials[0].name} on {self.trials[0].device.name}"

    @property
    def families(self) -> frozenset[str]:
        """Those tried here."""
        return frozenset(trial.config.template for trial in self.trials)

    def best_us(self, families: frozenset[str]) -> float:
        """The fastest trial of some families; infinite if none of them was tried."""
        return min((trial.median_us for trial in self.trials if trial.config.template in families), default=math.inf)

    def slowdowns(self, layers: Sequence[TunedLayer]) -> list[tuple[Config, float]]:
        """Configs with the log of their time relative to the best one's, at most CAP.

        Families that were not tried on this layer might have been faster: by as much as on the nearest layer that has
        trials of both them and some of this layer's families.
        """
        elsewhere = [layer for layer in layers if layer.families - self.families and layer.families & self.families]
        unseen = 0.0
        if elsewhere:
            nearest = min(elsewhere, key=self.apart)
            unseen = math.log(nearest.best_us(self.families) / nearest.best_us(nearest.families))
        best_us = self.best_us(self.families)
        return [(trial.config, min(CAP, math.log(trial.median_us / best_us) + unseen)) for trial in self.trials]

    def apart(self, other: TunedLayer) -> float:
        """The distance of two layers."""
        one, two = self.trials[0], other.trials[0]
        return layer_distance(one.problem, two.problem) + device_distance(one.device, two.device)


class WarmStart:
    """The first configs of a layer's search, each chosen with the results known when it is asked for."""

    by = WARM_START

    def __init__(self, layers: Sequence[TunedLayer], families: Sequence[_Family], most: int) -> None:
        self._families, self._most = families, most
        self.layers = tuple((layer.name, layer.distance) for layer in layers) if families else ()
        """`study.layer on DEVICE` to its distance, nearest first"""

    def next(self, told: Mapping[Config, float], pending: Sequence[Config]) -> Config | None:
        """The next config, given the log times of told configs, infinite for failures, and the pending ones; None once
        there are enough of both.
        """
        if len(told) + len(pending) >= self._most:
            return None
        best = min(told.values(), default=math.inf)
        behind = {
            config: min(CAP, log_time - best) if log_time < math.inf else CAP for config, log_time in told.items()
        }
        proposals = [family.propose(behind, pending) for family in self._families]
        promise, config = min(proposals, key=lambda proposal: proposal[0], default=(math.inf, None))
        return config if promise < math.inf else None


def warm_start(
    problem: Problem, device: DeviceInfo, tuned: Sequence[TunedTrial], spaces: Sequence[SearchSpace], most: int
) -> WarmStart:
    """The initial design of a search of up to `most` configs; empty if nothing similar was ever tuned."""
    wanted = {space.template for space in spaces}
    layers = near(problem, device, [trial for trial in tuned if trial.config.template in wanted])
    families = [family for space in spaces if len(space.rows) and space.params if (family := _judge(space, layers))]
    return WarmStart(layers, families, most)


def near(problem: Problem, device: DeviceInfo, tuned: Sequence[TunedTrial]) -> list[TunedLayer]:
    """The nearest layers and devices with their trials, nearest first; empty if even the nearest is too far."""
    groups: dict[tuple[Problem, tuple[str, str, int, int, int]], list[TunedTrial]] = {}
    for trial in tuned:
        groups.setdefault((trial.problem, trial.device.identity), []).append(trial)
    layers = [
        TunedLayer(tuple(found), layer_distance(problem, found[0].problem) + device_distance(device, found[0].device))
        for found in groups.values()
    ]
    layers = sorted((layer for layer in layers if layer.distance <= FARTHEST), key=lambda layer: layer.distance)
    return layers[:NEAREST] if layers and layers[0].distance <= NEAR else []


@dataclass(frozen=True, slots=True)
class _Family:
    """The configs of a family to score, and the predictions from the trials of other layers."""

    space: SearchSpace
    rows: Ints
    """of the space, ascending"""
    view: Singles
    predicted: Floats
    """log slowdowns"""
    said: Floats
    """the influence of each trial, made independent of earlier ones, on each config [trials, configs]"""

    def propose(self, behind: Mapping[Config, float], pending: Sequence[Config]) -> tuple[float, Config]:
        """The smallest predicted slowdown and its config; infinite if none is left.

        `behind` is how far its own trials are behind the layer's best so far.
        """
        predicted, said = self.predicted.copy(), self.said
        taken = []
        for config in (*behind, *pending):
            row = self.space.row_of(config)
            index = int(np.searchsorted(self.rows, -1 if row is None else row))
            if row is None or index == len(self.rows) or self.rows[index] != row:
                continue
            taken.append(index)
            if config in behind:
                covariance = _covariance(_apart(self.view, self.view[index : index + 1]), np.zeros(1))[:, 0]
                left = covariance - said.T @ said[:, index]
                deviation = math.sqrt(left[index] + NOISE)
                predicted += left / deviation * ((behind[config] - predicted[index]) / deviation)
                said = np.vstack([said, left / deviation])
        predicted[taken] = math.inf
        promise, left = float(predicted.min()), np.maximum(1.0 - np.einsum("ij,ij->j", said, said), 0.0)
        best = int((predicted - HOPE * np.sqrt(left) if len(said) > len(self.said) else predicted).argmin())
        cost = AGAIN * sum(config.template == self.space.template for config in pending)
        return promise + cost, self.space.config(int(self.rows[best]))


def _judge(space: SearchSpace, layers: Sequence[TunedLayer]) -> _Family | None:
    """A family's feasible configs to score, with their predicted slowdowns; empty if the family was never good."""
    template = space.bound.template
    views, of, slowdowns, positions = [], [], [], []
    for number, layer in enumerate(layers):
        told = [
            (now, slowdown) for config, slowdown in layer.slowdowns(layers) if (now := template.current_config(config))
        ]
        if not told:
            continue
        here = np.stack([positions_of(template, config) for config, _ in told])
        bound = BoundTemplate(template, layer.trials[0].problem, layer.trials[0].device)
        try:
            views.append(features(bound, here))
        except TemplateError:  # of a version of the family that allowed configs which this one does not
            continue
        positions.append(here)
        of += [number] * len(told)
        slowdowns += [slowdown for _, slowdown in told]
    if not slowdowns or min(slowdowns) >= CAP:
        return None
    distances = np.array([layer.distance for layer in layers])[of]
    between = np.array([[one.apart(other) for other in layers] for one in layers])[np.ix_(of, of)]
    behind = np.array(slowdowns)
    best = np.argsort(behind + SHARED_DECAY * distances, kind="stable")[:BEST]
    rows = feasible_positions(space)
    judged = _worth_judging(template, rows, np.concatenate(positions)[best])
    known, view = _scaled(np.concatenate(views), features(space.bound, rows[judged]))
    root = np.linalg.cholesky(_covariance(_apart(known, known), between) + NOISE * np.eye(len(of)))
    whitening = np.linalg.inv(root)
    said = whitening @ _covariance(_apart(known, view), distances[:, None])
    predicted = CAP + said.T @ (whitening @ (behind - CAP))
    return _Family(space, judged, view, predicted, said)


def _covariance(apart: Singles, distance: Floats) -> Floats:
    """Correlation of two configs at this distance, on layers and devices at some distance."""
    config = np.exp(-apart - DECAY * distance)
    return np.asarray(SHARED * np.exp(-SHARED_DECAY * distance) + (1 - SHARED) * config)


def _worth_judging(template: KernelTemplate, rows: Ints, sources: Ints) -> Ints:
    """Which configs to score: some at random, and those whose values are nearest to a source's in order."""
    spans = np.array([max(1, len(param.values) - 1) for param in template.params], dtype=np.float32)
    drawn = np.random.default_rng(len(rows)).permutation(len(rows))[:DRAWN]
    scaled, most = (rows / spans).astype(np.float32), min(NEIGHBOURS, len(rows))
    nearest = [
        np.argpartition(np.abs(scaled - source).sum(axis=1), most - 1)[:most]
        for source in (sources / spans).astype(np.float32)
    ]
    return np.unique(np.concatenate([drawn, *nearest]))


def _scaled(known: Singles, judged: Singles) -> tuple[Singles, Singles]:
    """Both views with every varying feature scaled to the same spread."""
    spread: Singles = np.concatenate([known, judged]).std(axis=0, dtype=np.float32)
    varies = spread > 0
    return known[:, varies] / spread[varies], judged[:, varies] / spread[varies]


def _apart(left: Singles, right: Singles) -> Singles:
    """Mean difference over all features [len(left), len(right)]."""
    total = np.zeros((len(left), len(right)), np.float32)
    for column in range(left.shape[1]):
        total += np.abs(left[:, column, None] - right[None, :, column])
    return np.asarray(total / max(1, left.shape[1]), dtype=np.float32)


Positions = npt.NDArray[np.intp]
Features = npt.NDArray[np.float32]


def positions_of(template: KernelTemplate, config: Config) -> Positions:
    """The positions of a config's values in the header."""
    values = config.params
    return np.array([param.values.index(values[param.name]) for param in template.params], dtype=np.intp)


def feasible_positions(space: SearchSpace) -> Positions:
    """The feasible configs by positions in the header, whatever a study has narrowed [configs, params]."""
    tables = [
        np.array([whole.values.index(value) for value in kept.values], dtype=np.intp)
        for whole, kept in zip(space.bound.template.params, space.params, strict=True)
    ]
    return np.stack([table[space.rows[:, column]] for column, table in enumerate(tables)], axis=1)


def features(bound: BoundTemplate, positions: Positions) -> Features:
    """The derived values of configs on a layer: logarithms of numbers, words one-hot [configs, features]."""
    columns = Columns({}, len(positions))
    found: list[npt.NDArray[np.generic]] = []
    for column, param in enumerate(bound.template.params):
        columns[param.name] = column_of(param.values)[positions[:, column]]
    for name, value in bound.derived:
        columns[name] = value.column(columns)
    for param in bound.template.params:
        if any(isinstance(value, str) for value in param.values):
            found += [np.equal(columns[param.name], value) for value in param.values]
        else:
            found.append(columns[param.name])
    found += [columns[name] for name, _ in bound.derived]
    numbers = np.stack([feature.astype(np.float32) for feature in found], axis=1)
    return np.asarray(np.sign(numbers) * np.log2(1 + np.abs(numbers)), dtype=np.float32)
