"""The ids that rows of another database have here."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache

from sqlalchemy import Table

from autotune.store.column_types import SqlValue


class RowIds:
    """Id there to id here, of one table's rows, and which of them are new here.

    Rows come in the order of their ids there. Those whose ids follow each other on both sides, as most do, take no
    memory each: what is kept is where such a run begins, and how long it is.
    """

    __slots__ = ("_asked", "_here", "_length", "_new", "_there", "new_count", "size")

    def __init__(self) -> None:
        self._there, self._here, self._length, self._new = array("q"), array("q"), array("q"), array("b")
        self._asked = 0
        """the run that was asked for last, and will be again"""
        self.size = 0
        self.new_count = 0

    def add(self, there: int, here: int, *, new: bool) -> None:
        """Note a row."""
        self.size += 1
        self.new_count += new
        if self._there and self._new[-1] == new:
            length = self._length[-1]
            if there - self._there[-1] == length == here - self._here[-1]:
                self._length[-1] = length + 1
                return
        self._there.append(there)
        self._here.append(here)
        self._length.append(1)
        self._new.append(new)

    def rows(self) -> Iterator[tuple[int, int, bool]]:
        """Each row's id there, its id here and whether it is new."""
        for there, here, length, new in zip(self._there, self._here, self._length, self._new, strict=True):
            for place in range(length):
                yield there + place, here + place, bool(new)

    def __contains__(self, there: object) -> bool:
        return isinstance(there, int) and self._run(there) is not None

    def __getitem__(self, there: int) -> int:
        """The id here. Raises KeyError for a row that was not noted."""
        here = self.get(there)
        if here is None:
            raise KeyError(there)
        return here

    def get(self, there: int) -> int | None:
        """The id here, None for a row that was not noted."""
        run = self._run(there)
        return None if run is None else self._here[run] + there - self._there[run]

    def is_new(self, there: int) -> bool:
        """Whether the row was noted as new."""
        run = self._run(there)
        return run is not None and bool(self._new[run])

    def _run(self, there: int) -> int | None:
        asked = self._asked
        if self._there and 0 <= there - self._there[asked] < self._length[asked]:
            return asked
        run = self._asked = max(0, bisect_right(self._there, there) - 1)
        return run if self._there and 0 <= there - self._there[run] < self._length[run] else None


@cache
def parents_of(table: Table) -> tuple[tuple[str, Table], ...]:
    """The columns of a table that refer to another table's rows."""
    return tuple((key.parent.name, key.column.table) for key in table.foreign_keys)


def id_of(value: SqlValue) -> int:
    """A whole number, as the row checks have made sure of."""
    assert isinstance(value, int)  # noqa: S101 - checked
    return value
