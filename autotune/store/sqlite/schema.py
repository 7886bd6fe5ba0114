"""Which schema a database has, how a new one gets it, how an older one is brought to it: after a copy was kept."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC
from functools import cache
from pathlib import Path

from sqlalchemy import Column, Connection, Table, select

from autotune import __version__
from autotune.errors import StoreError, StoreWarning
from autotune.printable import one_line
from autotune.store.column_types import Text, date_text, metadata, text
from autotune.store.sqlite.connections import (
    connect_for_migrating,
    connect_for_reading,
    connect_to_memory,
    switch_to_wal,
)
from autotune.store.sqlite.database import NOT_UNDERSTOOD, Clock, Database, sqlite_engine, utc_now
from autotune.store.sqlite.error_words import in_words
from autotune.temporary import temporary_folder

MIGRATIONS = Path(__file__).parents[1] / "migrations"
SNAPSHOT = MIGRATIONS / "snapshot.sql"
"""A schema as its migrations leave it, in a tenth of their time: a new database begins with it. It need not be the
newest; tests/unit/store/test_schema.py makes it so."""
BETWEEN_STATEMENTS = ";\n\n"

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("version", Text, primary_key=True),
    text("autotune_version"),
    text("applied_at"),
)


@cache
def versions() -> tuple[str, ...]:
    """The schemas that there are migrations to, oldest first; read from the files, before Alembic is imported."""
    return tuple(sorted(file.name[1:5] for file in MIGRATIONS.glob("versions/v[0-9]*_*.py")))


def newest_schema() -> str:
    """The schema that this autotune writes."""
    return versions()[-1]


def version_of(connection: Connection, path: Path) -> str | None:
    """The schema's version, None for an empty database. Raises StoreError when the file is not ours or too new."""
    shown = one_line(str(path))
    names = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    if not names:
        return None
    if not {"alembic_version", "schema_versions"} <= names:
        what = "an Optuna storage" if {"study_directions", "trial_values"} & names else "another program's database"
        raise StoreError(f"{shown}: {what}, not a results database of autotune; name another database")
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    dated = set(connection.execute(select(schema_versions.c.version)).scalars())  # by migrations, each one's
    known = [each for each in found if isinstance(each, str) and (len(found) == 1 or each in dated)]
    version = max(known, default=None)
    if version is None:
        raise StoreError(f"{shown}: the schema's version is missing; restore a copy of the file")
    if len(found) > 1:
        message = f"{shown}: alembic_version has {len(found)} rows; {one_line(version)} is the schema"
        warnings.warn(message, StoreWarning, stacklevel=2)
    if version > newest_schema():
        newest = select(schema_versions.c.autotune_version).where(schema_versions.c.version == version)
        writer = connection.execute(newest).scalar_one_or_none()
        advice = f"install autotune {one_line(str(writer))} or newer" if writer else "install a newer autotune"
        raise StoreError(
            f"{shown}: schema {one_line(version)} is newer than this autotune's {newest_schema()}; {advice}"
        )
    if version not in versions():
        raise StoreError(f"{shown}: schema {one_line(version)} is none of autotune's; restore a copy of the file")
    return version


def bring_up_to_date(database: Database) -> None:
    """Bring the schema up to date. A file that is not ours is refused before anything in it changes."""
    with database.read() as connection:
        version = version_of(connection, database.path)
    switch_to_wal(database.path, database.timeout_s)
    if version == newest_schema():
        return
    kept = None
    try:
        with unenforced(database.path, database.file, database.timeout_s) as connection:
            version = version_of(connection, database.path)
            if version == newest_schema():  # another process was quicker
                return
            if version is not None:
                kept = _back_up(database, version)
            migrate(connection, database.path, newest_schema(), database.clock)
    except BaseException:
        if kept is not None:  # the file is as it was
            kept.unlink()
        raise
    if kept is not None:
        message = (
            f"{database.shown}: brought from schema {version} to {newest_schema()}; "
            f"the file as it was is kept as {one_line(kept.name)}"
        )
        warnings.warn(message, StoreWarning, stacklevel=2)


@contextmanager
def private_copy(path: Path, original: Database | None, timeout_s: float, clock: Clock) -> Iterator[Path]:
    """A copy of a database with the newest schema, in a folder of its own; gone at the end.

    Without an original, because `path` has nothing in it yet, the copy has no rows.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder())
        except OSError as error:
            raise StoreError(
                f"{one_line(str(path))}: is read through a copy, but there is no folder for one ({error.strerror}); "
                f"set TMPDIR to one that may be written"
            ) from error
        copy = Path(folder) / path.name
        if original is not None:
            with in_words(path, timeout_s):
                _copy(original, copy, lasting=False)
        with unenforced(path, copy, timeout_s) as connection:
            if version_of(connection, path) != newest_schema():
                migrate(connection, path, newest_schema(), clock)
        yield copy


def migrate(connection: Connection, path: Path, version: str, clock: Clock) -> None:
    """Bring the schema to a version, in the connection's transaction; no reference is left dangling.

    Rows that were none before are none afterwards.
    """
    if version == newest_schema() and version_of(connection, path) is None:
        for statement in newest_statements():
            connection.exec_driver_sql(statement)
    else:
        upgrade(connection, path, version)
    row = {"version": version, "autotune_version": __version__, "applied_at": date_text(clock())}
    connection.execute(schema_versions.insert(), row)


@cache
def newest_statements(snapshot: Path = SNAPSHOT) -> tuple[str, ...]:
    """What makes the newest schema: the snapshot's statements, or what migrations that came after it make of them."""
    statements = tuple(snapshot.read_text(encoding="utf-8").removesuffix(";\n").split(BETWEEN_STATEMENTS))
    if statements[-1] == _dated(newest_schema()):
        return statements
    engine = sqlite_engine(connect_to_memory)
    with closing(Database(snapshot, 0.0, engine, snapshot)) as memory, memory.write() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        upgrade(connection, snapshot, newest_schema())
        return statements_of(connection)


def statements_of(connection: Connection) -> tuple[str, ...]:
    """What makes a database's schema, in order, and says which it is."""
    made = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").scalars()
    version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    return (*made, _dated(version))


def _dated(version: str) -> str:
    return f"INSERT INTO alembic_version VALUES ('{version}')"  # noqa: S608


def upgrade(connection: Connection, path: Path, version: str) -> None:
    """Run the migrations up to a version, all of them where there is nothing yet."""
    from alembic import command  # 100 ms, needed only here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    whole = dangling_reference(connection) is None
    connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
    try:
        command.upgrade(config, version)
    except NOT_UNDERSTOOD as error:
        words = one_line(str(error))
        raise StoreError(f"{one_line(str(path))}: a row cannot be understood ({words}); restore a copy") from error
    finally:
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")
    dangling = dangling_reference(connection)
    if whole and dangling is not None:
        raise StoreError(f"{one_line(str(path))}: {dangling}; restore a copy of the file")


def dangling_reference(connection: Connection) -> str | None:
    """A row that refers to one that is not there, in words."""
    found = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchone()
    return None if found is None else f"row {found[1]} of {found[0]} refers to a row of {found[2]} that is not there"


@contextmanager
def unenforced(path: Path, file: Path, timeout_s: float) -> Iterator[Connection]:
    """A writing transaction on a connection that does not enforce references; who uses it checks them.

    `file` is what is written to: the path that the user named, or a copy.
    """
    with closing(unenforcing(path, file, timeout_s)) as database, database.write() as connection:
        yield connection


def unenforcing(path: Path, file: Path, timeout_s: float, clock: Clock = utc_now) -> Database:
    """The same for several transactions."""
    engine = sqlite_engine(lambda: connect_for_migrating(file, timeout_s, kept=file == path))
    return Database(path, timeout_s, engine, file, clock)


def _back_up(database: Database, version: str) -> Path:
    """Copy the file to one beside it that is named after its schema and the date."""
    path = database.path
    date = database.clock().astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = path.with_name(f"{path.stem}.schema-{version}.{date}{path.suffix}")
    begun = kept.with_name(f"{kept.name}.part")
    try:
        _copy(database, begun, lasting=True)
        os.replace(begun, kept)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            begun.unlink()
        shown, beside = one_line(str(path)), one_line(str(kept))
        raise StoreError(
            f"{shown}: schema {version} must be brought to {newest_schema()}, but a copy cannot be kept as {beside} "
            f"({one_line(str(error))}); make room or copy the file elsewhere"
        ) from error
    return kept


def _copy(database: Database, to: Path, *, lasting: bool) -> None:
    """Copy what is committed, page by page; `lasting`: so that the copy outlasts a power cut."""
    with (
        closing(connect_for_reading(database.file, database.timeout_s)) as raw,
        closing(sqlite3.connect(to, isolation_level=None)) as target,
    ):
        if not lasting:
            target.execute("PRAGMA synchronous = OFF")
        raw.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
