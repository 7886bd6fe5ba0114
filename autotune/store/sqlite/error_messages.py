"""SQLite's errors as messages: what happened to which file, and what to do."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from autotune.errors import DISK_IS_FULL, StoreError
from autotune.escape import one_line

LOG_INDEX_BYTES = 1 << 15
"""of the file that SQLite maps next to a log (https://www.sqlite.org/walformat.html, 2.2)"""


@contextmanager
def translate_errors(path: Path, timeout_s: float) -> Iterator[None]:
    """Raise SQLite's errors as a StoreError of one line."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        known = cause if isinstance(cause, sqlite3.Error) else None
        raise StoreError(_message(path, timeout_s, known, str(cause))) from error


def damaged(path: Path, how: str) -> StoreError:
    """The error for a damaged file, which is left as it is."""
    shown = one_line(str(path))
    return StoreError(
        f"{shown}: the file is damaged ({one_line(how)}); restore a copy, or save what can be read with "
        f"`sqlite3 {shown} .recover`"
    )


def _message(path: Path, timeout_s: float, error: sqlite3.Error | None, message: str) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code == sqlite3.SQLITE_CORRUPT:
        return str(damaged(path, message))
    meaning = {
        sqlite3.SQLITE_BUSY: f"locked by another process for more than {timeout_s:g} s; end it or wait for it",
        sqlite3.SQLITE_LOCKED: f"locked by another process for more than {timeout_s:g} s; end it or wait for it",
        sqlite3.SQLITE_READONLY: "the file is read-only; make it writable or name another database",
        sqlite3.SQLITE_NOTADB: "not an SQLite file; give the path of a results database",
        sqlite3.SQLITE_FULL: DISK_IS_FULL,
        sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the path and the permissions of its folder",
        sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk",
    }.get(code)
    if code == sqlite3.SQLITE_IOERR and _disk_is_full(path):  # SQLite reports a full disk for pages, not for maps
        meaning = DISK_IS_FULL
    shown = one_line(str(path))
    return f"{shown}: {one_line(message)}" if meaning is None else f"{shown}: {meaning} ({one_line(message)})"


def _disk_is_full(path: Path) -> bool:
    """Whether the disk is too full for the files that SQLite keeps next to the database."""
    try:
        return shutil.disk_usage(path.absolute().parent).free < LOG_INDEX_BYTES
    except OSError:
        return False
