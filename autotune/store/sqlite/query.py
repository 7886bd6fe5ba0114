"""Run the user's SQL on a separate, read-only connection, so that it can be stopped."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from autotune.errors import StoreError, shortened
from autotune.escape import one_line
from autotune.store.schema.migrations import NAMED_12
from autotune.store.sqlite.connections import connect_for_reading, translate_errors
from autotune.store.sqlite.database import Database

Cell = int | float | str | bytes | None
"""A single value in an SQL result."""

READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE},
)
"""The operations that a statement may use. Writes, ATTACH, PRAGMA and transactions are rejected."""
FILE_ERRORS = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    }
)
"""Errors that aren't the statement's fault."""
_STEPS = 10_000  # instructions of SQLite's virtual machine between two checks of the clock: about a millisecond
_SCHEMA_HINT = "`SELECT sql FROM sqlite_master` has all tables, views and their columns"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of the user's SQL."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def run_query(database: Database, sql: str, *, within_s: float | None = None) -> QueryResult:
    """Run one SELECT on a separate connection and return its result.

    Raises StoreError with SQLite's message for any other statement, and if the statement takes longer than `within_s`
    seconds.
    """
    guard = _Guard(within_s)
    with (
        database.read() as first,
        translate_errors(database.path, database.timeout_s),
        closing(connect_for_reading(database.file, database.timeout_s)) as raw,
    ):
        first.exec_driver_sql("SELECT 1 FROM sqlite_master").close()  # keeps the file open, and closes it last
        raw.execute(
            "SELECT 1 FROM json_each('[]'), json_tree('[]')"
        )  # creates both functions, which the guard wouldn't allow
        raw.set_authorizer(guard.allows)
        raw.set_progress_handler(guard.is_late, _STEPS)
        with _as_store_error(sql, guard, within_s):
            cursor = raw.execute(sql)
            rows = tuple(cursor)
        if cursor.description is None:
            raise StoreError("query: nothing to answer; give one SELECT statement")
        return QueryResult(tuple(str(column[0]) for column in cursor.description), rows)


class _Guard:
    """SQLite's authorizer and progress handler, which allows only reading and stops slow statements."""

    def __init__(self, within_s: float | None) -> None:
        self.refused = False
        self.late = False
        self._until = None if within_s is None else time.monotonic() + within_s

    def allows(
        self, action: int, _first: str | None, _second: str | None, _database: str | None, _inner: str | None
    ) -> int:
        if action in READING:
            return sqlite3.SQLITE_OK
        self.refused = True
        return sqlite3.SQLITE_DENY

    def is_late(self) -> bool:
        """Return whether to stop the statement. Ctrl-C raises KeyboardInterrupt here, between two steps."""
        self.late = self._until is not None and time.monotonic() > self._until
        return self.late


@contextmanager
def _as_store_error(sql: str, guard: _Guard, within_s: float | None) -> Iterator[None]:
    """Convert a statement's errors to a StoreError that quotes it."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if guard.late:
            raise StoreError(f"query: stopped after {within_s:g} s: {_shown(sql)}") from None
        if code in FILE_ERRORS:
            raise
        allowed = "only reading is allowed, one SELECT statement: " if guard.refused else ""
        words = one_line(str(error)).rstrip(".")
        if isinstance(
            error, sqlite3.ProgrammingError | sqlite3.Warning
        ):  # raised for several statements or a null character
            words += "; give one SELECT statement"
        if sql.lstrip().lower().startswith((".", "pragma")) or words.startswith(
            ("no such table", "no such column", "cannot join")
        ):
            old = next((word for word in re.findall(r"\w+", words) if word in NAMED_12), None)
            words += f"; {old} is {NAMED_12[old]} now" if old else f"; {_SCHEMA_HINT}"
        raise StoreError(f"query: {allowed}{words}: {_shown(sql)}") from error


def _shown(sql: str) -> str:
    return shortened(one_line(sql))
