"""Open connections to an SQLite file, for reading or for writing, and translate SQLite's errors.

Connections for reading don't leave any files behind.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError

from autotune.errors import DISK_IS_FULL, StoreError
from autotune.escape import one_line
from autotune.store.schema.tables import metadata

LOG_INDEX_BYTES = 1 << 15
"""Size of the file that SQLite maps next to a write-ahead log (https://www.sqlite.org/walformat.html, 2.2)."""


@contextmanager
def translate_errors(path: Path, timeout_s: float) -> Iterator[None]:
    """Turn SQLite's errors into StoreErrors with one-line messages."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        known = cause if isinstance(cause, sqlite3.Error) else None
        raise StoreError(_message(path, timeout_s, known, str(cause))) from error


def damaged(path: Path, how: str) -> StoreError:
    """Return the error for a damaged file, without changing the file."""
    shown = one_line(str(path))
    return StoreError(
        f"{shown}: the file is damaged ({one_line(how)}); restore a copy, or extract the readable rows with "
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
    if code == sqlite3.SQLITE_IOERR and _disk_is_full(path):  # SQLITE_FULL covers pages, not the mapped -shm file
        meaning = DISK_IS_FULL
    shown = one_line(str(path))
    return f"{shown}: {one_line(message)}" if meaning is None else f"{shown}: {meaning} ({one_line(message)})"


def _disk_is_full(path: Path) -> bool:
    """Return whether there isn't enough space on the disk for the files that SQLite creates next to the database."""
    try:
        return shutil.disk_usage(path.absolute().parent).free < LOG_INDEX_BYTES
    except OSError:
        return False


WAL_RETRY_S = 0.005
"""pause in seconds between attempts to switch to WAL, which SQLite's busy timeout does not cover"""

LEAST_BYTES = 512
"""size of the smallest SQLite file that is not empty, in bytes: one page (file format, 1.3.2)"""

NO_LOG_CAN_BE_MADE = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
)
"""SQLite's errors if a log cannot be created, because the folder is read-only or the disk is full"""


def connect_for_reading(path: Path, timeout_s: float) -> sqlite3.Connection:
    """Open a connection that neither changes the file nor leaves new files next to it.

    Raises StoreError if the file's log contains changes that can't be read without writing to its folder.
    """
    # In WAL mode SQLite creates the files -wal and -shm next to the database, even for a reader. SQLite removes them
    # when the last connection closes, but only if this connection may write. If a killed writer has left a log, a
    # connection that may write would apply the log.
    may_remove = may_write(path) and may_write(path.parent) and not _has_log(path)
    raw = _connect(path, "mode=rw" if may_remove else "mode=ro", timeout_s)
    try:
        _prepared(raw, "SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in NO_LOG_CAN_BE_MADE:
            raise
        if _has_log(path):
            shown = one_line(str(path))
            raise StoreError(
                f"{shown}: {shown}-wal has changes that cannot be read without writing to the folder; "
                f"make the folder writable, or copy both files to another one"
            ) from error
        # The file is in WAL mode without a log, and the folder is read-only: SQLite must treat the file as immutable.
        raw = _connect(path, "mode=ro&immutable=1", timeout_s)
    return _prepared(raw, "PRAGMA query_only = ON")


def connect_for_writing(path: Path, timeout_s: float, *, references: bool = True) -> sqlite3.Connection:
    """Open a connection for writing.

    It enforces foreign keys unless `references` is False, which allows tables to be dropped and recreated.
    """
    raw = _connect(path, "mode=rwc", timeout_s)
    return _prepared(raw, f"PRAGMA foreign_keys = {int(references)}", "PRAGMA synchronous = NORMAL")


def switch_to_wal(path: Path, timeout_s: float) -> None:
    """Switch the file to WAL mode, so that readers and a writer don't wait for each other."""
    deadline = time.monotonic() + timeout_s
    with translate_errors(path, timeout_s), closing(_connect(path, "mode=rwc", timeout_s)) as raw:
        while True:
            try:
                raw.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(WAL_RETRY_S)


def may_write(path: Path) -> bool:
    """Return whether this process may write to the file."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def uri(path: Path, options: str) -> str:
    """Return a path as an SQLite URI."""
    return f"file://{quote(os.fsencode(path.absolute()))}?{options}"


def _has_log(path: Path) -> bool:
    try:
        return Path(f"{path}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def _connect(path: Path, options: str, timeout_s: float) -> sqlite3.Connection:
    # isolation_level=None: this package begins transactions explicitly; the driver must not begin them.
    # check_same_thread=False: the pool hands a connection to one thread at a time.
    return sqlite3.connect(
        uri(path, options), uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False
    )


def _prepared(raw: sqlite3.Connection, *statements: str) -> sqlite3.Connection:
    """Execute statements on a connection and return it.

    If a statement fails, for example because the file isn't a database, the connection is closed.
    """
    try:
        for statement in statements:
            raw.execute(statement).close()
    except BaseException:
        raw.close()
        raise
    return raw


def check_whole(raw: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError if the file contains a broken page, a row that breaks a constraint or a dangling reference."""
    missing = sorted(metadata.tables.keys() - {name for (name,) in raw.execute("SELECT name FROM sqlite_master")})
    if missing:
        raise damaged(path, f"no table {missing[0]}")
    try:
        (fault,) = raw.execute("PRAGMA integrity_check(1)").fetchone()
        dangling = raw.execute("PRAGMA foreign_key_check").fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        raise damaged(path, str(error)) from error
    if fault != "ok":
        raise damaged(path, fault)
    if dangling is not None:
        raise damaged(path, f"row {dangling[1]} of {dangling[0]} refers to a row of {dangling[2]} that does not exist")
