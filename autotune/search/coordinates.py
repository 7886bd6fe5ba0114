"""Parameters of any kind as coordinates, and the similarity of two points that may lack some of them.

A coordinate runs from 0 to 1 between a parameter's smallest and largest value, on a log scale if the parameter has one;
a choice has its position; NaN stands for a missing parameter. Numbers are similar by a Matern 3/2 function of their
distance (Rasmussen & Williams 2006, 4.17). Choices are similar by whether they differ and, if all are numbers, also by
their distance. Two points that lack a parameter are equal in it; if only one lacks it, they have nothing in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.search.gaussian_process import INTERACTION, Points
from autotune.search.one_hot import ORDER
from autotune.search.state import Floats


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter: converts its values, as Optuna stores them (choices by position), to coordinates and back."""

    low: float
    high: float
    step: float
    """step between two values; 0 for a continuous parameter"""
    log: bool
    choices: int = 0
    """number of values; 0 for a number"""
    ordered: bool = True
    """whether distances between values are meaningful"""

    @classmethod
    def of(cls, distribution: BaseDistribution) -> Axis:
        """The axis of a parameter."""
        if isinstance(distribution, CategoricalDistribution):
            count = len(distribution.choices)
            numbers = all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in distribution.choices)
            return cls(0.0, float(count - 1), 1.0, log=False, choices=count, ordered=numbers)
        if isinstance(distribution, (IntDistribution, FloatDistribution)):
            low, high, step = float(distribution.low), float(distribution.high), float(distribution.step or 0.0)
            return cls(low, high, step, distribution.log)
        raise ValueError(f"AutotuneSampler knows no {type(distribution).__name__}")

    @property
    def every(self) -> Floats:
        """All values, if there are steps between them."""
        if not self.step:
            return np.array([])
        return self.low + self.step * np.arange(1 + round((self.high - self.low) / self.step), dtype=np.float64)

    def coordinates(self, values: Floats) -> Floats:
        """Coordinates of values; below 0 or above 1 for a value out of range."""
        low, high = self._ends(0.0)
        return (self._scaled(values) - low) / max(high - low, 1e-300)

    def values(self, coordinates: Floats) -> Floats:
        """The values nearest to some coordinates, within the range."""
        low, high = self._ends(0.0)
        scaled = low + np.clip(coordinates, 0.0, 1.0) * (high - low)
        return self._allowed(np.exp(scaled) if self.log else scaled)

    def random(self, count: int, rng: np.random.Generator) -> Floats:
        """Random values, on a log scale if the parameter has one; all steps have the same width."""
        low, high = self._ends(0.5 * self.step)
        scaled = rng.uniform(low, high, count)
        return self._allowed(np.exp(scaled) if self.log else scaled)

    def _ends(self, margin: float) -> tuple[float, float]:
        """Both ends on the scale, extended outwards."""
        low, high = self._scaled(np.array([self.low - margin, self.high + margin]))
        return float(low), float(high)

    def _scaled(self, values: Floats) -> Floats:
        return np.log(np.maximum(values, 1e-300)) if self.log else values

    def _allowed(self, values: Floats) -> Floats:
        """The nearest values that the parameter may have."""
        if self.step:
            values = self.low + self.step * np.round((values - self.low) / self.step)
        return np.clip(values, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Axes:
    """Several parameters side by side: the metric of their coordinates [points, parameters]."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, distributions: Iterable[BaseDistribution]) -> Axes:
        """The axes of parameters."""
        return cls(tuple(Axis.of(each) for each in distributions))

    @property
    def width(self) -> int:
        """The number of parameters."""
        return len(self.axes)

    def coordinates(self, values: Floats) -> Floats:
        """Convert values, with NaN for missing parameters, to coordinates [points, width]."""
        columns = [axis.coordinates(values[:, place]) for place, axis in enumerate(self.axes)]
        return np.stack(columns, axis=1) if columns else np.zeros_like(values)

    def seen(self, points: Points) -> tuple[Axes, Points]:
        """These axes are valid for any points."""
        return self, points

    def observed(self, points: Points, weights: Floats) -> Paired:
        """Observed points, prepared for computing covariances with others."""
        return Paired(self, points, weights)

    def by_weight(self, points: Points, sensitivity: Floats, weights: Floats) -> Floats:
        """Half the sum of sensitivities times the derivatives of the log covariances, by each log weight [width]."""
        sums = []
        for place, axis in enumerate(self.axes):
            similarity, slope = _similarity(axis, points[:, place], points[:, place], float(weights[place]))
            sums.append(0.5 * float((sensitivity * INTERACTION * slope / (1 + INTERACTION * similarity)).sum()))
        return np.array(sums)

    def apart(self, left: Points, right: Points) -> Floats:
        """For each pair of points the unweighted distance in each parameter [len(left), len(right)]."""
        apart = np.zeros((len(left), len(right)))
        for place, axis in enumerate(self.axes):
            distance = _distance(axis, left[:, place], right[:, place])
            apart += np.where(np.isnan(distance), _one_lacks(left[:, place], right[:, place]), distance)
        return apart


@dataclass(frozen=True, slots=True)
class Paired:
    """Observed points and the weights of their parameters."""

    axes: Axes
    points: Points
    weights: Floats

    def log_covariance(self, points: Points) -> Points:
        """Covariances of the observed points with some others."""
        asked: Points = points.astype(np.float32) if self.points.dtype == np.float32 else points
        logs = np.zeros((len(self.points), len(points)), dtype=self.points.dtype)
        for place, axis in enumerate(self.axes.axes):
            similarity, _ = _similarity(axis, self.points[:, place], asked[:, place], float(self.weights[place]))
            logs += np.log1p(INTERACTION * similarity) - np.log1p(INTERACTION)
        return logs

    def single(self) -> Paired:
        """In single precision."""
        return Paired(self.axes, self.points.astype(np.float32), self.weights)


def _similarity(axis: Axis, left: Points, right: Points, weight: float) -> tuple[Points, Points]:
    """Similarities of coordinates, and their derivatives by the log weight [len(left), len(right)]."""
    distance = weight * _distance(axis, left, right)
    if axis.choices:
        similarity = np.exp(-distance)
        slope = -distance * similarity
    else:
        distance *= np.sqrt(3.0)
        fading = np.exp(-distance)
        similarity, slope = (1 + distance) * fading, -(distance**2) * fading
    lacking = np.isnan(distance)
    if lacking.any():
        both = lacking & ~_one_lacks(left, right)
        similarity, slope = np.where(lacking, both.astype(similarity.dtype), similarity), np.where(lacking, 0, slope)
    return similarity, slope


def _distance(axis: Axis, left: Points, right: Points) -> Points:
    """Distances of coordinates, NaN if one is missing."""
    steps = np.abs(left[:, None] - right[None, :])
    if not axis.choices:
        return steps
    differ = np.where(np.isnan(steps), steps, steps > 0)
    return ORDER * steps + (1 - ORDER) * differ if axis.ordered and axis.choices > 2 else differ


def _one_lacks(left: Points, right: Points) -> npt.NDArray[np.bool_]:
    """Whether exactly one of two coordinates is missing."""
    return np.not_equal(np.isnan(left)[:, None], np.isnan(right)[None, :])
