"""A Gaussian process over the rows of one family, in numpy.

The distance of two configs is a weighted sum over parameters of how far apart their values stand in the declared
order, mixed with whether they differ at all; the covariance is exp(-distance), which is rough, as kernel times are.
Weights and noise maximise the marginal likelihood times a log-normal prior (MAP), by resilient backpropagation.
(Rasmussen & Williams 2006, 5.4.1; the signal variance is profiled out.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.search.landscape import FeasibleSpace, Floats, Ints

Singles = npt.NDArray[np.float32]

ORDER = 0.8
"""Share of a parameter's distance that comes from the order of its values; the rest from their being different."""
PRIOR_WEIGHT = 2.0
"""Prior median of a parameter's weight, times the root of the number of parameters."""
PRIOR_SPREAD = 1.0
"""Prior standard deviation of a log weight."""
PRIOR_LOG_NOISE = -5.0
"""Prior median of the log noise variance, relative to the signal's."""
PRIOR_NOISE_SPREAD = 1.5
FIT_STEPS = 20
FIT_ROWS = 150
"""Observations used to fit the weights, at most."""
JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class Weights:
    """Fitted hyperparameters: a weight for each parameter, and the noise variance relative to the signal's."""

    weights: Floats
    noise: float


class Features:
    """Rows of a family as vectors whose squared Euclidean distance is the sum of the parameters' distances.

    A position in an ordered list becomes a thermometer code, a difference a one-hot code.
    """

    def __init__(self, space: FeasibleSpace) -> None:
        self._rows = space.rows
        self._tables: list[tuple[int, Floats]] = []
        for column, param in enumerate(space.params):
            used = np.unique(self._rows[:, column])
            if len(used) < 2:
                continue
            place = np.searchsorted(used, np.arange(len(param.values)))
            order = ORDER if len(used) > 2 else 1.0
            below = np.arange(len(used) - 1)[None, :] < place[:, None]
            thermometer = below * np.sqrt(order / (len(used) - 1))
            one_hot = np.equal(np.arange(len(used))[None, :], place[:, None]) * np.sqrt((1 - order) / 2)
            self._tables.append((column, np.hstack([thermometer, one_hot]) if order < 1 else thermometer))
        self.width = len(self._tables)
        self._owner = np.repeat(np.arange(self.width), [table.shape[1] for _, table in self._tables])

    def blocks(self, rows: Ints) -> list[Floats]:
        """The vectors of some rows, parameter by parameter."""
        return [table[self._rows[rows, column]] for column, table in self._tables]

    def vectors(self, rows: Ints, weights: Floats) -> Floats:
        """The vectors of some rows, scaled so that distances are weighted."""
        if not self.width:
            return np.zeros((len(rows), 1))
        scaled: Floats = np.hstack(self.blocks(rows)) * np.sqrt(weights)[self._owner]
        return scaled

    def distances(self, rows: Ints) -> Floats:
        """Unweighted distances of some rows from each other [width, n, n]."""
        return np.stack([_apart(block, block) for block in self.blocks(rows)])

    def fit(self, rows: Ints, targets: Floats) -> Weights:
        """The weights and noise that explain the targets best; of many observations the best ones and every k-th."""
        if len(rows) > FIT_ROWS:
            by_target = np.argsort(targets, kind="stable")
            rest = by_target[FIT_ROWS // 2 :]
            spread = rest[np.linspace(0, len(rest) - 1, FIT_ROWS - FIT_ROWS // 2).astype(np.int64)]
            chosen = np.concatenate([by_target[: FIT_ROWS // 2], spread])
            rows, targets = rows[chosen], targets[chosen]
        prior = np.append(np.full(self.width, np.log(PRIOR_WEIGHT / np.sqrt(max(1, self.width)))), PRIOR_LOG_NOISE)
        spread_of = np.append(np.full(self.width, PRIOR_SPREAD), PRIOR_NOISE_SPREAD)
        best = prior
        if self.width:
            best = _maximise(self.distances(rows), targets - targets.mean(), prior, spread_of)
        return Weights(np.exp(best[:-1]), float(np.exp(best[-1])))

    def posterior(self, rows: Ints, targets: Floats, weights: Weights) -> Posterior:
        """The process conditioned on observed rows."""
        vectors = self.vectors(rows, weights.weights)
        covariance = np.exp(-_apart(vectors, vectors))
        covariance[np.diag_indices(len(rows))] += weights.noise + JITTER
        inverse_root = _invert(np.linalg.cholesky(covariance))
        mean = float(targets.mean())
        white = inverse_root @ (targets - mean)
        return Posterior(
            features=self,
            weights=weights,
            vectors=vectors.astype(np.float32),
            inverse_root=inverse_root.astype(np.float32),
            white=white.astype(np.float32),
            mean=mean,
            signal=max(float(white @ white) / len(rows), 1e-12),
        )


@dataclass(frozen=True, slots=True)
class Posterior:
    """A conditioned process, ready to predict."""

    features: Features
    weights: Weights
    vectors: Singles
    inverse_root: Singles
    white: Singles
    mean: float
    signal: float
    """signal variance"""

    def predict(self, rows: Ints) -> tuple[Floats, Floats]:
        """Mean and standard deviation at some rows.

        The deviation includes the noise: what the model cannot explain is a config's own and stays when it is
        measured again, so a new config next to a known one may well be the better of the two.
        """
        vectors = self.features.vectors(rows, self.weights.weights).astype(np.float32)
        halves = self.inverse_root @ np.exp(-_apart(self.vectors, vectors))
        mean = self.mean + (self.white @ halves).astype(np.float64)
        left = 1.0 - np.einsum("ij,ij->j", halves, halves).astype(np.float64)
        return mean, np.sqrt(self.signal * (np.maximum(left, 1e-6) + self.weights.noise))


def _apart(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Squared Euclidean distances [len(left), len(right)]."""
    apart = left @ right.T
    apart *= -2
    apart += np.einsum("ij,ij->i", left, left)[:, None]
    apart += np.einsum("ij,ij->i", right, right)[None, :]
    return np.maximum(apart, 0, out=apart)


def _invert(lower: Floats) -> Floats:
    """Inverse of a lower triangular matrix by halves, a quarter of the work of a general inverse."""
    n = len(lower)
    if n <= 48:
        return np.asarray(np.linalg.inv(lower))
    half = n // 2
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = _invert(lower[:half, :half])
    inverse[half:, half:] = _invert(lower[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ (lower[half:, :half] @ inverse[:half, :half])
    return inverse


def _maximise(distances: Floats, targets: Floats, prior: Floats, spread: Floats) -> Floats:
    """Log weights and log noise that maximise the profile likelihood times the prior."""
    width, n = distances.shape[0], len(targets)
    flat = distances.reshape(width, n * n)
    at, step, last = prior.copy(), np.full(width + 1, 0.4), np.zeros(width + 1)
    best, least = prior, np.inf
    for _ in range(FIT_STEPS):
        weights, noise = np.exp(at[:-1]), np.exp(at[-1])
        covariance = np.exp(-(weights @ flat).reshape(n, n))
        try:
            root = np.linalg.cholesky(covariance + (noise + JITTER) * np.eye(n))
        except np.linalg.LinAlgError:
            at[-1] += 1.0
            continue
        inverse_root = _invert(root)
        inverse = inverse_root.T @ inverse_root
        alpha = inverse @ targets
        fit = max(float(targets @ alpha), 1e-12)
        away = (at - prior) / spread
        loss = 0.5 * n * np.log(fit / n) + float(np.log(np.diag(root)).sum()) + 0.5 * float(away @ away)
        if loss < least:
            best, least = at.copy(), loss
        sensitivity = inverse - n * np.outer(alpha, alpha) / fit
        by_weight = -0.5 * weights * (flat @ (sensitivity * covariance).ravel())
        gradient = np.append(by_weight, 0.5 * noise * np.trace(sensitivity)) + away / spread
        turn = gradient * last
        step = np.where(turn > 0, np.minimum(step * 1.3, 1.0), np.where(turn < 0, step * 0.5, step))
        last = np.where(turn < 0, 0.0, gradient)
        at = np.clip(at - np.sign(last) * step, prior - 6, prior + 6)
    return best
