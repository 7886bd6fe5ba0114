"""template -> space: find the rows of value indices that don't break any rule.

Parameters are nested in the header's order. Each rule is checked at the first depth where everything that it needs is
known, so subtrees without feasible configs are never entered. Many rows are processed together, as columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autotune.expressions.expression import Bound, Expression
from autotune.expressions.vectorized import Columns, column_of
from autotune.family.template import Param
from autotune.trial import Value

Rows = npt.NDArray[np.int16]
"""Value indices of configs, or of their first parameters [rows, parameters]."""

CHUNK = 1 << 15  # rows processed together, which bounds the memory
LEAST_CHUNK = 1 << 9  # rows processed together if only the first feasible row is wanted
PATHS = 1 << 12  # random paths followed together
_POSITION = ""  # key of the column with the rows' positions


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition with everything but the parameters folded in."""

    reason: str
    kind: str
    """the trial's reason: `constraint`, `pruned` (of the header), `resource_limit` (of the device), `accuracy_class`"""
    needs: frozenset[str]
    """parameters that the rule depends on, directly or through derived values"""
    holds: Bound
    limit: int | None = None
    """if set, the value of `holds` must be at most this number"""

    @property
    def expression(self) -> Expression:
        """The rule as a single expression, without folded values."""
        value = self.holds.expression
        return value if self.limit is None else Expression(f"({value.text}) <= {self.limit}", value.where)

    def violated(self, names: Mapping[str, Value]) -> str:
        """Return the error, or "" if the rule holds."""
        if self.limit is None:
            return "" if self.holds.integer(names) else self.reason
        value = self.holds.integer(names)
        return "" if value <= self.limit else f"{self.reason}: {value} exceeds {self.limit}"

    def kept(self, columns: Columns) -> Columns:
        """Select the rows where the rule holds."""
        value = self.holds.column(columns)
        holds = np.not_equal(value, 0) if self.limit is None else np.less_equal(value, self.limit)
        return columns.where(holds.astype(np.bool_))


@dataclass(frozen=True, slots=True)
class Level:
    """The derived values and rules that become known when one more parameter gets its value."""

    before: list[Rule] = field(default_factory=list)
    """rules that need no derived value of this level; they are checked first and guard the derived expressions"""
    derived: list[tuple[str, Bound]] = field(default_factory=list)
    after: list[Rule] = field(default_factory=list)

    def broken(self, names: dict[str, Value]) -> Rule | None:
        """Compute the derived values into `names`, and return the first rule that doesn't hold."""
        for rule in self.before:
            if rule.violated(names):
                return rule
        for name, bound in self.derived:
            names[name] = bound.value(names)
        for rule in self.after:
            if rule.violated(names):
                return rule
        return None

    def kept(self, columns: Columns) -> Columns:
        """Select the rows that don't break any rule, with the derived values in additional columns."""
        for rule in self.before:
            columns = rule.kept(columns)
        for name, bound in self.derived:
            columns[name] = bound.column(columns)
        for rule in self.after:
            columns = rule.kept(columns)
        return columns


class Tree:
    """A family's partial configs, with a level for each parameter."""

    def __init__(self, levels: Sequence[Level], params: Sequence[Param]) -> None:
        self._levels, self._params = levels, params
        self._tables = [column_of(param.values) for param in params]
        self._needed = [
            frozenset[str]().union(
                *(rule.holds.names for level in levels[depth:] for rule in (*level.before, *level.after)),
                *(bound.names for level in levels[depth:] for _, bound in level.derived),
            )
            for depth in range(1, len(levels) + 1)
        ]
        """the names that later levels use"""

    def feasible(self, *, most: int, visits: int) -> tuple[Rows, bool]:
        """Return feasible rows in lexicographic order, and whether these are all of them.

        The search stops once it has found more than `most` rows, or after about `visits` partial configs.
        """
        width, chunk = len(self._params), min(CHUNK, LEAST_CHUNK * (1 + most))
        parts, count, visited = [self._no_rows], 0, 1
        at, columns = self._kept(0, Columns({}, 1))
        waiting = [(np.zeros((len(at), 0), np.int16), columns)]
        while waiting and count <= most and visited < visits:
            rows, columns = waiting.pop()
            depth = rows.shape[1]
            if depth == width:
                parts.append(rows)
                count += len(rows)
                continue
            step = max(1, chunk // len(self._params[depth].values))
            if len(rows) > step:
                chunks = [np.arange(start, min(start + step, len(rows))) for start in range(0, len(rows), step)]
                waiting += [(rows[some], columns.take(some)) for some in reversed(chunks)]
                continue
            rows, columns = self._grown(rows, columns)
            visited += len(rows)
            at, columns = self._kept(depth + 1, columns)
            if len(at):
                waiting.append((rows[at], columns))
        return np.concatenate(parts), not waiting and count <= most

    def sampled(self, rng: np.random.Generator, *, most: int, visits: int) -> Rows:
        """Draw up to `most` distinct feasible rows at random, and return them in lexicographic order.

        A path draws each parameter's value with equal probability from the values that don't break any rule, and ends
        if there are none. The search stops after about `visits` partial configs.
        """
        parts, count = [self._no_rows], 0
        while count < most and visits > 0:
            paths = min(PATHS, most - count)
            visits -= paths
            at, columns = self._kept(0, Columns({}, paths))
            rows = np.zeros((len(at), 0), np.int16)
            for depth, param in enumerate(self._params):
                parent = np.repeat(np.arange(len(rows)), len(param.values))
                rows, columns = self._grown(rows, columns)
                visits -= len(rows)
                at, columns = self._kept(depth + 1, columns)
                order = np.lexsort((rng.random(len(at)), parent[at]))
                _, first = np.unique(parent[at][order], return_index=True)
                rows, columns = rows[at[order[first]]], columns.take(order[first])
            parts.append(rows)
            count += len(rows)
        return np.unique(np.concatenate(parts), axis=0)

    @property
    def _no_rows(self) -> Rows:
        return np.zeros((0, len(self._params)), np.int16)

    def _grown(self, rows: Rows, columns: Columns) -> tuple[Rows, Columns]:
        """Extend every row by each value of the next parameter."""
        param, table = self._params[rows.shape[1]], self._tables[rows.shape[1]]
        parent = np.repeat(np.arange(len(rows)), len(table))
        values = np.tile(np.arange(len(table), dtype=np.int16), len(rows))
        columns = columns.take(parent)
        columns[param.name] = table[values]
        return np.column_stack([rows[parent], values]), columns

    def _kept(self, depth: int, columns: Columns) -> tuple[npt.NDArray[np.intp], Columns]:
        """Return the positions of partial configs that don't break any of a level's rules, and the columns that later
        levels need.
        """
        columns[_POSITION] = np.arange(columns.size)
        kept = self._levels[depth].kept(columns)
        needed = {name: kept[name] for name in self._needed[depth] if name in kept}
        return kept[_POSITION].astype(np.intp), Columns(needed, kept.size)
