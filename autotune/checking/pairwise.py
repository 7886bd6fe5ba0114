"""Covering arrays: choose a few of many rows so that every pair of values that occurs in any row is covered.

Generators of covering arrays (allpairspy, PICT) take constraints as a filter while they build rows, and give up on
pairs that they don't reach. Here all rows are feasible and known, so a greedy choice reaches every pair. The row that
adds the most pairs comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int16]
"""Value indices [rows, factors], with -1 if a factor has no value in a row."""

SINGLE = 100
"""The weight of a new value relative to a new pair, so that each value is tried before all pairs that contain it."""
_FRESH = 256  # number of gains that are recomputed together
_CHUNK = 4096  # number of rows whose gains are computed together, which limits the memory


@dataclass(frozen=True, slots=True)
class Share:
    """The numbers of covered and of feasible pairs."""

    covered: int
    feasible: int

    def __str__(self) -> str:
        return f"{self.covered} of {self.feasible}"


class Covering:
    """The feasible pairs of some factors' values, and which of them are covered."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
        self._none = int(self._first[-1])
        count = self._none + 1
        self._left, self._right = np.triu_indices(len(sizes))  # a factor paired with itself stands for a single value
        self._feasible = np.zeros((count, count), np.bool_)
        self._covered = np.zeros((count, count), np.bool_)
        self._weight = np.where(np.eye(count, dtype=np.bool_), SINGLE, 1).astype(np.int32)
        self._weight[self._none, :] = self._weight[:, self._none] = 0

    def _values(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Return the values' numbers, counted across all factors [rows, factors]."""
        return np.where(rows < 0, self._none, rows + self._first[:-1])

    def witnesses(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Record the pairs in these rows as feasible, and return positions of rows that together contain all the new
        ones.
        """
        columns = [np.ascontiguousarray(column) for column in rows.T.astype(np.int32)]
        constant = [bool((column == column[:1]).all()) for column in columns]
        whole = [bool((column >= 0).all()) for column in columns]
        found: set[int] = set()
        for left, right in zip(self._left.tolist(), self._right.tolist(), strict=True):
            one, other = columns[left], columns[right]
            if constant[left] and constant[right]:
                one, other = one[:1], other[:1]
            if whole[left] and whole[right]:
                found.update(self._new(left, right, one, other).tolist())
            else:
                both = np.flatnonzero((one >= 0) & (other >= 0))
                found.update(both[self._new(left, right, one[both], other[both])].tolist())
        return np.array(sorted(found), np.intp)

    def _new(
        self, left: int, right: int, one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.intp]:
        """Record the pairs of two columns as feasible, and return the first position of each new pair."""
        first = self._first
        feasible = self._feasible[first[left] : first[left + 1], first[right] : first[right + 1]]
        if feasible.all():
            return np.zeros(0, np.intp)
        keys = one * np.int32(feasible.shape[1]) + other
        found = np.zeros(feasible.size, np.bool_)
        found[keys] = True
        if not (found & ~feasible.ravel()).any():  # the usual case, because most pools have the same pairs
            return np.zeros(0, np.intp)
        at = np.full(feasible.size, len(keys), np.intp)
        at[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)  # backwards, so that the first of equal keys remains
        has = at < len(keys)
        new = at[has & ~feasible.ravel()]
        feasible |= has.reshape(feasible.shape)
        return new

    def take(self, row: npt.NDArray[np.int16]) -> None:
        """Set the weights of a row's pairs to 0, so that the greedy choice doesn't look for them."""
        one, other = self._pairs(row)
        self._weight[one, other] = 0

    def cover(self, row: npt.NDArray[np.int16]) -> None:
        """Mark the pairs of a row as covered."""
        one, other = self._pairs(row)
        self._covered[one, other] = True

    def _pairs(self, row: npt.NDArray[np.int16]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        values = self._values(row[None, :])[0]
        return values[self._left], values[self._right]

    def greedy(self, rows: Rows) -> Iterator[int]:
        """Repeatedly yield the position of the row with the most new pairs, until no row has any.

        No row is proposed twice, even if the caller rejects it. Gains never grow, so only the largest known ones are
        recomputed.
        """
        gains = np.concatenate(
            [np.zeros(0, np.int32), *(self._gains(rows[at : at + _CHUNK]) for at in range(0, len(rows), _CHUNK))]
        )
        proposed = np.zeros(len(rows), np.bool_)
        while len(gains) and gains.max() > 0:
            largest = np.argsort(-gains, kind="stable")[:_FRESH]
            gains[largest] = np.where(proposed[largest], 0, self._gains(rows[largest]))
            best = int(largest[np.argmax(gains[largest])])
            if gains[best] > 0 and gains[best] >= gains.max():
                gains[best], proposed[best] = 0, True
                yield best

    def _gains(self, rows: Rows) -> npt.NDArray[np.int32]:
        values = self._values(rows)
        gains: npt.NDArray[np.int32] = self._weight[values[:, self._left], values[:, self._right]].sum(1, np.int32)
        return gains

    def share(self, left: range, right: range) -> Share:
        """Return the share of covered pairs between factors of one range and different factors of the other range."""
        one, other = self._blocks(left, right)
        return Share(int(self._covered[one, other].sum()), int(self._feasible[one, other].sum()))

    def _blocks(self, left: range, right: range) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the two value numbers of every pair between different factors, the earlier factor first."""
        pairs = {(min(a, b), max(a, b)) for a in left for b in right if a != b}
        own = [
            np.stack(
                np.meshgrid(*(np.arange(self._first[at], self._first[at + 1]) for at in pair), indexing="ij")
            ).reshape(2, -1)
            for pair in sorted(pairs)
        ]
        one, other = np.concatenate([np.zeros((2, 0), np.intp), *own], axis=1)
        return one, other

    def values(self, factor: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return whether each value of a factor is feasible, and whether each value is covered."""
        own = np.arange(self._first[factor], self._first[factor + 1])
        return self._feasible[own, own], self._covered[own, own]

    def open_pairs(self, left: range, right: range, *, feasible: bool) -> list[tuple[int, int, int, int]]:
        """Return pairs that aren't covered, as (factor, value, factor, value).

        With `feasible`, these are the feasible ones; otherwise, the infeasible pairs of two feasible values.
        """
        one, other = self._blocks(left, right)
        if feasible:
            kept = self._feasible[one, other] & ~self._covered[one, other]
        else:
            kept = ~self._feasible[one, other] & self._feasible[one, one] & self._feasible[other, other]
        return [(*self._place(a), *self._place(b)) for a, b in zip(one[kept], other[kept], strict=True)]

    def _place(self, value: np.intp) -> tuple[int, int]:
        factor = int(np.searchsorted(self._first, value, side="right")) - 1
        return factor, int(value - self._first[factor])
