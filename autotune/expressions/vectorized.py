"""Evaluate expressions for many configs at once, in columns with one value per config.

A space has up to millions of partial configs. Evaluating them one at a time takes seconds, and evaluating columns a
tenth of that. This module's functions raise if a column can't hold the values exactly, or if a row has an error; the
caller then evaluates row by row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotune.autotune_runtime.planned_launches import ceil_div, round_up
from autotune.trial import Value

Column = npt.NDArray[np.generic]
"""Bools, 64-bit integers or words; objects if an integer is too large or the kinds are mixed."""
Operand = Column | Value | tuple["Operand", ...]
"""A column, or a single value for all rows."""
Mask = npt.NDArray[np.bool_]

LARGEST = 2**53
"""The largest product, chosen so that a sum of a thousand products fits into 64 bits."""


class Columns:
    """Columns of equal length, by name."""

    __slots__ = ("_own", "_parent", "_rows", "size")

    def __init__(
        self,
        own: dict[str, Column],
        size: int,
        parent: Columns | None = None,
        rows: npt.NDArray[np.intp] | None = None,
    ) -> None:
        self._own, self._parent, self._rows, self.size = own, parent, rows, size

    def __getitem__(self, name: str) -> Column:
        column = self._own.get(name)
        if column is None:
            if self._parent is None:
                raise KeyError(name)
            column = self._own[name] = self._parent[name][self._rows]
        return column

    def __setitem__(self, name: str, column: Column) -> None:
        self._own[name] = column

    def __contains__(self, name: str) -> bool:
        return name in self._own or (self._parent is not None and name in self._parent)

    def take(self, rows: npt.NDArray[np.intp]) -> Columns:
        """Select some rows of all columns. Each column is gathered when it is first read."""
        return Columns({}, len(rows), self, rows)

    def where(self, mask: Mask) -> Columns:
        """Select the rows where a mask is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def row(self, number: int, names: frozenset[str]) -> dict[str, Value]:
        """Return the values of one row by name, for those `names` that are columns."""
        return {name: self[name][number : number + 1].tolist()[0] for name in names if name in self}


def column_of(values: Sequence[Value]) -> Column:
    """Make a column of values. If no other type holds them exactly, its elements are objects."""
    kinds = {type(value) for value in values}
    exact = len(kinds) == 1 and not (kinds == {int} and max(map(abs, map(int, values))) > LARGEST)
    return np.array(values, dtype=None if exact else object)


def filled(value: Operand, size: int) -> Column:
    """Return an operand as a column of this size, repeating a single value for all rows."""
    if isinstance(value, tuple):
        raise TypeError("a list is no value")
    return np.broadcast_to(np.asarray(value), (size,))


def truth(value: Operand) -> Mask | bool:
    """Return a mask of the rows that count as true, or one bool for all rows."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return bool(value)
    if value.dtype.kind not in "biU":
        raise TypeError("objects go row by row")
    return np.asarray(value != ("" if value.dtype.kind == "U" else 0))


def of_rows(value: Operand, mask: Mask | bool) -> Operand:  # noqa: FBT001 - a mask of all rows
    """Return the part of an operand for the rows where a mask is true."""
    return value[mask] if isinstance(value, np.ndarray) and isinstance(mask, np.ndarray) else value


def chosen(
    mask: Mask | bool,  # noqa: FBT001 - a mask of all rows
    columns: Columns,
    yes: Callable[[Columns], Operand],
    no: Callable[[Columns], Operand],
) -> Operand:
    """Return the results of `yes` for the rows where a mask is true, and the results of `no` for the others."""
    if not isinstance(mask, np.ndarray):
        return yes(columns) if mask else no(columns)
    if mask.all():
        return yes(columns)
    if not mask.any():
        return no(columns)
    return _merged(mask, yes(columns.where(mask)), no(columns.where(~mask)))


def _merged(mask: Mask, yes: Operand, no: Operand) -> Column:
    """Merge two operands into a column: `yes` fills, in order, the rows where a mask is true, and `no` the others."""
    parts = filled(yes, int(mask.sum())), filled(no, int((~mask).sum()))
    if (parts[0].dtype.kind == "U") != (parts[1].dtype.kind == "U"):
        raise TypeError("words and numbers in one column")
    column: Column = np.empty(len(mask), np.result_type(*parts))
    column[mask], column[~mask] = parts
    return column


def _whole(value: Operand) -> npt.NDArray[np.int64] | int:
    """Convert an operand of arithmetic to integers; true becomes 1."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "bi":
            raise TypeError("arithmetic on words or objects")
        return value.astype(np.int64, copy=False)
    if not isinstance(value, int) or abs(value) > LARGEST:
        raise TypeError("arithmetic on a word, or on a number that is too large")
    return int(value)


def _most(value: npt.NDArray[np.int64] | int) -> int:
    return abs(value) if isinstance(value, int) else int(np.abs(value).max())


def _times(left: Operand, right: Operand) -> Operand:
    one, other = _whole(left), _whole(right)
    if _most(one) * _most(other) > LARGEST:
        raise OverflowError("a product that is too large")
    return one * other


def _max_registers(warps: Operand) -> Column:
    return _least(255, 65536 // (128 * -(-_whole(warps) // 4)) // 8 * 8)


def _on_numbers(function: Callable[..., Operand]) -> Callable[..., Operand]:
    """Extend a function of integers to columns of integers."""
    return lambda *operands: function(*map(_whole, operands))


def _least(*values: Operand) -> Column:
    return np.asarray(np.minimum.reduce(np.broadcast_arrays(*map(_whole, values))))


def _greatest(*values: Operand) -> Column:
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*map(_whole, values))))


def _plain(value: Operand) -> Column:
    """Convert an operand to words or numbers. Raises TypeError for others, which are evaluated row by row."""
    column = np.asarray(None if isinstance(value, tuple) else value)
    if column.dtype.kind not in "biU":
        raise TypeError("lists and objects go row by row")
    return column


def _equal(left: Operand, right: Operand) -> Column:
    one, other = _plain(left), _plain(right)
    if (one.dtype.kind == "U") != (other.dtype.kind == "U"):
        return np.zeros(np.broadcast_shapes(one.shape, other.shape), np.bool_)
    return np.asarray(one == other)


def _ordered(compare: np.ufunc) -> Callable[[Operand, Operand], Column]:
    def ordered(left: Operand, right: Operand) -> Column:
        one, other = _plain(left), _plain(right)
        if (one.dtype.kind == "U") != (other.dtype.kind == "U"):
            raise TypeError("words have no order among numbers")
        return np.asarray(compare(one, other))

    return ordered


def _within(value: Operand, container: Operand) -> Column:
    if not isinstance(container, tuple):
        raise TypeError("membership in a word")
    return np.asarray(np.logical_or.reduce(np.broadcast_arrays(*(_equal(value, item) for item in container))))


def _not(value: Operand) -> Column:
    return np.asarray(np.logical_not(truth(value)))


OPERATIONS: Mapping[str, Callable[..., Operand]] = {
    "+": _on_numbers(operator.add),
    "-": _on_numbers(operator.sub),
    "*": _times,
    "//": _on_numbers(operator.floordiv),
    "%": _on_numbers(operator.mod),
    "neg": _on_numbers(operator.neg),
    "not": _not,
    "eq": _equal,
    "ne": lambda left, right: _not(_equal(left, right)),
    "lt": _ordered(np.less),
    "lteq": _ordered(np.less_equal),
    "gt": _ordered(np.greater),
    "gteq": _ordered(np.greater_equal),
    "in": _within,
    "notin": lambda value, container: _not(_within(value, container)),
    "ceil_div": _on_numbers(ceil_div),
    "round_up": _on_numbers(round_up),
    "max_registers": _max_registers,
    "min": _least,
    "max": _greatest,
}
"""The operations of expressions on columns, by the names that `expression` gives them; all other operations are
evaluated row by row. Division by zero raises within `np.errstate(divide="raise")`.
"""
