"""A results database opened: for writing with its schema brought up to date, for reading without changing it."""

from __future__ import annotations

import shutil
import stat
import tempfile
import warnings
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from autotune.errors import StoreError, StoreWarning
from autotune.printable import one_line
from autotune.store.sqlite.connections import (
    LEAST_BYTES,
    connect_for_reading,
    connect_for_writing,
    fold_log,
    log_state,
    may_write,
)
from autotune.store.sqlite.database import Clock, Database, path_of, sqlite_engine, utc_now
from autotune.store.sqlite.filesystem import MOUNTS, networked
from autotune.store.sqlite.schema import bring_up_to_date, newest_schema, private_copy, version_of

FEW_TRIALS = 1000
"""trials up to which no statistics are needed"""
LARGE_BYTES = 1 << 26
"""of a file that two processes read in less time than one: some 80,000 trials"""
ANALYSIS_LIMIT = 1000
"""rows of each index that are looked at; a few milliseconds for any size (https://www.sqlite.org/lang_analyze.html)"""


def open_for_writing(url: str | Path, *, timeout_s: float, clock: Clock, mounts: Path = MOUNTS) -> Database:
    """Open a results database that may be written to, and change nothing until it is. Raises StoreError.

    The first write makes the file when there is none and migrates it when it is older; what is read before sees a copy
    with the newest schema, which is empty where there is no file.
    """
    path = _writable_path(url)
    database = _with_newest_schema(path, timeout_s, clock)
    database.writable = lambda: _written(path, timeout_s, clock, mounts)
    return database


def _written(path: Path, timeout_s: float, clock: Clock, mounts: Path) -> Database:
    """The file itself, made or migrated, for a first write."""
    new = not path.exists()
    database = prepare_for_writing(path, timeout_s=timeout_s, clock=clock)
    try:
        bring_up_to_date(database)
        refresh_statistics(database)
        kind = networked(database.path, mounts)
        if kind is not None:
            message = (
                f"{database.shown}: lies on a network file system ({kind}), where SQLite's locks are not "
                f"reliable; let no two machines write to it, or keep it on a local disk and `autotune merge` it"
            )
            warnings.warn(message, StoreWarning, stacklevel=2)
    except BaseException:
        database.close()
        if new:
            remove_empty(path)
        raise
    return database


def remove_empty(path: Path) -> None:
    """Remove a file in which nothing was stored, and what SQLite keeps beside it: the disk was full, say."""
    with suppress(OSError):
        if path.stat().st_size == 0:
            for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
                path.with_name(name).unlink(missing_ok=True)


def refresh_statistics(database: Database) -> None:
    """Count the tables anew for SQLite's planner once the trials have doubled; `best` of all layers needs it."""
    with database.read() as connection:
        many = connection.exec_driver_sql("SELECT max(id) FROM trials").scalar_one() or 0
        counted = 0
        if (
            many > FEW_TRIALS
            and connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'").first()
        ):
            known = "SELECT stat FROM sqlite_stat1 WHERE tbl = 'trials' AND idx = 'trials_identity'"
            counted = int((connection.exec_driver_sql(known).scalar() or "0").split()[0])
    if many > max(FEW_TRIALS, 2 * counted):
        with database.write() as connection:
            connection.exec_driver_sql(f"PRAGMA analysis_limit = {ANALYSIS_LIMIT}")
            connection.exec_driver_sql("ANALYZE main")


def prepare_for_writing(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """A file that may be written, made when there is none, whatever is in it. Raises StoreError."""
    path = _writable_path(url)
    return Database(path, timeout_s, sqlite_engine(lambda: connect_for_writing(path, timeout_s)), path, clock)


def _writable_path(url: str | Path) -> Path:
    path = path_of(url)
    shown = one_line(str(path))
    exists = _inspect(path)
    if exists and not may_write(path):
        raise StoreError(f"{shown}: the file is read-only; make it writable or name another database")
    if not may_write(path.parent):
        raise StoreError(
            f"{shown}: the folder {one_line(str(path.parent))} is read-only and SQLite needs files beside the "
            f"database; name another database"
        )
    return path


def open_for_reading(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open an existing results database without changing it; its folder may be read-only. Raises StoreError.

    One of an older schema is read through a copy that has the newest.
    """
    return _with_newest_schema(_filled(url, timeout_s), timeout_s, clock)


def open_copy(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """The same through a copy in any case, which nobody changes while it is read."""
    return _copied(_filled(url, timeout_s), timeout_s, clock)


def is_large(url: str | Path) -> bool:
    """Whether two processes read a file in less time than one."""
    path = path_of(url)
    return path.is_file() and path.stat().st_size > LARGE_BYTES


def may_be_copied(url: str | Path) -> bool:
    """Whether there is room for a copy."""
    path = path_of(url)
    return path.is_file() and shutil.disk_usage(tempfile.gettempdir()).free > 2 * path.stat().st_size


def _filled(url: str | Path, timeout_s: float) -> Path:
    """The path of an existing database. Raises StoreError where there is none."""
    path = path_of(url)
    shown = one_line(str(path))
    if not _inspect(path):
        raise StoreError(f"{shown}: no such file; `autotune tune STUDY --db {shown}` makes one")
    if schema_of(path, timeout_s) is None:
        raise StoreError(f"{shown}: the database is empty; `autotune tune STUDY --db {shown}` fills it")
    return path


def schema_of(path: Path, timeout_s: float) -> str | None:
    """The schema's version, None for an empty database or none at all. Raises StoreError as `version_of` does."""
    if not path.exists():
        return None
    with closing(open_as_it_is(path, timeout_s)) as database, database.read() as connection:
        return version_of(connection, path)


def open_as_it_is(path: Path, timeout_s: float, clock: Clock = utc_now, *, file: Path | None = None) -> Database:
    """A file open for reading, whatever its schema; or what is read in its place."""
    return _reading(path, file or path, timeout_s, clock)


def _with_newest_schema(path: Path, timeout_s: float, clock: Clock) -> Database:
    """The file open for reading, or what has its content and the newest schema."""
    version = schema_of(path, timeout_s)
    if version == newest_schema():
        database = open_as_it_is(path, timeout_s, clock)
        database.closing.callback(fold_log, path, timeout_s, log_state(path))
        return database
    return _copied(path, timeout_s, clock)


def _copied(path: Path, timeout_s: float, clock: Clock) -> Database:
    empty = schema_of(path, timeout_s) is None
    with ExitStack() as stack:
        original = None if empty else stack.enter_context(closing(open_as_it_is(path, timeout_s)))
        copy = stack.enter_context(private_copy(path, original, timeout_s, clock))
        database = _reading(path, copy, timeout_s, clock)
        database.closing.push(stack.pop_all())
    return database


def _reading(path: Path, file: Path, timeout_s: float, clock: Clock) -> Database:
    return Database(path, timeout_s, sqlite_engine(lambda: connect_for_reading(file, timeout_s)), file, clock)


def _inspect(path: Path) -> bool:
    """True when there is a file."""
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
