"""space -> search: an initial design of configs that a cost model predicts to be fastest, corrected by results.

For each family, a Gaussian process predicts by how much the cost model's log times are wrong, based on the fastest
trials of the nearest layers and devices. Its inputs are a config's parameters and all values that the header derives
from the parameters and the problem, such as rows per thread, blocks over the output channels, registers and warps.
Derived values carry over to other layers better than parameters. For example, a tile of 22 rows divides a layer's 80
rows into four tiles of 20. On another layer, 20 rows per thread are just as good a choice, but a tile of 22 rows need
not be. The feasible config with the smallest prediction comes next. Results from the layer's own first trials correct
the predictions for later configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from autotune.devices.device import DeviceInfo
from autotune.distance import device_distance, layer_distance
from autotune.errors import TemplateError
from autotune.expressions.vectorized import Columns
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Problem
from autotune.search.cost_model import CostModel
from autotune.search.cost_terms import Positions, config_columns
from autotune.trial import Config

Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Rates = Mapping[str, float]

WARM_START, COST_MODEL = "warm_start", "cost_model"
"""The source of a layer's first configs: the model corrected by similar layers, or the model alone."""

MOST = 10
"""Maximum number of configs with which a search starts."""
NEAREST = 8
"""Maximum number of pairs of layer and device that contribute trials."""
FEWEST = 3
"""Minimum number of trials of another layer that contributes. A winner alone doesn't show how configs differ."""
NEAR = 4.0
"""Maximum distance of the nearest layer and device for a warm start."""
FARTHEST = 12.0
"""Distance beyond which a layer is ignored, even if another one is near."""
DEVIATION = 0.2
"""Standard deviation of the part of a log time that the cost model doesn't explain."""
SHARED = 0.6
"""Share of the variance that belongs to a family on a layer as a whole. The rest belongs to its configs."""
SHARED_DECAY = 0.25
"""Rate at which information about a whole family decays with the distance of layer and device."""
DECAY = 0.1
"""Rate at which information about a single config decays with the distance of layer and device."""
NOISE = 0.02
"""Variance of an error that does not depend on distance, relative to the square of DEVIATION."""
FAILED = 1.0
"""Amount by which a failed config's log time is assumed to exceed its prediction."""
HOPE = 0.3
"""Number of standard deviations by which a config is assumed to beat its prediction, once one of the layer's configs
has been tried. Without this, the proposals would all be variants of one tile.
"""
AGAIN = 0.08
"""Penalty, as a log time, on a family's next config for each of its pending configs, so that a misleading family
doesn't get all configs before results arrive.
"""
PREDICTED = 4000
"""Number of random feasible configs of a family for which the cost model predicts times."""
KEPT = 1000
"""Number of configs with the fastest predictions that are corrected by results."""
NEIGHBOURS = 30
"""Number of feasible configs nearest to each of the BEST tuned configs that are corrected as well."""
BEST = 30


class TunedTrial(Protocol):
    """One of a family's fastest trials on a layer and device."""

    @property
    def name(self) -> str:
        """`study.layer`, for a study that contains the trial's layer."""

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
    """A layer and device tuned before, with the fastest trials."""

    trials: tuple[TunedTrial, ...]
    distance: float
    """distance from the layer and device to tune"""

    @property
    def name(self) -> str:
        """`study.layer on DEVICE`."""
        return f"{self.trials[0].name} on {self.trials[0].device.name}"

    def apart(self, other: TunedLayer) -> float:
        """Return the distance between two tuned layers, including that between their devices."""
        one, two = self.trials[0], other.trials[0]
        return layer_distance(one.problem, two.problem) + device_distance(one.device, two.device)


class WarmStart:
    """Proposes the first configs of a layer's search, each based on the results known by then."""

    def __init__(self, layers: Sequence[TunedLayer], families: Sequence[_Family], most: int) -> None:
        self._families, self._most = families, most
        self.layers = tuple((layer.name, layer.distance) for layer in layers) if families else ()
        """`study.layer on DEVICE` to its distance, nearest first"""
        self.by = WARM_START if self.layers else COST_MODEL

    def next(self, known: Mapping[Config, float], pending: Sequence[Config]) -> Config | None:
        """Return the next config, or None once enough configs are known or pending.

        `known` contains the log times of evaluated configs, infinite for failures.
        """
        if len(known) + len(pending) >= self._most:
            return None
        proposal = self.proposal(known, pending)
        return None if proposal is None else proposal[1]

    def proposal(
        self, known: Mapping[Config, float] = MappingProxyType({}), pending: Sequence[Config] = ()
    ) -> tuple[float, Config] | None:
        """Return the smallest predicted log time and its config, or None if there is no config left."""
        proposals = [family.propose(known, pending) for family in self._families]
        best = min(proposals, key=lambda proposal: proposal[0], default=None)
        return best if best is not None and best[0] < math.inf else None


def warm_start(
    problem: Problem,
    device: DeviceInfo,
    tuned: Sequence[TunedTrial],
    spaces: Sequence[SearchSpace],
    most: int,
    model: CostModel,
    rates: Rates,
) -> WarmStart:
    """Create a search's initial design of up to `most` configs, given the device's calibrated rates.

    The design is empty if no near layer was tuned and the device isn't a GPU, because the cost model only describes
    GPUs.
    """
    wanted = {space.template for space in spaces}
    layers = near(problem, device, [trial for trial in tuned if trial.config.template in wanted])
    if not layers and not device.can.gpu_times:
        return WarmStart((), (), most)
    predictor = _Predictor(model, device, rates)
    known = {
        space.template: _known(space.bound.template, layers, predictor)
        for space in spaces
        if len(space.rows) and space.params
    }
    errors = [error for own in known.values() for error in own.errors]
    offset = float(np.mean(errors)) if errors else 0.0
    families = [
        _family(space, layers, known[space.template], predictor, offset) for space in spaces if space.template in known
    ]
    return WarmStart(layers if errors else (), families, most)


def near(problem: Problem, device: DeviceInfo, tuned: Sequence[TunedTrial]) -> list[TunedLayer]:
    """Return the nearest layers and devices with their trials, nearest first, or nothing if even the nearest is too
    far.
    """
    groups: dict[tuple[Problem, tuple[str, str, int, int, int]], list[TunedTrial]] = {}
    for trial in tuned:
        groups.setdefault((trial.problem, trial.device.identity), []).append(trial)
    layers = [
        TunedLayer(tuple(found), layer_distance(problem, found[0].problem) + device_distance(device, found[0].device))
        for found in groups.values()
    ]
    telling = [layer for layer in layers if layer.distance <= 0 or len(layer.trials) >= FEWEST]
    layers = sorted((layer for layer in telling if layer.distance <= FARTHEST), key=lambda layer: layer.distance)
    return layers[:NEAREST] if layers and layers[0].distance <= NEAR else []


@dataclass(frozen=True, slots=True)
class _Predictor:
    """The cost model with one device's calibrated rates. Other devices use the model's recorded rates."""

    model: CostModel
    device: DeviceInfo
    rates: Rates

    def log_us(self, bound: BoundTemplate, columns: Columns) -> Floats:
        calibrated = self.rates if bound.device.identity == self.device.identity else {}
        return self.model.log_us(bound, columns, self.model.rates_of(bound.device, calibrated))


@dataclass(frozen=True, slots=True)
class _Known:
    """A family's trials on the nearest layers."""

    positions: Positions
    """positions of the trials' values in the header [trials, params]"""
    views: Singles
    """features of the trials' configs [trials, features]"""
    layers: Ints
    """index of each trial's layer"""
    errors: Floats
    """errors of the predicted log times"""
    times: Floats
    """log times"""


@dataclass(frozen=True, slots=True)
class _Family:
    """The configs of a family that the design can choose from, and their predictions."""

    space: SearchSpace
    rows: Ints
    """rows of the space, ascending"""
    view: Singles
    predicted: Floats
    """predicted log times"""
    influence: Floats
    """the influence of each trial, made independent of earlier trials, on each config [trials, configs]"""

    def propose(self, known: Mapping[Config, float], pending: Sequence[Config]) -> tuple[float, Config]:
        """Return the smallest prediction and its config. `known` contains the layer's own log times.

        If no config is left, the prediction is infinite.
        """
        predicted, influence = self.predicted.copy(), self.influence
        indices = []
        for config in (*known, *pending):
            row = self.space.row_of(config)
            index = int(np.searchsorted(self.rows, -1 if row is None else row))
            if row is None or index == len(self.rows) or self.rows[index] != row:
                continue
            indices.append(index)
            if config in known:
                error = known[config] - predicted[index] if known[config] < math.inf else FAILED
                covariance = _covariance(_apart(self.view, self.view[index : index + 1]), np.zeros(1))[:, 0]
                left = covariance - influence.T @ influence[:, index]
                deviation = math.sqrt(left[index] + NOISE)
                predicted += left / deviation * (error / deviation)
                influence = np.vstack([influence, left / deviation])
        if known:
            left = np.maximum(1.0 - np.einsum("ij,ij->j", influence, influence), 0.0)
            predicted -= HOPE * DEVIATION * np.sqrt(left)
        predicted[indices] = math.inf
        best = int(predicted.argmin())
        cost = AGAIN * sum(config.template == self.space.template for config in pending)
        return float(predicted[best]) + cost, self.space.config(int(self.rows[best]))


def _known(template: KernelTemplate, layers: Sequence[TunedLayer], predictor: _Predictor) -> _Known:
    """Collect a family's trials on these layers, leaving out configs that the family no longer has."""
    positions = [np.empty((0, len(template.params)), np.intp)]
    views, numbers = [], []
    errors, times = [np.empty(0)], [np.empty(0)]
    for number, layer in enumerate(layers):
        trials = [(now, trial.median_us) for trial in layer.trials if (now := template.current_config(trial.config))]
        if not trials:
            continue
        here = np.stack([positions_of(template, config) for config, _ in trials])
        bound = BoundTemplate(template, layer.trials[0].problem, layer.trials[0].device)
        try:
            columns = config_columns(bound, here)
            predicted = predictor.log_us(bound, columns)
        except TemplateError:  # an earlier version of the family allowed configs that this one does not
            continue
        positions.append(here)
        views.append(features(bound, columns))
        times.append(np.log([median_us for _, median_us in trials]))
        errors.append(times[-1] - predicted)
        numbers += [number] * len(trials)
    view = np.concatenate(views) if views else np.empty((0, 0), np.float32)
    return _Known(
        np.concatenate(positions), view, np.array(numbers, np.intp), np.concatenate(errors), np.concatenate(times)
    )


def _family(
    space: SearchSpace, layers: Sequence[TunedLayer], known: _Known, predictor: _Predictor, offset: float
) -> _Family:
    """Select and predict those configs of a family that are predicted to be fast or resemble fast configs elsewhere.

    `offset` is the cost model's mean error over all families.
    """
    distances = np.array([layer.distance for layer in layers])[known.layers]
    best = np.argsort(known.times + SHARED_DECAY * distances, kind="stable")[:BEST]
    feasible = feasible_positions(space)
    rows = _worth_correcting(space.bound, feasible, known.positions[best], predictor)
    columns = config_columns(space.bound, feasible[rows])
    predicted = predictor.log_us(space.bound, columns) + offset
    own = features(space.bound, columns)
    if not len(known.layers):
        view = _scaled(own[:0], own)[1]
        return _Family(space, rows, view, predicted, np.empty((0, len(rows))))
    between = np.array([[one.apart(other) for other in layers] for one in layers])[np.ix_(known.layers, known.layers)]
    source_view, view = _scaled(known.views, own)
    root = np.linalg.cholesky(
        _covariance(_apart(source_view, source_view), between) + NOISE * np.eye(len(known.layers))
    )
    whitening = np.linalg.inv(root)
    influence = whitening @ _covariance(_apart(source_view, view), distances[:, None])
    return _Family(space, rows, view, predicted + influence.T @ (whitening @ (known.errors - offset)), influence)


def _covariance(apart: Singles, distance: Floats) -> Floats:
    """Return the correlation of configs at distance `apart`, on layers and devices at distance `distance`."""
    config = np.exp(-apart - DECAY * distance)
    return np.asarray(SHARED * np.exp(-SHARED_DECAY * distance) + (1 - SHARED) * config)


def _worth_correcting(bound: BoundTemplate, feasible: Positions, sources: Positions, predictor: _Predictor) -> Ints:
    """Return the sampled configs with the smallest predictions and those nearest to each source, in order."""
    drawn = np.sort(np.random.default_rng(len(feasible)).permutation(len(feasible))[:PREDICTED])
    if len(drawn) > KEPT:
        predicted = predictor.log_us(bound, config_columns(bound, feasible[drawn]))
        drawn = drawn[np.argsort(predicted, kind="stable")[:KEPT]]
    spans = np.array([max(1, len(param.values) - 1) for param in bound.template.params], dtype=np.float32)
    scaled, most = (feasible / spans).astype(np.float32), min(NEIGHBOURS, len(feasible))
    nearest = [
        np.argpartition(np.abs(scaled - source).sum(axis=1), most - 1)[:most]
        for source in (sources / spans).astype(np.float32)
    ]
    return np.unique(np.concatenate([drawn, *nearest]))


def _scaled(known: Singles, own: Singles) -> tuple[Singles, Singles]:
    """Scale every feature of both views to the same spread, dropping constant features."""
    spread: Singles = np.concatenate([known, own]).std(axis=0, dtype=np.float32)
    varies = spread > 0
    return known[:, varies] / spread[varies], own[:, varies] / spread[varies]


def _apart(left: Singles, right: Singles) -> Singles:
    """Return the mean absolute difference over all features [len(left), len(right)]."""
    total = np.zeros((len(left), len(right)), np.float32)
    for column in range(left.shape[1]):
        total += np.abs(left[:, column, None] - right[None, :, column])
    return np.asarray(total / max(1, left.shape[1]), dtype=np.float32)


def positions_of(template: KernelTemplate, config: Config) -> Positions:
    """Return the positions of a config's values in the header."""
    values = config.params
    return np.array([param.values.index(values[param.name]) for param in template.params], dtype=np.intp)


def feasible_positions(space: SearchSpace) -> Positions:
    """Return the feasible configs as positions in the header, even if a study restricts the values [configs,
    params].
    """
    tables = [
        np.array([whole.values.index(value) for value in kept.values], dtype=np.intp)
        for whole, kept in zip(space.bound.template.params, space.params, strict=True)
    ]
    return np.stack([table[space.rows[:, column]] for column, table in enumerate(tables)], axis=1)


def features(bound: BoundTemplate, columns: Columns) -> Singles:
    """Convert parameters and derived values to features: logs of numbers, words one-hot [configs, features]."""
    found: list[npt.NDArray[np.generic]] = []
    for param in bound.template.params:
        if any(isinstance(value, str) for value in param.values):
            found += [np.equal(columns[param.name], value) for value in param.values]
        else:
            found.append(columns[param.name])
    found += [columns[name] for name, _ in bound.derived]
    numbers = np.stack([feature.astype(np.float32) for feature in found], axis=1)
    return np.asarray(np.sign(numbers) * np.log2(1 + np.abs(numbers)), dtype=np.float32)
