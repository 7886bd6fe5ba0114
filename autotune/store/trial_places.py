"""Where another database's trials go: which of them are here already, and which numbers are free."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from autotune.store.column_types import SqlValue
from autotune.store.scopes import SCOPE
from autotune.store.sqlite.connections import connect_to_nothing
from autotune.store.statements import next_id
from autotune.store.trials import LARGEST_NUMBER, trials

Key = tuple[SqlValue, ...]
_SELECT = f"SELECT {', '.join(SCOPE)}, number, config, started_at, id FROM trials"  # noqa: S608


class TrialPlaces:
    """The trials of some scopes here, in a file of SQLite's that nobody sees: they may be more than memory holds.

    A scope is taken in when a trial of it needs a place; while only this process writes to it, none does.
    """

    def __init__(self) -> None:
        self._kept = connect_to_nothing()
        self._kept.execute(
            "CREATE TABLE placed (scope INTEGER, number INTEGER, config, started_at, id, UNIQUE (scope, number))"
        )
        self._kept.execute("CREATE INDEX placed_content ON placed (scope, config, started_at)")
        self._scopes: dict[Key, int] = {}
        self._met: set[Key] = set()
        self._own: set[Key] = set()
        self._next_id = 0

    def refresh(self, connection: Connection) -> int:
        """See what others have added since `wrote`, in the transaction that is to add more; the next free id."""
        found = next_id(connection, trials)
        if self._met and found > self._next_id:
            since = connection.exec_driver_sql(f"{_SELECT} WHERE id >= ?", (self._next_id,))
            for scope in {tuple(row[: len(SCOPE)]) for row in since}:
                self._own.discard(scope)
                if scope in self._scopes:
                    self._load(connection, scope, self._next_id)
        self._next_id = found
        return found

    def wrote(self, free_id: int) -> None:
        """Note the next free id as this process leaves it."""
        self._next_id = free_id

    def is_own(self, scope: Key, *, new: bool) -> bool:
        """Whether nobody else has written to a scope: all of its trials are new then, with their numbers.

        `new`: nobody had when it was first asked about.
        """
        if scope not in self._met:
            self._met.add(scope)
            if new:
                self._own.add(scope)
        return scope in self._own

    def place(
        self, connection: Connection, scope: Key, number: int, config: SqlValue, started_at: SqlValue
    ) -> tuple[int, int | None]:
        """A free number for a trial, its own where possible; and its id where it is here already."""
        if scope not in self._scopes:
            self._scopes[scope] = len(self._scopes)
            self._load(connection, scope, 0)
        which = self._scopes[scope]
        same = (
            "SELECT id FROM placed INDEXED BY placed_content "
            "WHERE scope = ? AND config = ? AND started_at = ? ORDER BY number = ? DESC, id"
        )
        found = self._kept.execute(same, (which, config, started_at, number)).fetchone()
        if found is not None:
            return number, int(found[0])
        taken = self._kept.execute("SELECT 1 FROM placed WHERE scope = ? AND number = ?", (which, number)).fetchone()
        if taken is not None:
            last = self._kept.execute("SELECT max(number) FROM placed WHERE scope = ?", (which,)).fetchone()
            number = last[0] + 1
        self._kept.execute("INSERT INTO placed (scope, number) VALUES (?, ?)", (which, number))
        return number, None

    def _load(self, connection: Connection, scope: Key, from_id: int) -> None:
        """Take in a scope's trials; numbers that are none are in nobody's way."""
        within = " AND ".join(f"{name} = ?" for name in SCOPE)
        rows = connection.exec_driver_sql(
            f"{_SELECT} WHERE {within} AND id >= ? AND number BETWEEN 0 AND {LARGEST_NUMBER}", (*scope, from_id)
        )
        which = self._scopes[scope]
        into = "INSERT OR IGNORE INTO placed (scope, number, config, started_at, id) VALUES (?, ?, ?, ?, ?)"
        self._kept.executemany(into, (self._row(which, row) for row in rows))

    def _row(self, which: int, row: Sequence[SqlValue]) -> Key:
        return (which, *row[len(SCOPE) :])

    def close(self) -> None:
        """Let the file go."""
        self._kept.close()
