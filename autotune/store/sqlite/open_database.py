"""Open a results database for writing, which updates its schema, or for reading, which doesn't."""

from __future__ import annotations

import sqlite3
import stat
import warnings
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from sqlalchemy import Connection, func, select

from autotune.atomic_write import sibling_temp
from autotune.errors import StoreError, StoreWarning
from autotune.escape import one_line
from autotune.resources import check_writable_results
from autotune.store.schema.create import create, lacking
from autotune.store.schema.migrations import FIRST, migrate, newest_schema
from autotune.store.schema.tables import schema_versions
from autotune.store.sqlite.connections import (
    LEAST_BYTES,
    connect_for_reading,
    connect_for_writing,
    may_write,
    switch_to_wal,
    translate_errors,
)
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, Database, path_of, sqlite_engine, utc_now
from autotune.tempdirs import temporary_folder


def version_of(connection: Connection, path: Path) -> int | None:
    """Return the schema's version, or None for an empty database.

    Raises StoreError if the file isn't one of autotune's results databases, or if its schema is too new.
    """
    shown = one_line(str(path))
    names = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    if not names:
        return None
    if "schema_versions" not in names:
        what = "an Optuna storage" if {"study_directions", "trial_values"} & names else "another program's database"
        raise StoreError(f"{shown}: {what}, not a results database of autotune; name another database")
    if "alembic_version" in names:
        found = connection.exec_driver_sql("SELECT max(version_num) FROM alembic_version").scalar_one()
        if found != "0012":
            raise StoreError(f"{shown}: schema {one_line(str(found))} was never released; only 0012 can be read")
        return 12
    version = connection.execute(select(func.max(schema_versions.c.version))).scalar_one()
    if version is None:
        raise StoreError(f"{shown}: the schema's version is missing; restore a copy of the file")
    if version > newest_schema():
        writer = select(schema_versions.c.autotune_version).where(schema_versions.c.version == version)
        raise StoreError(
            f"{shown}: schema {version} is newer than this autotune's {newest_schema()}; "
            f"install autotune {one_line(connection.execute(writer).scalar_one())} or newer"
        )
    return int(version)


def is_current(connection: Connection, version: int | None) -> bool:
    """Return whether a file with this version has the newest schema, including every declared column."""
    return version == newest_schema() and not lacking(connection)


ANALYSIS_LIMIT = 1000
"""number of rows of each index that ANALYZE reads, which takes milliseconds for any size
(https://www.sqlite.org/lang_analyze.html)
"""


def open_for_writing(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open a results database for writing. The file is created if it doesn't exist, and migrated if its schema is
    older.

    Raises StoreError if that fails, and for bundled results.
    """
    path = path_of(url)
    shown = one_line(str(path))
    check_writable_results(path)
    new = not _inspect(path)
    if not new and not may_write(path):
        raise StoreError(f"{shown}: the file is read-only; make it writable or name another database")
    if not may_write(path.parent):
        raise StoreError(
            f"{shown}: the folder {one_line(str(path.parent))} is read-only and SQLite needs files next to the "
            f"database; name another database"
        )
    database = Database(path, timeout_s, sqlite_engine(lambda: connect_for_writing(path, timeout_s)), path, clock)
    try:
        _bring_up_to_date(path, timeout_s, clock)
        with database.write() as connection:  # update the planner's statistics for tables that have grown
            connection.exec_driver_sql(f"PRAGMA analysis_limit = {ANALYSIS_LIMIT}")
            connection.exec_driver_sql("PRAGMA optimize = 0x10002")
    except BaseException:
        database.close()
        if new:
            _remove_empty(path)
        raise
    return database


def open_for_reading(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open an existing results database without changing it. Its folder may be read-only.

    If the schema is older, a copy of the file is migrated instead. Raises StoreError if the file can't be read.
    """
    path = path_of(url)
    shown = one_line(str(path))
    if not _inspect(path):
        raise StoreError(f"{shown}: no such file; `autotune tune STUDY --db {shown}` creates it")
    database = _reading(path, path, timeout_s, clock)
    with ExitStack() as stack:
        stack.enter_context(closing(database))
        with database.read() as connection:
            version = version_of(connection, path)
            current = is_current(connection, version)
        if version is None:
            raise StoreError(f"{shown}: the database is empty; `autotune tune STUDY --db {shown}` fills it")
        if current:
            stack.pop_all()
            return database
    return _migrated_copy(path, timeout_s, clock)


def schema_of(path: Path, timeout_s: float) -> int | None:
    """Return the schema's version, or None for an empty or missing database. Raises StoreError like `version_of`."""
    if not path.exists():
        return None
    with closing(_reading(path, path, timeout_s, utc_now)) as database, database.read() as connection:
        return version_of(connection, path)


def has_results(url: str | Path) -> bool:
    """Return whether a results database exists. An empty file, as left by a run that was killed early, doesn't count.

    Raises StoreError for a file that isn't a results database.
    """
    path = path_of(url)
    return path.exists() and _inspect(path) and schema_of(path, LOCK_TIMEOUT_S) is not None


def _bring_up_to_date(path: Path, timeout_s: float, clock: Clock) -> None:
    """Create a file, or migrate it to the newest schema and keep a copy with the older one.

    A file that isn't a results database is left unchanged.
    """
    kept = None
    with closing(_migrating(path, path, timeout_s, clock)) as database:
        with database.read() as connection:
            current = is_current(connection, version_of(connection, path))
        switch_to_wal(path, timeout_s)
        if current:
            return
        try:
            with database.write() as connection:
                version = version_of(connection, path)
                if is_current(connection, version):  # another process has updated the file in the meantime
                    return
                if version not in (None, newest_schema()):
                    kept = path.with_name(f"{path.stem}.schema-{version}.{clock():%Y%m%dT%H%M%SZ}{path.suffix}")
                    with sibling_temp(kept) as begun:  # a killed process leaves no partial copy of this name
                        _copy(path, begun, timeout_s)
                        begun.replace(kept)
                _migrate(connection, version, path, kept or path, clock)
        except BaseException:
            if kept is not None:  # the file is unchanged, so the copy is useless
                with suppress(OSError):
                    kept.unlink()
            raise
    if kept is not None:
        message = (
            f"{database.shown}: migrated from schema {version} to {newest_schema()}; "
            f"the old file is kept as {one_line(kept.name)}"
        )
        warnings.warn(message, StoreWarning, stacklevel=2)


def _migrated_copy(path: Path, timeout_s: float, clock: Clock) -> Database:
    """Copy a database with an older schema to a temporary folder and migrate the copy."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder())
        except OSError as error:
            raise StoreError(
                f"{one_line(str(path))}: is read through a copy, but there is no folder for one ({error.strerror}); "
                f"set TMPDIR to one that may be written"
            ) from error
        copy, old = Path(folder) / path.name, Path(folder) / "old"
        with translate_errors(path, timeout_s):
            _copy(path, copy, timeout_s)
        with closing(_migrating(path, copy, timeout_s, clock)) as database, database.write() as connection:
            version = version_of(connection, path)
            if version == FIRST:  # only this migration reads the old tables
                _copy(copy, old, timeout_s)
            _migrate(connection, version, path, old, clock)
        database = _reading(path, copy, timeout_s, clock)
        database.closing.push(stack.pop_all())
    return database


def _migrate(connection: Connection, version: int | None, path: Path, old: Path, clock: Clock) -> None:
    """Create the schema, or migrate the database, of which `old` is a copy, to the newest one."""
    if version is None:
        create(connection, newest_schema(), clock())
    else:
        migrate(connection, version, old, one_line(str(path)), clock())


def _copy(path: Path, to: Path, timeout_s: float) -> None:
    """Copy a database's committed rows, page by page, to a new file without a log."""
    with closing(connect_for_reading(path, timeout_s)) as raw, closing(sqlite3.connect(to)) as target:
        raw.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")


def _reading(path: Path, file: Path, timeout_s: float, clock: Clock) -> Database:
    return Database(path, timeout_s, sqlite_engine(lambda: connect_for_reading(file, timeout_s)), file, clock)


def _migrating(path: Path, file: Path, timeout_s: float, clock: Clock) -> Database:
    """Open a database without checking references, so that its tables can be dropped and recreated."""
    engine = sqlite_engine(lambda: connect_for_writing(file, timeout_s, references=False))
    return Database(path, timeout_s, engine, file, clock)


def _remove_empty(path: Path) -> None:
    """Remove an empty file, left for example by a full disk, and SQLite's files next to it."""
    with suppress(OSError):
        if path.stat().st_size == 0:
            for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
                path.with_name(name).unlink(missing_ok=True)


def _inspect(path: Path) -> bool:
    """Return whether the file exists. Raises StoreError for a path that can't be a database."""
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
