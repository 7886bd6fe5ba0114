"""Open a results database: for writing, with its schema brought up to date, or for reading, without changing it."""

from __future__ import annotations

import stat
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.store.sqlite.connections import LEAST_BYTES, connect_for_reading, connect_for_writing, may_write
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, Database, path_of, sqlite_engine, utc_now
from autotune.store.sqlite.versions import bring_up_to_date, is_current, private_copy, version_of

ANALYSIS_LIMIT = 1000
"""rows of each index to look at; takes milliseconds for any size (https://www.sqlite.org/lang_analyze.html)"""


def open_for_writing(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open a results database for writing, without changing it before the first write. Raises StoreError.

    The first write creates the file if there is none, and migrates it if it is older. Until then, reads see a copy with
    the newest schema, which is empty if there is no file.
    """
    path = path_of(url)
    shown = one_line(str(path))
    if _inspect(path) and not may_write(path):
        raise StoreError(f"{shown}: the file is read-only; make it writable or name another database")
    if not may_write(path.parent):
        raise StoreError(
            f"{shown}: the folder {one_line(str(path.parent))} is read-only and SQLite needs files next to the "
            f"database; name another database"
        )
    database = _with_newest_schema(path, timeout_s, clock)
    database.writable = lambda: _written(path, timeout_s, clock)
    return database


def open_for_reading(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open an existing results database without changing it; its folder may be read-only. Raises StoreError.

    A file with an older schema is read through a copy with the newest one.
    """
    path = path_of(url)
    shown = one_line(str(path))
    if not _inspect(path):
        raise StoreError(f"{shown}: no such file; `autotune tune STUDY --db {shown}` makes one")
    if schema_of(path, timeout_s) is None:
        raise StoreError(f"{shown}: the database is empty; `autotune tune STUDY --db {shown}` fills it")
    return _with_newest_schema(path, timeout_s, clock)


def schema_of(path: Path, timeout_s: float) -> int | None:
    """The schema's version; None for an empty database or no file. Raises StoreError as `version_of` does."""
    if not path.exists():
        return None
    with closing(_reading(path, path, timeout_s, utc_now)) as database, database.read() as connection:
        return version_of(connection, path)


def has_results(url: str | Path) -> bool:
    """Whether there is a results database; an empty file, left by a run that was killed early, is none yet.

    Raises StoreError for any other file.
    """
    path = path_of(url)
    return path.exists() and _inspect(path) and schema_of(path, LOCK_TIMEOUT_S) is not None


def remove_empty(path: Path) -> None:
    """Remove a file in which nothing was stored, and SQLite's files next to it, for example after a full disk."""
    with suppress(OSError):
        if path.stat().st_size == 0:
            for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
                path.with_name(name).unlink(missing_ok=True)


def _written(path: Path, timeout_s: float, clock: Clock) -> Database:
    """The file itself, created or migrated for the first write."""
    new = not path.exists()
    database = Database(path, timeout_s, sqlite_engine(lambda: connect_for_writing(path, timeout_s)), path, clock)
    try:
        bring_up_to_date(database)
        with database.write() as connection:  # statistics for SQLite's planner, for tables that have grown
            connection.exec_driver_sql(f"PRAGMA analysis_limit = {ANALYSIS_LIMIT}")
            connection.exec_driver_sql("PRAGMA optimize = 0x10002")
    except BaseException:
        database.close()
        if new:
            remove_empty(path)
        raise
    return database


def _with_newest_schema(path: Path, timeout_s: float, clock: Clock) -> Database:
    """The file opened for reading, or a copy of its rows in the newest schema."""
    version, current = None, False
    if path.exists():
        with closing(_reading(path, path, timeout_s, clock)) as database, database.read() as connection:
            version = version_of(connection, path)
            current = is_current(connection, version)
    if current:
        return _reading(path, path, timeout_s, clock)
    with ExitStack() as stack:
        copy = stack.enter_context(private_copy(path, version, timeout_s, clock))
        database = _reading(path, copy, timeout_s, clock)
        database.closing.push(stack.pop_all())
    return database


def _reading(path: Path, file: Path, timeout_s: float, clock: Clock) -> Database:
    return Database(path, timeout_s, sqlite_engine(lambda: connect_for_reading(file, timeout_s)), file, clock)


def _inspect(path: Path) -> bool:
    """Whether there is a file. Raises StoreError for something that cannot be a database."""
    shown = one_line(str(path))
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(f"{shown}: there is no folder {one_line(str(path.parent))}; create it first") from None
        return False
    except OSError as error:
        raise StoreError(f"{shown}: {error.strerror}; give the path of a file") from error
    if stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{shown}: is a folder; give the path of a file in it, such as {shown}/autotune.db")
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{shown}: is not a regular file; give the path of a file")
    if 0 < status.st_size < LEAST_BYTES:
        raise StoreError(f"{shown}: not an SQLite file; give the path of a results database or of a new file")
    return True
