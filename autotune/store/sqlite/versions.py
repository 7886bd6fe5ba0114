"""The version of a file's schema, and how an older file is migrated."""

from __future__ import annotations

import os
import sqlite3
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
from autotune.store.sqlite.connections import connect_for_reading, connect_for_writing, switch_to_wal
from autotune.store.sqlite.database import Clock, Database, sqlite_engine
from autotune.store.sqlite.error_messages import translate_errors
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
