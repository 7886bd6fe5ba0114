"""Feasible configs that differ from one in one or two parameters, found by hashing instead of comparing all rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotune.search.state import FeasibleSpace, Ints

Hashes = npt.NDArray[np.uint64]


class Neighbourhood:
    """Looks up the rows of one family by their value indices.

    A row's hash is linear in its value indices, modulo 2^64 with fixed random multipliers, so a neighbour's hash is
    the row's plus a difference. Two of 100,000 rows share a hash with a chance of 3e-10.
    """

    def __init__(self, space: FeasibleSpace) -> None:
        counts = [len(param.values) for param in space.params]
        multipliers = np.random.default_rng(0).integers(1, 2**63, size=len(counts), dtype=np.uint64)
        self._rows = np.asarray(space.rows, dtype=np.uint64)
        self._multipliers = multipliers
        hashes = self._hash(self._rows)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._parameter = np.repeat(np.arange(len(counts)), counts)
        self._value = np.concatenate(
            [np.arange(count, dtype=np.uint64) for count in counts] or [np.array([], np.uint64)]
        )

    def find(self, row: Ints) -> int | None:
        """The position of a row of value indices; None if it is infeasible."""
        found = self._lookup(self._hash(row[None, :].astype(np.uint64)))
        return int(found[0]) if len(found) else None

    def within_one(self, position: int) -> Ints:
        """Positions of the feasible rows that differ in exactly one parameter."""
        return self._lookup(self._hashes_of(position, self._steps(position)))

    def within_two(self, position: int) -> Ints:
        """Positions of the feasible rows that differ in exactly two parameters."""
        steps = self._steps(position)
        pairs = steps[:, None] + steps[None, :]
        changed = self._parameter[self._value != self._rows[position][self._parameter]]
        return self._lookup(self._hashes_of(position, pairs[changed[:, None] < changed[None, :]]))

    def _hash(self, rows: Hashes) -> Hashes:
        hashes: Hashes = (rows * self._multipliers).sum(axis=1, dtype=np.uint64)
        return hashes

    def _steps(self, position: int) -> Hashes:
        """The change of a row's hash, modulo 2^64, for changing one parameter."""
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
