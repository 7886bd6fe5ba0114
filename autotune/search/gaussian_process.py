"""Gaussian processes, in numpy, over points whose parameters have a similarity.

The covariance is a product over parameters of (1 + INTERACTION * similarity) / (1 + INTERACTION). Expanded, this is a
sum over all sets of parameters, so the effects of single parameters, pairs, triples and so on are separate processes,
and a parameter's effect is known even far from all measured points (the ANOVA kernel, Duvenaud et al. 2011 and the
literature there). A metric defines how similar two values are: `one_hot.py` for the rows of a given space,
`coordinates.py` for parameters of any kind. Weights and noise maximise the marginal likelihood times a log-normal prior
(MAP), by resilient backpropagation. (Rasmussen & Williams 2006, 5.4.1; the signal variance is profiled out.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from autotune.search.state import Floats

Singles = npt.NDArray[np.float32]
Points = npt.NDArray[np.float32] | npt.NDArray[np.float64]

INTERACTION = 0.4
"""Variance of the joint effect of n + 1 parameters divided by the variance for n, or infinite for the product of all
similarities. `coordinates.py` fits it as another weight, with this prior median.
"""
PRIOR_WEIGHT = 2.0
"""Prior median of a parameter's weight times the root of the number of parameters."""
PRIOR_SPREAD = 1.0
"""Prior standard deviation of a log weight."""
PRIOR_LOG_NOISE = -5.0
"""Prior median of the log noise variance, relative to the signal's."""
PRIOR_NOISE_SPREAD = 1.5
FIT_STEPS = 20
FIT_ROWS = 150
"""Maximum number of observations that weights are fitted to."""
JITTER = 1e-8


class Observed(Protocol):
    """Observed points, prepared for computing covariances with other points."""

    def covariance(self, points: Points, /) -> Points:
        """Return the covariances of the observed points with other points [observed, len(points)]."""
        ...


class Sample(Protocol):
    """The points that weights are fitted to."""

    def covariance(self, weights: Floats, /) -> Floats:
        """Return the covariances of all pairs of points [points, points]."""
        ...

    def by_weight(self, sensitivity: Floats, weights: Floats, /) -> Floats:
        """Return half the sum of sensitivities times derivatives of the log covariances, for each log weight."""
        ...


class Metric(Protocol):
    """Defines how similar two points are, given a weight for each parameter."""

    @property
    def width(self) -> int:
        """The number of parameters."""
        ...

    def prior(self) -> Floats:
        """Return the prior medians of the logs of all weights."""
        ...

    def sample(self, points: Points, /) -> Sample: ...

    def observed(self, points: Points, weights: Floats, /, *, single: bool = False) -> Observed:
        """Prepare observed points. With `single`, their covariances are computed in single precision."""
        ...


@dataclass(frozen=True, slots=True)
class Weights:
    """Fitted hyperparameters: a weight for each parameter, and the noise variance relative to the signal's."""

    weights: Floats
    noise: float


def weights_prior(width: int) -> Floats:
    """Return the prior medians of the log weights of `width` parameters."""
    return np.full(width, np.log(PRIOR_WEIGHT / np.sqrt(max(1, width))))


def fit(
    metric: Metric, points: Points, targets: Floats, *, log_noise: float = PRIOR_LOG_NOISE, joint: bool = False
) -> Weights:
    """Fit the weights and the noise to the targets.

    If there are more than FIT_ROWS observations, the fit uses the best ones and an even spread of the rest. Without
    `joint`, it fits the weights of single parameters but not the interaction's.
    """
    if len(points) > FIT_ROWS:
        by_target = np.argsort(targets, kind="stable")
        rest = by_target[FIT_ROWS // 2 :]
        spread = rest[np.linspace(0, len(rest) - 1, FIT_ROWS - FIT_ROWS // 2).astype(np.int64)]
        chosen = np.concatenate([by_target[: FIT_ROWS // 2], spread])
        points, targets = points[chosen], targets[chosen]
    prior = np.append(metric.prior(), log_noise)
    free = np.ones(len(prior))
    free[metric.width : -1] = joint
    best = _maximise(metric.sample(points), targets - targets.mean(), prior, free) if metric.width else prior
    return Weights(np.exp(best[:-1]), float(np.exp(best[-1])))


def posterior(metric: Metric, points: Points, targets: Floats, weights: Weights) -> Posterior:
    """Condition the process on observed points."""
    covariance = metric.observed(points, weights.weights).covariance(points)
    covariance[np.diag_indices(len(points))] += weights.noise + JITTER
    inverse_root = _invert(np.asarray(np.linalg.cholesky(covariance), dtype=np.float64))
    mean = float(targets.mean())
    white = inverse_root @ (targets - mean)
    return Posterior(
        noise=weights.noise,
        observed=metric.observed(points, weights.weights, single=True),
        inverse_root=inverse_root.astype(np.float32),
        white=white.astype(np.float32),
        mean=mean,
        signal=max(float(white @ white) / len(points), 1e-12),
    )


@dataclass(frozen=True, slots=True)
class Posterior:
    """A conditioned process, ready to predict."""

    noise: float
    """noise variance, relative to the signal's"""
    observed: Observed
    inverse_root: Singles
    white: Singles
    mean: float
    signal: float
    """signal variance"""

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """Predict the mean and the standard deviation at some points.

        The deviation includes the noise, because the part of a value that the model can't explain belongs to the config
        itself and doesn't change when it is measured again. An untried config may therefore be better than its
        neighbours.
        """
        halves = self.inverse_root @ self.observed.covariance(points)
        mean = self.mean + (self.white @ halves).astype(np.float64)
        left = 1.0 - np.einsum("ij,ij->j", halves, halves).astype(np.float64)
        return mean, np.sqrt(self.signal * (np.maximum(left, 1e-6) + self.noise))


def _maximise(sample: Sample, targets: Floats, prior: Floats, free: Floats) -> Floats:
    """Find the log weights and log noise that maximise the profile likelihood times the prior. A 0 in `free`
    fixes one.
    """
    n, width = len(targets), len(prior) - 1
    spread = np.append(np.full(width, PRIOR_SPREAD), PRIOR_NOISE_SPREAD)
    at, step, last = prior.copy(), np.full(width + 1, 0.4), np.zeros(width + 1)
    best, least = prior, np.inf
    for _ in range(FIT_STEPS):
        weights, noise = np.exp(at[:-1]), np.exp(at[-1])
        covariance = sample.covariance(weights)
        try:
            root = np.linalg.cholesky(covariance + (noise + JITTER) * np.eye(n))
        except np.linalg.LinAlgError:
            at[-1] += 1.0
            continue
        inverse_root = _invert(root)
        inverse = inverse_root.T @ inverse_root
        alpha = inverse @ targets
        explained = max(float(targets @ alpha), 1e-12)
        away = (at - prior) / spread
        loss = 0.5 * n * np.log(explained / n) + float(np.log(np.diag(root)).sum()) + 0.5 * float(away @ away)
        if loss < least:
            best, least = at.copy(), loss
        sensitivity = inverse - n * np.outer(alpha, alpha) / explained
        by_weight = sample.by_weight(sensitivity * covariance, weights)
        gradient = free * (np.append(by_weight, 0.5 * noise * np.trace(sensitivity)) + away / spread)
        turn = gradient * last
        step = np.where(turn > 0, np.minimum(step * 1.3, 1.0), np.where(turn < 0, step * 0.5, step))
        last = np.where(turn < 0, 0.0, gradient)
        at = np.clip(at - np.sign(last) * step, prior - 6, prior + 6)
    return best


def _invert(lower: Floats) -> Floats:
    """Invert a lower triangular matrix by halves, which takes a quarter of the work of a general inverse."""
    n = len(lower)
    if n <= 48:
        return np.asarray(np.linalg.inv(lower))
    half = n // 2
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = _invert(lower[:half, :half])
    inverse[half:, half:] = _invert(lower[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ (lower[half:, :half] @ inverse[:half, :half])
    return inverse
