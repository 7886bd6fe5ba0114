"""The state of the search: the feasible rows of all families in a single list, and how each one was evaluated."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from optuna.distributions import CategoricalChoiceType

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Family:
    """The feasible configs of a kernel family, or of any set of parameters that occur together."""

    name: str
    """name of the family; empty if families are distinguished by their parameters"""
    params: Mapping[str, tuple[CategoricalChoiceType, ...]]
    """parameter to its ordered values"""
    rows: npt.NDArray[np.int16]
    """value indices of the configs [m, len(params)]"""
    padded_work: Ints | None = None
    """number of outputs that the device could compute during each row's launch [m]; None: unknown"""


class Neighbourhood:
    """Looks up a family's rows by their value indices.

    A row's hash is linear in its value indices, modulo 2^64 with fixed random multipliers, so a neighbour's hash is the
    row's own plus a difference. The probability that any two of 100,000 rows have the same hash is 3e-10.
    """

    def __init__(self, family: Family) -> None:
        counts = [len(values) for values in family.params.values()]
        multipliers = np.random.default_rng(0).integers(1, 2**63, size=len(counts), dtype=np.uint64)
        self._rows = np.asarray(family.rows, dtype=np.uint64)
        self._multipliers = multipliers
        hashes = self._hash(self._rows)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._parameter = np.repeat(np.arange(len(counts)), counts)
        self._value = np.concatenate(
            [np.arange(count, dtype=np.uint64) for count in counts] or [np.array([], np.uint64)]
        )

    def find(self, row: Ints) -> int | None:
        """Return the position of a row given by its value indices, or None if it is infeasible."""
        found = self._lookup(self._hash(row[None, :].astype(np.uint64)))
        return int(found[0]) if len(found) else None

    def within_one(self, position: int) -> Ints:
        """Return the positions of the feasible rows that differ in exactly one parameter."""
        return self._lookup(self._hashes_of(position, self._steps(position)))

    def within_two(self, position: int) -> Ints:
        """Return the positions of the feasible rows that differ in exactly two parameters."""
        steps = self._steps(position)
        pairs = steps[:, None] + steps[None, :]
        changed = self._parameter[self._value != self._rows[position][self._parameter]]
        return self._lookup(self._hashes_of(position, pairs[changed[:, None] < changed[None, :]]))

    def _hash(self, rows: Hashes) -> Hashes:
        hashes: Hashes = (rows * self._multipliers).sum(axis=1, dtype=np.uint64)
        return hashes

    def _steps(self, position: int) -> Hashes:
        """Return how a row's hash changes, modulo 2^64, for each way to change one parameter."""
        now = self._rows[position][self._parameter]
        steps: Hashes = ((self._value - now) * self._multipliers[self._parameter])[self._value != now]
        return steps

    def _hashes_of(self, position: int, steps: Hashes) -> Hashes:
        hashes: Hashes = self._hash(self._rows[position : position + 1]) + steps
        return hashes

    def _lookup(self, hashes: Hashes) -> Ints:
        if not len(self._hashes):
            return np.array([], dtype=np.int64)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: Ints = self._order[places[self._hashes[places] == hashes]]
        return found


@dataclass(frozen=True, slots=True)
class Observation:
    """A told trial of a feasible config: the config's index and its value, which is infinite if it failed."""

    index: int
    value: float
    """the value to minimise; a log time when kernels are tuned"""


class SearchState:
    """The feasible configs of all families, numbered one family after another.

    The state depends only on the told trials and the pending asks, so a resumed search proposes the same configs again.
    """

    def __init__(self, families: Sequence[Family], *, least: float | None = None) -> None:
        self.least = least
        """the smallest significant difference of two values; None: derived from the values"""
        self.families = tuple(families)
        sizes = [len(family.rows) for family in families]
        self.offsets = tuple(int(offset) for offset in np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))
        self.observations: list[Observation] = []
        self.pending: list[int] = []
        self.free = np.ones(self.offsets[-1], dtype=np.bool_)
        """True where a config was neither asked for nor told"""
        self._neighbourhoods: dict[int, Neighbourhood] = {}

    def __len__(self) -> int:
        return self.offsets[-1]

    def neighbourhood(self, family: int) -> Neighbourhood:
        """Return the lookup for a family's rows."""
        if family not in self._neighbourhoods:
            self._neighbourhoods[family] = Neighbourhood(self.families[family])
        return self._neighbourhoods[family]

    def free_of(self, family: int) -> npt.NDArray[np.bool_]:
        """Return that part of `free` that belongs to one family."""
        return self.free[self.offsets[family] : self.offsets[family + 1]]

    def family_of(self, index: int) -> int:
        """Return the position of the family that a config index belongs to."""
        return bisect.bisect_right(self.offsets, index) - 1

    def row(self, index: int) -> npt.NDArray[np.int16]:
        """Return the value indices of the config at an index."""
        family = self.family_of(index)
        row: npt.NDArray[np.int16] = self.families[family].rows[index - self.offsets[family]]
        return row

    def ask(self, index: int) -> None:
        """Mark a config as asked for but not yet told."""
        self.free[index] = False
        self.pending.append(index)

    def release(self, index: int) -> None:
        """Undo an ask because a different config was evaluated."""
        if index in self.pending:
            self.pending.remove(index)
            self.free[index] = True

    def tell(self, index: int, value: float) -> None:
        """Record a config's result, unless there already is one."""
        if index in self.pending:
            self.pending.remove(index)
        elif not self.free[index]:
            return
        self.free[index] = False
        self.observations.append(Observation(index, value))

    def forget(self) -> None:
        """Go back to the state before the first ask."""
        self.observations.clear()
        self.pending.clear()
        self.free[:] = True
