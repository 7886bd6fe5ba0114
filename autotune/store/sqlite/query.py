"""A user's SQL on a connection beside the store's own: it may read and nothing else."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import StoreError
from autotune.store.sqlite.database import Database, connect_beside, in_words, one_line

Cell = int | float | str | bytes | None
"""One value of an SQL result."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a user's SQL yielded."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE},
)
"""What a statement may do; everything else is refused: writes, ATTACH, PRAGMA, transactions."""
THE_FILES_FAULT = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}
)
"""Errors that are none of the statement's."""
FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


def run_query(database: Database, sql: str) -> QueryResult:
    """Run one SELECT on a connection of its own. Raises StoreError with SQLite's words for anything else."""
    guard = _Guard()
    timeout_s = database.timeout_s
    with (
        database.read() as first,
        in_words(database.path, timeout_s),
        _connection(database.file, timeout_s, guard) as raw,
    ):
        first.exec_driver_sql("SELECT 1 FROM sqlite_master").close()  # has the file open, and closes it last
        try:
            cursor = raw.execute(sql)
            if cursor.description is None:
                raise StoreError("query: nothing to answer; give one SELECT statement")
            columns = tuple(str(column[0]) for column in cursor.description)
            return QueryResult(columns, tuple(tuple(row) for row in cursor))
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in THE_FILES_FAULT:
                raise
            allowed = "only reading is allowed, one SELECT statement: " if guard.refused else ""
            words = one_line(str(error)).rstrip(".")
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.Warning):  # several statements, or a null character
                words += "; give one SELECT statement"
            raise StoreError(f"query: {allowed}{words}: {_shortened(sql)}") from error


class _Guard:
    """SQLite's authorizer: refuses what does not read, and remembers that it did."""

    def __init__(self) -> None:
        self.refused = False

    def __call__(
        self, action: int, _first: str | None, second: str | None, _database: str | None, _inner: str | None
    ) -> int:
        function = second.lower() if action == sqlite3.SQLITE_FUNCTION and second is not None else ""
        if action in READING and function not in FORBIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_OK
        self.refused = True
        return sqlite3.SQLITE_DENY


@contextmanager
def _connection(path: Path, timeout_s: float, guard: _Guard) -> Iterator[sqlite3.Connection]:
    raw = connect_beside(path, timeout_s)
    try:
        raw.text_factory = _lenient
        raw.create_function("sqlar_uncompress", 2, _uncompress, deterministic=True)
        raw.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        raw.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")  # makes both, which the guard would refuse
        raw.set_authorizer(guard)
        yield raw
    finally:
        raw.close()


def _shortened(sql: str) -> str:
    line = one_line(sql)
    return line if len(line) <= 80 else line[:77] + "..."


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _uncompress(content: bytes | None, size_bytes: int) -> str | None:
    """The sqlite3 shell's function of this name, for the text of a source."""
    if not isinstance(content, bytes):
        return None
    return (zlib.decompress(content) if len(content) != size_bytes else content).decode("utf-8", "replace")
