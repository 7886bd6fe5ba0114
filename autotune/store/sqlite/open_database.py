"""Open a results database: for writing, with its schema brought up to date, or for reading, without changing it."""

from __future__ import annotations

import os
import sqlite3
import stat
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, func, select

from autotune.atomic_write import sibling_temp
from autotune.errors import StoreError, StoreWarning
from autotune.escape import one_line
from autotune.store.schema.create import add_columns, create, lacking, make_views, stamp
from autotune.store.schema.from_12 import copy_12
from autotune.store.schema.tables import FIRST, MIGRATIONS, schema_versions
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


def newest_schema() -> int:
    """The schema that this version of autotune writes."""
    return FIRST + len(MIGRATIONS)


def version_of(connection: Connection, path: Path) -> int | None:
    """The schema's version; None for an empty database. Raises StoreError if the file is not autotune's
    or is too new.
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
    """Whether a file of this version has the newest schema, with every declared column."""
    return version == newest_schema() and not lacking(connection)


def bring_up_to_date(database: Database) -> None:
    """Migrate the file to the newest schema and keep a copy of the older one. A file that is not autotune's is not
    touched.
    """
    with database.read() as connection:
        version = version_of(connection, database.path)
        current = is_current(connection, version)
    if version == 12:
        _replace_12(database)
        return
    switch_to_wal(database.path, database.timeout_s)
    if current:
        return
    kept = None if version in (None, newest_schema()) else _kept(database, version)
    try:
        with database.write() as connection:
            version = version_of(connection, database.path)
            if not is_current(connection, version):  # unless another process did it first
                if kept is not None:
                    _copy(database.file, kept, database.timeout_s)
                migrate(connection, version, database.clock)
    except BaseException:
        if kept is not None:  # the file is unchanged
            with suppress(OSError):
                kept.unlink()
        raise
    if kept is not None:
        _warn(database, version, kept)


def migrate(connection: Connection, version: int | None, clock: Clock) -> None:
    """Migrate a database to the newest schema, in the connection's transaction."""
    if version is None:
        create(connection, newest_schema(), clock())
        return
    for each in MIGRATIONS[version - FIRST :]:
        each(connection)
    add_columns(connection)
    make_views(connection)
    if version != newest_schema():
        stamp(connection, newest_schema(), clock())


@contextmanager
def private_copy(path: Path, version: int | None, timeout_s: float, clock: Clock) -> Iterator[Path]:
    """A copy of a database with the newest schema in a temporary folder; for None, an empty database."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder())
        except OSError as error:
            raise StoreError(
                f"{one_line(str(path))}: is read through a copy, but there is no folder for one ({error.strerror}); "
                f"set TMPDIR to one that may be written"
            ) from error
        copy = Path(folder) / path.name
        with translate_errors(path, timeout_s):
            if version not in (None, 12):
                _copy(path, copy, timeout_s)
            _made(path, copy, version, timeout_s, clock)
        yield copy


def _made(path: Path, file: Path, version: int | None, timeout_s: float, clock: Clock) -> None:
    """Create the newest schema in a new file, or migrate a copy of `path`; of schema 12, copy the rows of `path`."""
    engine = sqlite_engine(lambda: connect_for_writing(file, timeout_s))
    with closing(Database(path, timeout_s, engine, file, clock)) as database, database.write() as connection:
        migrate(connection, None if version == 12 else version, clock)
    if version == 12:
        with closing(connect_for_writing(file, timeout_s)) as raw:
            copy_12(path, raw, one_line(str(path)))


def _replace_12(database: Database) -> None:
    """Replace a file of schema 12 by one of the current schema, and keep the old one next to it."""
    path = database.path
    kept = _kept(database, 12)
    database.engine.dispose()  # a connection that has read keeps the log open
    with sibling_temp(path) as begun, translate_errors(path, database.timeout_s):
        with closing(sqlite3.connect(path, timeout=database.timeout_s)) as raw:
            raw.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
        _made(path, begun, 12, database.timeout_s, database.clock)
        switch_to_wal(begun, database.timeout_s)
        try:
            os.link(path, kept)
            os.replace(begun, path)
        except OSError as error:
            raise _not_kept(database, 12, kept, error) from error
        database.engine.dispose()  # its connections are to the old file
    _warn(database, 12, kept)


def _kept(database: Database, version: int | None) -> Path:
    """The name of the copy of an older file: its schema and the date."""
    path, date = database.path, database.now().strftime("%Y%m%dT%H%M%SZ")
    return path.with_name(f"{path.stem}.schema-{version}.{date}{path.suffix}")


def _copy(path: Path, to: Path, timeout_s: float) -> None:
    """Copy the committed rows of a database, page by page, to a new file without a log."""
    with closing(connect_for_reading(path, timeout_s)) as raw, closing(sqlite3.connect(to)) as target:
        raw.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")


def _not_kept(database: Database, version: int, kept: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{database.shown}: schema {version} must be brought to {newest_schema()}, but a copy cannot be kept as "
        f"{one_line(kept.name)} ({one_line(str(error))}); make room or copy the file elsewhere"
    )


def _warn(database: Database, version: int | None, kept: Path) -> None:
    message = (
        f"{database.shown}: brought from schema {version} to {newest_schema()}; "
        f"the old file is kept as {one_line(kept.name)}"
    )
    warnings.warn(message, StoreWarning, stacklevel=2)


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
    database, _ = _with_newest_schema(path, timeout_s, clock)
    database.writable = lambda: _written(path, timeout_s, clock)
    return database


def open_for_reading(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open an existing results database without changing it; its folder may be read-only. Raises StoreError.

    A file with an older schema is read through a copy with the newest one.
    """
    path = path_of(url)
    shown = one_line(str(path))
    if not _inspect(path):
        raise StoreError(f"{shown}: no such file; `autotune tune STUDY --db {shown}` creates it")
    database, version = _with_newest_schema(path, timeout_s, clock)
    if version is None:
        database.close()
        raise StoreError(f"{shown}: the database is empty; `autotune tune STUDY --db {shown}` fills it")
    return database


def schema_of(path: Path, timeout_s: float) -> int | None:
    """The schema's version; None for an empty database or no file. Raises StoreError as `version_of` does."""
    if not path.exists():
        return None
    with closing(_reading(path, path, timeout_s, utc_now)) as database, database.read() as connection:
        return version_of(connection, path)


def has_results(url: str | Path) -> bool:
    """Whether there is a results database; an empty file, left by a run that was killed early, does not count.

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


def _with_newest_schema(path: Path, timeout_s: float, clock: Clock) -> tuple[Database, int | None]:
    """The file opened for reading, or a copy of its rows in the newest schema; and the version of its own schema."""
    version = None
    with ExitStack() as stack:
        if path.exists():
            database = stack.enter_context(closing(_reading(path, path, timeout_s, clock)))
            with database.read() as connection:
                version = version_of(connection, path)
                current = is_current(connection, version)
            if current:
                stack.pop_all()
                return database, version
    with ExitStack() as stack:
        copy = stack.enter_context(private_copy(path, version, timeout_s, clock))
        database = _reading(path, copy, timeout_s, clock)
        database.closing.push(stack.pop_all())
    return database, version


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
