"""Encode a family's rows as one-hot codes, and define how similar two codes are.

The similarity of two values of a parameter is exp(-weight * distance), which isn't smooth, because kernel times aren't
smooth either. The distance depends both on how far apart the values are in the declared order and on whether they
differ at all. The log of a covariance is a product of three matrices: the code of one row, a table of the logs for all
pairs of values of each parameter, and the code of the other row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.search.gaussian_process import INTERACTION, Points, Singles, weights_prior
from autotune.search.state import Family, Floats, Ints

IDLE_STEP = 0.05
"""Step for the log of padded outputs, relative to the family's smallest number. Each step is a value of an additional
parameter.
"""
IDLE_STEPS = 20
"""That parameter's largest value, which also stands for all larger numbers."""
ORDER = 0.8
"""Share of a parameter's distance that depends on the order of its values. The rest depends on whether they differ."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The product of codes and the table of log covariances between values."""

    logs: Points

    def covariance(self, points: Points) -> Points:
        """Return the covariances of the observed codes with other codes [observed, len(points)]."""
        return np.exp(self.logs @ points.T)


@dataclass(frozen=True, slots=True)
class Values:
    """The metric of one-hot codes, in which the values of all parameters are listed side by side."""

    width: int
    """number of parameters"""
    owner: Ints
    """the parameter of each value [values]"""
    distance: Floats
    """distances between values of the same parameter [values, values]"""

    def prior(self) -> Floats:
        """Return the prior medians of the parameters' log weights."""
        return weights_prior(self.width)

    def sample(self, points: Points) -> _Sample:
        """Prepare codes for fitting weights, leaving out values that don't occur in any of them."""
        which = np.flatnonzero(points.any(axis=0))
        some = Values(self.width, self.owner[which], self.distance[np.ix_(which, which)])
        return _Sample(some, points.astype(np.float64)[:, which])

    def observed(self, points: Points, weights: Floats, *, single: bool = False) -> _Table:
        """Prepare observed codes for computing covariances with other codes."""
        logs = points @ self._table(weights)
        return _Table(logs.astype(np.float32) if single else logs)

    def similarity(self, weights: Floats) -> Floats:
        """Return INTERACTION * similarity for all pairs of values of the same parameter [values, values]."""
        similarity: Floats = INTERACTION * np.exp(-weights[self.owner][:, None] * self.distance)
        return similarity

    def _table(self, weights: Floats) -> Floats:
        """Return the contribution of each pair of values to the log covariance [values, values].

        It is 0 for values of different parameters.
        """
        within = np.equal(self.owner[:, None], self.owner[None, :])
        return np.where(within, np.log1p(self.similarity(weights)) - np.log1p(INTERACTION), 0.0)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The codes that weights are fitted to, and the metric of their values."""

    values: Values
    points: Floats

    def covariance(self, weights: Floats) -> Floats:
        """Return the covariances of all pairs of codes [codes, codes]."""
        return np.asarray(self.values.observed(self.points, weights).covariance(self.points), dtype=np.float64)

    def by_weight(self, sensitivity: Floats, weights: Floats) -> Floats:
        """Return half the sum of sensitivities times derivatives of log covariances, for each log weight [width]."""
        values = self.values
        by_log = self.points.T @ (sensitivity @ self.points)
        similarity = values.similarity(weights)
        slope = -similarity / (1 + similarity) * weights[values.owner][:, None] * values.distance
        belongs = np.equal(values.owner[:, None], np.arange(values.width)[None, :])
        summed: Floats = (by_log * slope).sum(axis=1) @ belongs
        return 0.5 * summed


class Features:
    """The one-hot codes of a family's rows, and the distances between values.

    If the padded outputs are known, they are treated as another parameter, so that the effect of an idle device is
    learned across tile sizes.
    """

    def __init__(self, family: Family) -> None:
        self._rows = family.rows
        sizes = [len(values) for values in family.params.values()]
        if family.padded_work is not None:
            self._rows = np.column_stack([family.rows, _idle(family.padded_work)])
            sizes.append(IDLE_STEPS + 1)
        self._columns: list[int] = []
        self._places: list[Ints] = []
        """for each parameter that varies, the code's column for each of the parameter's values"""
        distances: list[Floats] = []
        length = 0
        for column, size in enumerate(sizes):
            used = np.unique(self._rows[:, column])
            if len(used) < 2:
                continue
            self._columns.append(column)
            self._places.append(length + np.searchsorted(used, np.arange(size)))
            distances.append(_distances(len(used)))
            length += len(used)
        self.width = len(self._columns)
        owner = np.repeat(np.arange(self.width), [len(block) for block in distances])
        distance = np.zeros((length, length))
        if distances:
            distance[np.equal(owner[:, None], owner[None, :])] = np.concatenate([block.ravel() for block in distances])
        self.metric = Values(self.width, owner, distance)
        """the metric of the codes"""

    def codes(self, rows: Ints) -> Singles:
        """Return the one-hot codes of some rows, all parameters side by side [len(rows), values]."""
        codes = np.zeros((len(rows), len(self.metric.owner)), dtype=np.float32)
        each = np.arange(len(rows))
        for column, places in zip(self._columns, self._places, strict=True):
            codes[each, places[self._rows[rows, column]]] = 1
        return codes

    def apart(self, left: Ints, right: Ints) -> Floats:
        """Return the sum of the distances in all parameters for each pair of rows [len(left), len(right)]."""
        apart: Floats = (self.codes(left) @ self.metric.distance) @ self.codes(right).T
        return apart

    def failing(self, rows: Ints, failed: npt.NDArray[np.bool_], asked: Ints, *, below: float) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that contain a value for which every tried row has failed.

        A value counts only if the probability that so many rows all fail by chance is below `below`.
        """
        codes = self.codes(rows)
        tried = codes.sum(axis=0)
        succeeded = codes[~failed].sum(axis=0)
        others = (np.count_nonzero(~failed) - succeeded) / (len(rows) - tried + 1)  # lower bound of their success rate
        never = (succeeded == 0) & ((1 - others) ** tried < below)
        return np.asarray(self.codes(asked)[:, never].any(axis=1))


def _idle(padded_work: Ints) -> npt.NDArray[np.int16]:
    """Convert padded outputs to values of a parameter, where the smallest number becomes 0."""
    logs = np.log(np.maximum(1, padded_work))
    steps: Floats = np.minimum(np.round((logs - logs.min()) / IDLE_STEP), IDLE_STEPS)
    return steps.astype(np.int16)


def _distances(values: int) -> Floats:
    """Return the distances between a parameter's values, based on their order and on whether they differ."""
    place = np.arange(values)
    steps: Floats = np.abs(place[:, None] - place[None, :]) / (values - 1)
    order = ORDER if values > 2 else 1.0
    return order * steps + (1 - order) * (steps > 0)
