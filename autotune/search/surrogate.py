"""Predict the values and failures of untried points with Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from autotune.search.gaussian_process import PRIOR_LOG_NOISE, Metric, Points, Posterior, Weights, fit, posterior
from autotune.search.state import Floats, Ints

Flags = npt.NDArray[np.bool_]

MODELLED_FROM = 3
"""Minimum number of observed values for a model."""
FIT_EVERY = 8
"""Number of new observations after which the weights are fitted again. It grows with the number of observations."""
MODEL_ROWS = 256
"""Maximum number of observations on which a model is conditioned."""
CLIP = 2.0
"""Strength of the compression of values above the median, in units of the median's distance from the best."""
TINY = 1e-100
"""Smallest unit of a scale, for equal values."""
LEAST_CHANCE = 0.01
"""Lower bound of the chance of success."""
LIKELY = 0.4
"""Points with a smaller chance of success are left out as long as other points remain."""
DARE_EVERY = 25
"""One in this many proposals includes points below LIKELY, so that no region is given up forever."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of the models' values: 0 at the median, -1 at the best, and compressed far above the median."""

    median: float
    unit: float
    best: float
    least: float | None
    """the smallest unit; None: a thousandth of the values' standard deviation"""

    @classmethod
    def of(cls, values: Floats, least: float | None = None) -> Scale:
        """Compute the scale from the values of all correct trials."""
        middle, best = float(median(values)), float(values.min())
        smallest = least if least is not None else 1e-3 * float(values.std())
        unit = max(middle - best, smallest, TINY)
        return cls(middle, unit, (best - middle) / unit, least)

    def warp(self, values: Floats) -> Floats:
        """Scale values, compressing them above the median."""
        z: Floats = (values - self.median) / self.unit
        return np.where(z > 0, CLIP * np.log1p(np.maximum(z, 0) / CLIP), z)


class Surrogate:
    """Gaussian processes over the same points. Their weights depend only on the observations."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._weights: dict[str, tuple[tuple[bytes, float, bool], Weights]] = {}
        """process to its weights and the settings of their fit: points, noise prior, and whether jointly"""

    def values(
        self,
        points: Points,
        values: Floats,
        scale: Scale,
        pending: Points,
        *,
        log_noise: float = PRIOR_LOG_NOISE,
        joint: bool = False,
    ) -> Posterior:
        """Model the scaled values, assuming that pending points have the values that the model expects."""

        def scaled(first: Floats) -> Floats:  # a later scale would differ after a resume
            return Scale.of(first, scale.least).warp(first)

        weights = self._fitted("values", points, values, scaled, log_noise=log_noise, joint=joint)
        targets = scale.warp(values)
        kept = _kept(targets)
        conditioned = posterior(self._metric, points[kept], targets[kept], weights)
        if not len(pending):
            return conditioned
        believed, _ = conditioned.predict(pending)
        return posterior(
            self._metric, np.concatenate([points[kept], pending]), np.append(targets[kept], believed), weights
        )

    def limit(self, place: int, points: Points, amounts: Floats) -> Posterior:
        """Model the values of the constraint at position `place`, compressing them far from 0."""
        unit = max(float(median(np.abs(amounts))), TINY)
        targets: Floats = np.sign(amounts) * np.log1p(np.abs(amounts) / unit)
        return self._recent(f"limit {place}", points, targets, late=place % FIT_EVERY)

    def chances(self, points: Points, failed: Flags, asked: Points) -> Floats:
        """Predict the chances of success at some points, using a process over the failures so far."""
        mean, _ = self._recent("failures", points, failed.astype(np.float64)).predict(asked)
        return np.clip(1.0 - mean, LEAST_CHANCE, 1.0)

    def _recent(self, process: str, points: Points, targets: Floats, *, late: int = 0) -> Posterior:
        """Condition a process on the latest points."""
        recent = slice(max(0, len(points) - MODEL_ROWS), None)
        weights = self._fitted(process, points, targets, late=late)
        return posterior(self._metric, points[recent], targets[recent], weights)

    def _fitted(
        self,
        process: str,
        points: Points,
        targets: Floats,
        scaled: Callable[[Floats], Floats] = lambda first: first,
        *,
        late: int = 0,
        log_noise: float = PRIOR_LOG_NOISE,
        joint: bool = False,
    ) -> Weights:
        """Return a process's weights, fitted to its first points and their `scaled` targets.

        The fit is delayed by `late` observations. These delays differ between processes, so that no proposal has to
        wait for all fits.
        """
        fitted = fitted_at(len(points), late)
        observed = points[:fitted].tobytes(), log_noise, joint
        if process not in self._weights or self._weights[process][0] != observed:
            first = scaled(targets[:fitted])
            weights = fit(self._metric, points[:fitted], first, log_noise=log_noise, joint=joint)
            self._weights[process] = observed, weights
        return self._weights[process][1]


def weighed(gain: Floats, log_chances: Floats, tried: int, *, hopeless: Flags | None = None) -> Floats:
    """Return the logs of expected gain times chance of success. `tried` is the number of points tried so far.

    Hopeless points and points with a chance below LIKELY are left out, except in every DARE_EVERY-th proposal.
    """
    gain = gain + log_chances
    kept = log_chances >= np.log(LIKELY)
    if hopeless is not None:
        kept &= ~hopeless
    if (tried + 1) % DARE_EVERY and kept.any():
        gain = np.where(kept, gain, -np.inf)
    return gain


def fitted_at(observations: int, late: int = 0) -> int:
    """Return the number of first observations to which weights are fitted. It grows by FIT_EVERY and later by a tenth.

    This depends only on the number of observations, so it is the same in a resumed search.
    """
    at = MODELLED_FROM
    if observations < at + late:
        return at
    at += late
    while (following := at + max(FIT_EVERY, at // 10)) <= observations:
        at = following
    return at


def log_expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """Return the log of E[max(0, best - y)] for normal y (Jones et al. 1998, eq. 15)."""
    u = (best - mean) / deviation
    density = np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
    tail = density * _tail(1.0 / (1.0 + 0.2316419 * np.abs(u)))
    improvement = deviation * (u * np.where(u > 0, 1.0 - tail, tail) + density)
    return np.asarray(np.log(np.maximum(improvement, 1e-300)))


def log_chance_below(limit: float, mean: Floats, deviation: Floats) -> Floats:
    """Return the log of P[y < limit] for normal y."""
    u = np.abs(limit - mean) / deviation
    t = 1.0 / (1.0 + 0.2316419 * u)
    log_tail = np.log(_tail(t)) - 0.5 * u * u - 0.5 * np.log(2 * np.pi)
    return np.asarray(np.where(mean < limit, np.log1p(-np.exp(log_tail)), log_tail))


def _tail(t: Floats) -> Floats:
    """Return the normal distribution's upper tail divided by its density (Abramowitz & Stegun 26.2.17)."""
    tail: Floats = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    return tail


def _kept(targets: Floats) -> Ints:
    """Select the observations on which a model is conditioned: all of them or, if there are many, the best and the
    latest.
    """
    if len(targets) <= MODEL_ROWS:
        return np.arange(len(targets))
    best = np.argsort(targets, kind="stable")[: MODEL_ROWS * 3 // 4]
    latest = np.setdiff1d(np.arange(len(targets)), best)[-(MODEL_ROWS - len(best)) :]
    return np.sort(np.append(best, latest))
