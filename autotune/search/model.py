"""A Gaussian process over the rows of one family, in numpy.

The covariance is a product over parameters of (1 + INTERACTION * similarity) / (1 + INTERACTION): multiplied out, a sum
over all sets of parameters, so effects of single parameters, of pairs, of triples and so on are each a process of
their own, and what one parameter does is known also far from everything measured (the ANOVA kernel, Duvenaud et al.
2011 and the literature there). The similarity of two values is exp(-weight * distance), rough as kernel times are; the
distance is how far apart they stand in the declared order, mixed with whether they differ at all.
Weights and noise maximise the marginal likelihood times a log-normal prior (MAP), by resilient backpropagation.
(Rasmussen & Williams 2006, 5.4.1; the signal variance is profiled out.)

Rows are one-hot codes: the log of a covariance is then a product of matrices, of the code of one row, a table of the
logs for all pairs of values of each parameter, and the code of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.search.landscape import FeasibleSpace, Floats, Ints

Singles = npt.NDArray[np.float32]

ORDER = 0.8
"""Share of a parameter's distance that comes from the order of its values; the rest from their being different."""
INTERACTION = 0.4
"""Variance of the effect of n + 1 parameters together over that of n; infinite for the product of all similarities."""
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


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of all parameters side by side."""

    owner: Ints
    """the parameter that each is a value of"""
    distance: Floats
    """of any two of the same parameter [values, values]"""

    def some(self, which: Ints) -> _Values:
        """Only some of the values."""
        return _Values(self.owner[which], self.distance[np.ix_(which, which)])

    def similarity(self, weights: Floats) -> Floats:
        """INTERACTION * similarity of any two of the same parameter [values, values]."""
        similarity: Floats = INTERACTION * np.exp(-weights[self.owner][:, None] * self.distance)
        return similarity

    def table(self, weights: Floats) -> Floats:
        """What two values of a parameter add to the log of a covariance, 0 for two parameters [values, values]."""
        within = np.equal(self.owner[:, None], self.owner[None, :])
        return np.where(within, np.log1p(self.similarity(weights)) - np.log1p(INTERACTION), 0.0)

    def by_weight(self, by_log: Floats, weights: Floats) -> Floats:
        """Half a derivative by each log weight, given that by the log covariance of each two values."""
        similarity = self.similarity(weights)
        slope = -similarity / (1 + similarity) * weights[self.owner][:, None] * self.distance
        belongs = np.equal(self.owner[:, None], np.arange(len(weights))[None, :])
        summed: Floats = (by_log * slope).sum(axis=1) @ belongs
        return 0.5 * summed


class Features:
    """One-hot codes of a family's rows, and what the distances of values make of two codes."""

    def __init__(self, space: FeasibleSpace) -> None:
        self._rows = space.rows
        self._columns: list[int] = []
        self._places: list[Ints] = []
        """for each parameter that varies: the code's column of each of its values"""
        distances: list[Floats] = []
        length = 0
        for column, param in enumerate(space.params):
            used = np.unique(self._rows[:, column])
            if len(used) < 2:
                continue
            self._columns.append(column)
            self._places.append(length + np.searchsorted(used, np.arange(len(param.values))))
            distances.append(_distances(len(used)))
            length += len(used)
        self.width = len(self._columns)
        owner = np.repeat(np.arange(self.width), [len(block) for block in distances])
        distance = np.zeros((length, length))
        if distances:
            distance[np.equal(owner[:, None], owner[None, :])] = np.concatenate([block.ravel() for block in distances])
        self._values = _Values(owner, distance)

    def codes(self, rows: Ints) -> Singles:
        """One-hot codes of some rows, all parameters side by side [len(rows), values]."""
        codes = np.zeros((len(rows), len(self._values.owner)), dtype=np.float32)
        each = np.arange(len(rows))
        for column, places in zip(self._columns, self._places, strict=True):
            codes[each, places[self._rows[rows, column]]] = 1
        return codes

    def apart(self, left: Ints, right: Ints) -> Floats:
        """Sums of the parameters' unweighted distances of some rows from others [len(left), len(right)]."""
        apart: Floats = (self.codes(left) @ self._values.distance) @ self.codes(right).T
        return apart

    def failing(self, rows: Ints, failed: npt.NDArray[np.bool_], asked: Ints, *, below: float) -> npt.NDArray[np.bool_]:
        """Which of the rows asked about have a value that failed in every row so far that has it, where as many of the
        other rows would fail by chance with a probability below the one given."""
        codes = self.codes(rows)
        tried = codes.sum(axis=0)
        succeeded = codes[~failed].sum(axis=0)
        others = (np.count_nonzero(~failed) - succeeded) / (len(rows) - tried + 1)  # their rate of success, from below
        never = (succeeded == 0) & ((1 - others) ** tried < below)
        return np.asarray(self.codes(asked)[:, never].any(axis=1))

    def fit(self, rows: Ints, targets: Floats) -> Weights:
        """The weights and noise that explain the targets best; of many observations the best ones and every k-th."""
        if len(rows) > FIT_ROWS:
            by_target = np.argsort(targets, kind="stable")
            rest = by_target[FIT_ROWS // 2 :]
            spread = rest[np.linspace(0, len(rest) - 1, FIT_ROWS - FIT_ROWS // 2).astype(np.int64)]
            chosen = np.concatenate([by_target[: FIT_ROWS // 2], spread])
            rows, targets = rows[chosen], targets[chosen]
        prior = np.append(np.full(self.width, np.log(PRIOR_WEIGHT / np.sqrt(max(1, self.width)))), PRIOR_LOG_NOISE)
        best = prior
        if self.width:
            codes = self.codes(rows).astype(np.float64)
            seen = np.flatnonzero(codes.any(axis=0))
            best = _maximise(self._values.some(seen), codes[:, seen], targets - targets.mean(), prior)
        return Weights(np.exp(best[:-1]), float(np.exp(best[-1])))

    def posterior(self, rows: Ints, targets: Floats, weights: Weights) -> Posterior:
        """The process conditioned on observed rows."""
        codes = self.codes(rows)
        logs = codes @ self._values.table(weights.weights)
        covariance = np.exp(logs @ codes.T)
        covariance[np.diag_indices(len(rows))] += weights.noise + JITTER
        inverse_root = _invert(np.linalg.cholesky(covariance))
        mean = float(targets.mean())
        white = inverse_root @ (targets - mean)
        return Posterior(
            features=self,
            noise=weights.noise,
            logs=logs.astype(np.float32),
            inverse_root=inverse_root.astype(np.float32),
            white=white.astype(np.float32),
            mean=mean,
            signal=max(float(white @ white) / len(rows), 1e-12),
        )


@dataclass(frozen=True, slots=True)
class Posterior:
    """A conditioned process, ready to predict."""

    features: Features
    noise: float
    """noise variance, relative to the signal's"""
    logs: Singles
    """the observed rows' codes times the table of log covariances"""
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
        halves = self.inverse_root @ np.exp(self.logs @ self.features.codes(rows).T)
        mean = self.mean + (self.white @ halves).astype(np.float64)
        left = 1.0 - np.einsum("ij,ij->j", halves, halves).astype(np.float64)
        return mean, np.sqrt(self.signal * (np.maximum(left, 1e-6) + self.noise))


def _maximise(values: _Values, codes: Floats, targets: Floats, prior: Floats) -> Floats:
    """Log weights and log noise that maximise the profile likelihood times the prior."""
    n, width = len(targets), len(prior) - 1
    spread = np.append(np.full(width, PRIOR_SPREAD), PRIOR_NOISE_SPREAD)
    at, step, last = prior.copy(), np.full(width + 1, 0.4), np.zeros(width + 1)
    best, least = prior, np.inf
    for _ in range(FIT_STEPS):
        weights, noise = np.exp(at[:-1]), np.exp(at[-1])
        covariance = np.exp((codes @ values.table(weights)) @ codes.T)
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
        by_weight = values.by_weight(codes.T @ ((sensitivity * covariance) @ codes), weights)
        gradient = np.append(by_weight, 0.5 * noise * np.trace(sensitivity)) + away / spread
        turn = gradient * last
        step = np.where(turn > 0, np.minimum(step * 1.3, 1.0), np.where(turn < 0, step * 0.5, step))
        last = np.where(turn < 0, 0.0, gradient)
        at = np.clip(at - np.sign(last) * step, prior - 6, prior + 6)
    return best


def _distances(values: int) -> Floats:
    """Distances between a parameter's values, from their order and from their being different."""
    place = np.arange(values)
    steps: Floats = np.abs(place[:, None] - place[None, :]) / (values - 1)
    order = ORDER if values > 2 else 1.0
    return order * steps + (1 - order) * (steps > 0)


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
