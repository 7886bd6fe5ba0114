"""Draw points from a space that is known only through trials, either at random or near other points.

A point has a set of parameters that trials have suggested together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotune.search.coordinates import Axes, Axis
from autotune.search.state import Floats, Ints

Flags = npt.NDArray[np.bool_]

STEPS = (0.3, 0.1, 0.03, 0.01, 0.003)
"""Standard deviations for changing a coordinate. Each change draws one of them."""


class Branches:
    """The branches of a space, which are the sets of parameters that trials have suggested together, and points in
    them.

    A parameter decides the branch if each of its values occurred in one branch only, and if it had at most half as many
    values as there are trials. Values that only led to other branches aren't used for a branch's points.
    """

    def __init__(self, axes: Axes, values: Floats, failed: Flags, fixed: Floats) -> None:
        self._axes = axes
        self._fixed = fixed
        present = ~np.isnan(values)
        sets, which = np.unique(present, axis=0, return_inverse=True)
        which = which.reshape(-1)
        short = np.array([_cut_short(sets, which, failed, each) for each in range(len(sets))], dtype=np.bool_)
        kept = np.flatnonzero(~short)
        self._values, self._short = values, np.flatnonzero(short[which])
        self.sets: Flags = sets[kept] if len(kept) else np.ones((1, axes.width), dtype=np.bool_)
        """which parameters the points of each branch have [branches, parameters]"""
        self._trials = np.bincount(which, minlength=len(sets))[kept] if len(kept) else np.zeros(1, dtype=np.int64)
        self._allowed: list[dict[int, Floats]] = [{} for _ in self.sets]
        for column in range(axes.width) if len(kept) > 1 else ():
            seen = [np.unique(values[which == each, column]) for each in kept]
            everything = axes.axes[column].every
            if len(everything) and _decides(seen, int(self._trials.sum())):
                for branch, own in enumerate(seen):
                    elsewhere = np.setdiff1d(np.concatenate(seen), own)
                    self._allowed[branch][column] = np.setdiff1d(everything, elsewhere)

    @property
    def alternatives(self) -> int:
        """The number of branches, or 1 if each branch adds parameters to a smaller one and no common choice decides.

        In that case, a number determines how many parameters there are, and the model predicts one branch from the
        others.
        """
        order = self.sets[np.argsort(self.sets.sum(axis=1))]
        nested = bool((order[1:] >= order[:-1]).all())
        common = np.flatnonzero(order.all(axis=0))
        return 1 if nested and not any(self._axes.axes[column].choices for column in common) else len(order)

    @property
    def least_tried(self) -> int:
        """The number of trials of the branch with the fewest trials."""
        return int(self._trials.min())

    def completed(self) -> Floats:
        """Return the values of all trials, with random values for parameters that a failed trial hadn't suggested yet.

        These might have had any value. In all other trials, missing parameters stay missing.
        """
        found = self._values.copy()
        for trial in self._short:
            rng = np.random.default_rng(trial)
            own = ~np.isnan(found[trial])
            fitting = [branch for branch in range(len(self.sets)) if self._leads_to(found[trial], own, branch)]
            if fitting:
                filled = self._random(fitting[int(rng.integers(len(fitting)))], 1, rng)[0]
                found[trial] = np.where(own, found[trial], filled)
        return found

    def _leads_to(self, values: Floats, own: Flags, branch: int) -> bool:
        """Return whether a trial that suggested these parameters might have ended up in a branch."""
        allowed = self._allowed[branch].items()
        possible = all(values[column] in values_there for column, values_there in allowed if own[column])
        return possible and bool((self.sets[branch] >= own).all())

    def random(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw random points, equally many from each branch."""
        share = -(-count // len(self.sets))
        return self._with_fixed(np.concatenate([self._random(each, share, rng) for each in range(len(self.sets))]))

    def random_of_least_tried(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw random points from the branch with the fewest trials."""
        return self._with_fixed(self._random(int(np.argmin(self._trials)), count, rng))

    def near(self, points: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Draw `count` points near each given one, in the same branch, so deciding parameters keep their values."""
        found = np.repeat(points, count, axis=0)
        present = ~np.isnan(found)
        change = rng.random(found.shape) < np.maximum(0.2, 1.0 / np.maximum(1, present.sum(axis=1, keepdims=True)))
        change[np.arange(len(found)), rng.integers(found.shape[1], size=len(found))] = True
        deciding = {column for allowed in self._allowed for column in allowed}
        for column, axis in enumerate(self._axes.axes):
            if column not in deciding:
                rows = np.flatnonzero(change[:, column] & present[:, column])
                found[rows, column] = _moved(axis, found[rows, column], rng)
        return self._with_fixed(found)

    def _random(self, branch: int, count: int, rng: np.random.Generator) -> Floats:
        found = np.full((count, self._axes.width), np.nan)
        for column in np.flatnonzero(self.sets[branch]):
            allowed = self._allowed[branch].get(int(column))
            found[:, column] = (
                self._axes.axes[column].random(count, rng)
                if allowed is None or not len(allowed)
                else rng.choice(allowed, count)
            )
        return found

    def _with_fixed(self, points: Floats) -> Floats:
        """Replace the points' values with the fixed ones, where points have the parameter."""
        return np.where(np.isnan(self._fixed) | np.isnan(points), points, self._fixed)


def _cut_short(sets: Flags, which: Ints, failed: Flags, each: int) -> bool:
    """Return whether a set is a subset of another one and occurs only in failed trials, which may have ended early."""
    larger = (sets >= sets[each]).all(axis=1)
    return bool(failed[which == each].all()) and int(larger.sum()) > 1


def _decides(seen: list[Floats], trials: int) -> bool:
    """Return whether a parameter's values in several branches determine a trial's branch."""
    present = [values for values in seen if not np.isnan(values).any()]
    values = np.concatenate(present) if present else np.array([])
    return bool(len(present) > 1 and len(np.unique(values)) == len(values) <= trials // 2)


def _moved(axis: Axis, values: Floats, rng: np.random.Generator) -> Floats:
    """Change each value slightly, to another choice or by a random step."""
    if axis.choices:
        return (values + rng.integers(1, max(2, axis.choices), size=len(values))) % axis.choices
    steps = rng.choice(STEPS, size=len(values)) * rng.normal(size=len(values))
    return axis.values(axis.coordinates(values) + steps)
