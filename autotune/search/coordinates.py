"""Parameters of any kind as coordinates, and the similarity of two points that may lack some of them.

A coordinate runs from 0 to 1 between a parameter's smallest and largest value, on a log scale if the parameter has one.
Choices have coordinates by position, and NaN stands for a missing parameter. The similarity of numbers is a Matern 3/2
function of their distance (Rasmussen & Williams 2006, 4.17). The similarity of choices depends on whether they differ
and, if all choices are numbers, also on their distance. If two points both lack a parameter, they are equal in that
parameter, but if only one of them lacks it, the points have nothing in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.search.gaussian_process import INTERACTION, Points, Singles, weights_prior
from autotune.search.one_hot import ORDER
from autotune.search.state import Floats

ROOT_3 = math.sqrt(3.0)
NOTHING_IN_COMMON = 1e6
"""A distance so large that, whatever the weight, the two points aren't similar."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter: converts values, as stored by Optuna (choices by position), to coordinates and back."""

    low: float
    high: float
    step: float
    """difference between neighbouring values; 0 for a continuous parameter"""
    log: bool
    choices: int = 0
    """number of choices; 0 if the parameter is a number"""
    ordered: bool = True
    """whether distances between values are meaningful"""

    @classmethod
    def of(cls, distribution: BaseDistribution) -> Axis:
        """Create a parameter's axis."""
        if isinstance(distribution, CategoricalDistribution):
            count = len(distribution.choices)
            numbers = all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in distribution.choices)
            return cls(0.0, float(count - 1), 1.0, log=False, choices=count, ordered=numbers)
        if isinstance(distribution, (IntDistribution, FloatDistribution)):
            low, high, step = float(distribution.low), float(distribution.high), float(distribution.step or 0.0)
            return cls(low, high, step, distribution.log)
        raise ValueError(f"AutotuneSampler does not support {type(distribution).__name__}")

    @property
    def every(self) -> Floats:
        """All values of the parameter, or nothing if it is continuous."""
        if not self.step:
            return np.array([])
        return self.low + self.step * np.arange(1 + round((self.high - self.low) / self.step), dtype=np.float64)

    def coordinates(self, values: Floats) -> Floats:
        """Convert values to coordinates. Values out of range get coordinates below 0 or above 1."""
        low, high = self._ends(0.0)
        return (self._scaled(values) - low) / max(high - low, 1e-300)

    def values(self, coordinates: Floats) -> Floats:
        """Return the parameter's values that are nearest to some coordinates."""
        low, high = self._ends(0.0)
        scaled = low + np.clip(coordinates, 0.0, 1.0) * (high - low)
        return self._allowed(np.exp(scaled) if self.log else scaled)

    def random(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw random values, on a log scale if the parameter has one. All steps of values have the same width."""
        low, high = self._ends(0.5 * self.step)
        scaled = rng.uniform(low, high, count)
        return self._allowed(np.exp(scaled) if self.log else scaled)

    def _ends(self, margin: float) -> tuple[float, float]:
        """Return both ends of the range on the parameter's scale, with a margin outside."""
        low, high = self._scaled(np.array([self.low - margin, self.high + margin]))
        return float(low), float(high)

    def _scaled(self, values: Floats) -> Floats:
        return np.log(np.maximum(values, 1e-300)) if self.log else values

    def _allowed(self, values: Floats) -> Floats:
        """Round to the nearest values that the parameter may have."""
        if self.step:
            values = self.low + self.step * np.round((values - self.low) / self.step)
        return np.clip(values, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Axes:
    """Several parameters, and the metric of their coordinates [points, parameters]."""

    axes: tuple[Axis, ...]
    _latest: dict[tuple[bytes, bytes], Points] = field(default_factory=dict, compare=False, repr=False)
    """the latest distances, reused because Gaussian processes over the same points differ only in their weights"""

    @classmethod
    def of(cls, distributions: Iterable[BaseDistribution]) -> Axes:
        """Create the axes for some parameters."""
        return cls(tuple(Axis.of(each) for each in distributions))

    @property
    def width(self) -> int:
        """The number of parameters."""
        return len(self.axes)

    def prior(self) -> Floats:
        """Return the prior medians of the parameters' log weights and of their interaction."""
        return np.append(weights_prior(self.width), math.log(INTERACTION))

    def coordinates(self, values: Floats) -> Floats:
        """Convert values, where NaN stands for a missing parameter, to coordinates [points, width]."""
        columns = [axis.coordinates(values[:, place]) for place, axis in enumerate(self.axes)]
        return np.stack(columns, axis=1) if columns else np.zeros_like(values)

    def sample(self, points: Points) -> _Sample:
        """Prepare points for fitting weights by computing their distances in each parameter."""
        apart = self._distances(points, points)
        numbers = np.array([[[not axis.choices]] for axis in self.axes], np.float32)
        return _Sample(apart.astype(np.float32), numbers)

    def observed(self, points: Points, weights: Floats, *, single: bool = False) -> Paired:
        """Prepare observed points for computing covariances with other points."""
        return Paired(self, points.astype(np.float32) if single else points, weights)

    def apart(self, left: Points, right: Points) -> Floats:
        """Return the sum of the distances in all parameters for each pair of points [len(left), len(right)]."""
        apart = np.zeros((len(left), len(right)))
        for place, axis in enumerate(self.axes):
            apart += _distance(axis, left[:, place], right[:, place], 1.0)
        return apart

    def _distances(self, left: Points, right: Points) -> Points:
        """Return the distance between each pair of points in each parameter [parameters, len(left), len(right)]."""
        key = left.tobytes(), right.tobytes()
        if key not in self._latest:
            columns = zip(self.axes, left.T, right.T, strict=True)
            found = np.array([_distance(axis, each, other, NOTHING_IN_COMMON) for axis, each, other in columns])
            self._latest.clear()
            self._latest[key] = found
        return self._latest[key]


@dataclass(frozen=True, slots=True)
class Paired:
    """Observed points, and the weights of their parameters and of the interaction."""

    axes: Axes
    points: Points
    weights: Floats

    def covariance(self, points: Points) -> Points:
        """Return the covariances of the observed points with other points [observed, len(points)]."""
        asked: Points = points.astype(np.float32) if self.points.dtype == np.float32 else points
        product: Points = np.ones((len(self.points), len(asked)), dtype=self.points.dtype)
        apart, interaction = self.axes._distances(self.points, asked), float(self.weights[-1])
        for place, axis in enumerate(self.axes.axes):  # in place: most of a proposal's time is spent here
            weight = float(self.weights[place])
            distance: Points = apart[place] * apart.dtype.type(-weight if axis.choices else -ROOT_3 * weight)
            similarity = np.exp(distance)
            if not axis.choices:
                similarity *= np.subtract(1, distance, out=distance)
            similarity += 1 / interaction
            product *= similarity
        product *= (interaction / (1 + interaction)) ** self.axes.width
        return product


@dataclass(frozen=True, slots=True)
class _Sample:
    """The points that weights are fitted to. Everything except the covariances is in single precision."""

    apart: Singles
    """distances [parameters, points, points]"""
    numbers: Singles
    """1 for parameters that are numbers, 0 for choices [parameters, 1, 1]"""

    def covariance(self, weights: Floats) -> Floats:
        """Return the covariances of all pairs of points [points, points]."""
        interaction = float(weights[-1])
        distance, similarity = self._faded(weights)
        similarity *= 1 + self.numbers * distance
        similarity *= np.float32(interaction)
        similarity += 1
        product: Singles = np.multiply.reduce(similarity, axis=0)
        return product.astype(np.float64) * (1 + interaction) ** -len(self.apart)

    def by_weight(self, sensitivity: Floats, weights: Floats) -> Floats:
        """Return half the sum of sensitivities times derivatives of the log covariances, for each log weight."""
        interaction = np.float32(weights[-1])
        distance, fading = self._faded(weights)
        similarity = fading * (1 + self.numbers * distance)
        fading *= distance
        fading *= 1 + self.numbers * (distance - 1)
        similarity *= interaction
        total = similarity + 1
        fading *= -interaction
        fading /= total
        similarity /= total
        joint = similarity.sum(axis=0) - len(similarity) * interaction / (1 + interaction)
        slopes = np.concatenate([fading, joint[None]]).reshape(len(fading) + 1, -1)
        summed = slopes @ sensitivity.astype(np.float32).ravel()
        return 0.5 * summed.astype(np.float64)

    def _faded(self, weights: Floats) -> tuple[Singles, Singles]:
        """Return the weighted distances d, and exp(-d) [parameters, points, points]."""
        scale = weights[:-1, None, None] * (1 + self.numbers * (ROOT_3 - 1))
        distance: Singles = self.apart * scale.astype(np.float32)
        return distance, np.exp(-distance)


def _distance(axis: Axis, left: Points, right: Points, lacking: float) -> Points:
    """Return the distances between coordinates: `lacking` if exactly one of the two is missing, 0 if both are."""
    distance: Points = np.subtract.outer(left, right)
    np.abs(distance, out=distance)
    if axis.choices:
        order = ORDER if axis.ordered and axis.choices > 2 else 0.0
        differ = (1 - order) * np.greater(distance, 0)
        distance *= order
        distance += differ
    without_left, without_right = np.isnan(left), np.isnan(right)
    if without_left.any() or without_right.any():
        np.nan_to_num(distance, copy=False)
        distance[np.not_equal(without_left[:, None], without_right[None, :])] = lacking
    return distance
