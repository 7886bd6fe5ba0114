"""A user's SQL on a connection beside the store's own: it may read and nothing else, and it can be stopped."""

from __future__ import annotations

import math
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from autotune.errors import StoreError, shortened
from autotune.printable import one_line
from autotune.store.packed import unpacked
from autotune.store.sqlite.connections import connect_beside
from autotune.store.sqlite.database import Database
from autotune.store.sqlite.error_words import in_words

Cell = int | float | str | bytes | None
"""One value of an SQL result."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a user's SQL yielded."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class QueryStream:
    """What a user's SQL yields, row after row."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Cell, ...]]


READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE},
)
"""What a statement may do; everything else is refused: writes, ATTACH, PRAGMA, transactions."""
THE_FILES_FAULT = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    }
)
"""Errors that are none of the statement's."""
FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})
MOST_VALUE_BYTES = 1 << 26
"""of one text or blob"""
MOST_HEAP_BYTES = 1 << 29
"""that SQLite may hold in this process once a statement of a user's ran; what it sorts, too: a disk would be filled"""
MOST_PATTERN_BYTES = 1000
"""of LIKE and GLOB, whose time is the pattern's length times the text's, and which nothing interrupts"""
_WHAT_THERE_IS = "`SELECT sql FROM sqlite_master` has all tables, views and their columns"
_BATCH_ROWS, _BATCH_BYTES = 1000, 1 << 20  # that are fetched together; the first of either ends a batch
_INTERRUPT_EVERY_S = 0.01
_INTERRUPT_FOR_S = 1.0  # SQLite heeds it between two calls of functions, of which instr of two long texts takes hours


def run_query(database: Database, sql: str) -> QueryResult:
    """Run one SELECT and keep what it yields. Raises StoreError with SQLite's words for anything else."""
    with stream_query(database, sql) as found:
        return QueryResult(found.columns, tuple(found.rows))


@contextmanager
def stream_query(database: Database, sql: str, *, within_s: float | None = None) -> Iterator[QueryStream]:
    """Run one SELECT on a connection of its own, in little memory, until the block ends.

    Raises StoreError with SQLite's words for anything else, and where it takes longer than `within_s`.
    """
    guard = _Guard()
    timeout_s = database.timeout_s
    with (
        database.read() as first,
        in_words(database.path, timeout_s),
        _Stoppable(_connection(database.file, timeout_s, guard), within_s) as statement,
    ):
        first.exec_driver_sql("SELECT 1 FROM sqlite_master").close()  # has the file open, and closes it last

        def ask(step: Callable[[], T]) -> T:
            with _in_words(sql, guard, within_s):
                return statement.run(step)

        cursor = ask(lambda: statement.raw.execute(sql))
        if cursor.description is None:
            raise StoreError("query: nothing to answer; give one SELECT statement")
        columns = tuple(str(column[0]) for column in cursor.description)
        yield QueryStream(columns, _rows(cursor, ask))


def _rows(
    cursor: sqlite3.Cursor, ask: Callable[[Callable[[], list[tuple[Cell, ...]]]], list[tuple[Cell, ...]]]
) -> Iterator[tuple[Cell, ...]]:
    while batch := ask(lambda: _batch(cursor)):
        yield from batch


def _batch(cursor: sqlite3.Cursor) -> list[tuple[Cell, ...]]:
    """The next rows; none when there are no more."""
    rows: list[tuple[Cell, ...]] = []
    size_bytes = 0
    for row in cursor:
        rows.append(row)
        size_bytes += sum(map(sys.getsizeof, row))
        if len(rows) == _BATCH_ROWS or size_bytes >= _BATCH_BYTES:
            break
    return rows


class _Stoppable:
    """Runs a statement's steps in a thread beside, so that signals and a deadline end the wait for one at once.

    SQLite calls no Python while it steps, and an exception in a callback of its own would be lost. At the end the
    connection is closed; a step that no interrupt ends is left alone with it, and ends with the process.
    """

    def __init__(self, raw: sqlite3.Connection, within_s: float | None) -> None:
        self.raw = raw
        self._until = None if within_s is None else time.monotonic() + within_s
        self._stepping = False
        self._leaving = False

    def run(self, step: Callable[[], T]) -> T:
        """What a step returns or raises. Raises TimeoutError at the deadline."""
        future: Future[T] = Future()
        threading.Thread(target=self._step, args=(step, future), name="query", daemon=True).start()
        left_s = math.inf if self._until is None else max(0.0, self._until - time.monotonic())
        return future.result(min(left_s, threading.TIMEOUT_MAX))

    def _step(self, step: Callable[[], T], future: Future[T]) -> None:
        self._stepping = True  # before it asks whether to begin: the one who leaves sees this, or this sees that
        try:
            if self._leaving:
                raise InterruptedError
            found = step()
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            self._stepping = False
            future.set_exception(error)
        else:
            self._stepping = False
            future.set_result(found)

    def __enter__(self) -> _Stoppable:
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        until = time.monotonic() + _INTERRUPT_FOR_S
        while self._stepping and time.monotonic() < until:  # one that is just about to begin is not interrupted yet
            self.raw.interrupt()
            time.sleep(_INTERRUPT_EVERY_S)
        if not self._stepping:
            self.raw.close()


@contextmanager
def _in_words(sql: str, guard: _Guard, within_s: float | None) -> Iterator[None]:
    """Turn what a statement is to blame for into a StoreError that quotes it."""
    try:
        yield
    except TimeoutError:
        raise StoreError(f"query: stopped after {within_s:g} s: {_shown(sql)}") from None
    except MemoryError:
        most = f"{MOST_HEAP_BYTES >> 20} MB"
        raise StoreError(f"query: needs more than {most} of memory at once: {_shown(sql)}") from None
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in THE_FILES_FAULT:
            raise
        allowed = "only reading is allowed, one SELECT statement: " if guard.refused else ""
        words = one_line(guard.why_failed or str(error)).rstrip(".")
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.Warning):  # several statements, or a null character
            words += "; give one SELECT statement"
        if sql.lstrip().lower().startswith((".", "pragma")) or words.startswith(("no such table", "no such column")):
            words += f"; {_WHAT_THERE_IS}"
        raise StoreError(f"query: {allowed}{words}: {_shown(sql)}") from error


class _Guard:
    """SQLite's authorizer: refuses what does not read, and remembers that it did, and why a function failed."""

    def __init__(self) -> None:
        self.refused = False
        self.why_failed = ""
        """of which SQLite says only that there was an exception"""

    def __call__(
        self, action: int, _first: str | None, second: str | None, _database: str | None, _inner: str | None
    ) -> int:
        function = second.lower() if action == sqlite3.SQLITE_FUNCTION and second is not None else ""
        if action in READING and function not in FORBIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_OK
        self.refused = True
        return sqlite3.SQLITE_DENY

    def uncompress(self, content: Cell, size_bytes: Cell) -> str | None:
        """The sqlite3 shell's `sqlar_uncompress`, for the text of a source."""
        if not isinstance(content, bytes) or not isinstance(size_bytes, int):
            return None
        try:
            return unpacked(content, size_bytes).decode("utf-8", "replace")
        except zlib.error as error:
            self.why_failed = f"sqlar_uncompress: {error}"
            raise


def _connection(path: Path, timeout_s: float, guard: _Guard) -> sqlite3.Connection:
    raw = connect_beside(path, timeout_s)
    try:
        raw.text_factory = _lenient
        raw.create_function("sqlar_uncompress", 2, guard.uncompress, deterministic=True)
        raw.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        raw.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MOST_PATTERN_BYTES)
        raw.execute(f"PRAGMA hard_heap_limit = {MOST_HEAP_BYTES}")
        raw.execute("PRAGMA temp_store = MEMORY")
        raw.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")  # makes both, which the guard would refuse
        raw.set_authorizer(guard)
    except BaseException:
        raw.close()
        raise
    return raw


def _shown(sql: str) -> str:
    return shortened(one_line(sql))


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")
