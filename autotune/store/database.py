"""One SQLite file: found, checked, opened for writing or reading, brought to the newest schema, its errors in words.

Everything that knows SQLite by name is here and in `readonly`: the URL, WAL, BEGIN IMMEDIATE, the pragmas.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from autotune import __version__
from autotune.errors import StoreError, StudyError
from autotune.store.rows import date_text
from autotune.store.tables import schema_versions

SCHEMA = "0002"
"""The newest migration, compared before Alembic is imported; a test keeps it true."""
READABLE = ("0001", SCHEMA)
"""Schemas that differ from the newest only by tables that reading can do without"""
MIGRATIONS = Path(__file__).parent / "migrations"
HEADER_BYTES = 100
"""SQLite file format, 1.3: the database header"""
MAGIC = b"SQLite format 3\0"
WAL_RETRY_S = 0.005
"""pause between attempts to switch to WAL, which SQLite's busy timeout does not cover"""

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The date that rows get unless a caller brings a clock of its own."""
    return datetime.now(UTC)


def one_line(text: str) -> str:
    """The text on one line, control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


@dataclass(frozen=True, slots=True)
class Database:
    """An open results database."""

    path: Path
    timeout_s: float
    engine: Engine

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its start."""
        with in_words(self.path, self.timeout_s), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the file."""
        try:
            with in_words(self.path, self.timeout_s), self.engine.execution_options(reading=True).begin() as connection:
                yield connection
        except (ValueError, zlib.error, StudyError) as error:  # of JSON, a date, an enum, a source, a problem
            shown = one_line(str(self.path))
            raise StoreError(f"{shown}: a row cannot be understood ({one_line(str(error))}); restore a copy") from error

    def close(self) -> None:
        """Close every connection; the last one to leave folds the log into the file."""
        self.engine.dispose()


def path_of(url: str | Path) -> Path:
    """The file that a path or an SQLAlchemy URL names. Raises StoreError for any other database."""
    if isinstance(url, Path):
        return url
    text = url
    if "://" in url:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise StoreError(f"{one_line(url)}: not a database URL; give a path or sqlite:///PATH") from error
        if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise StoreError(f"{one_line(url)}: {parsed.drivername} is not supported; give a path or sqlite:///PATH")
        if parsed.host or parsed.query:
            raise StoreError(
                f"{one_line(url)}: a host or options are not supported; give a path or sqlite:///PATH "
                f"(four slashes for an absolute path)"
            )
        text = parsed.database or ""
    if text in ("", ":memory:"):
        raise StoreError("a database in memory would be lost at the end; give the path of a file")
    if "\0" in text:
        raise StoreError(f"{one_line(text)}: a path cannot contain a null character")
    return Path(text)


def open_for_writing(url: str | Path, *, timeout_s: float, clock: Clock) -> Database:
    """Open a results database, made when there is none and migrated when it is older. Raises StoreError."""
    path = path_of(url)
    shown = one_line(str(path))
    exists = _inspect(path)
    if exists and not _may_write(path):
        raise StoreError(f"{shown}: the file is read-only; make it writable or give another --db")
    if not _may_write(path.parent):
        raise StoreError(
            f"{shown}: the folder {one_line(str(path.parent))} is read-only and SQLite needs files beside the "
            f"database; give another --db"
        )
    database = Database(path, timeout_s, _engine(lambda: _connect_for_writing(path, timeout_s)))
    try:
        _check_or_migrate(database, clock)
    except BaseException:
        database.close()
        raise
    return database


def open_for_reading(url: str | Path, *, timeout_s: float) -> Database:
    """Open an existing results database without changing it; its folder may be read-only. Raises StoreError."""
    path = path_of(url)
    shown = one_line(str(path))
    if not _inspect(path):
        raise StoreError(f"{shown}: no such file; `autotune tune STUDY --db {shown}` makes one")
    database = Database(path, timeout_s, _engine(lambda: _connect_for_reading(path, timeout_s)))
    try:
        with database.read() as connection:
            version = _version(connection, path)
        if version is None:
            raise StoreError(f"{shown}: the database is empty; `autotune tune STUDY --db {shown}` fills it")
        if version not in READABLE:
            raise StoreError(
                f"{shown}: schema {version} is older than this autotune's {SCHEMA}; run a command that writes to it"
            )
    except BaseException:
        database.close()
        raise
    return database


def connect_beside(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A second connection to a file that this process has open already; SQLite itself refuses it every write."""
    raw = _connect(path, "mode=ro&immutable=1" if _frozen(path) else "mode=ro", timeout_s)
    raw.execute("PRAGMA query_only = ON")
    return raw


def _connect_for_reading(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection that leaves nothing beside the file."""
    # A file in WAL mode makes SQLite create -wal and -shm beside it, even for a reader; only a connection
    # that may write removes them when it is the last one.
    if _frozen(path):
        options = "mode=ro&immutable=1"
    else:
        options = "mode=rw" if _in_wal_mode(path) and _writable(path) else "mode=ro"
    raw = _connect(path, options, timeout_s)
    raw.execute("PRAGMA query_only = ON")
    return raw


def _frozen(path: Path) -> bool:
    """A file in WAL mode, without a log, where none can be made: it is read as one that nobody changes."""
    log = Path(f"{path}-wal")
    return _in_wal_mode(path) and not _writable(path) and not (log.exists() and log.stat().st_size)


def _writable(path: Path) -> bool:
    return _may_write(path) and _may_write(path.parent)


def _may_write(path: Path) -> bool:
    """Whether this process may write there, as opening it would decide."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


@contextmanager
def in_words(path: Path, timeout_s: float) -> Iterator[None]:
    """Turn SQLite's errors into a StoreError of one line."""
    try:
        yield
    except DBAPIError as error:
        cause = error.orig if isinstance(error.orig, sqlite3.Error) else None
        raise StoreError(_words(path, timeout_s, cause, str(error.orig))) from error
    except sqlite3.Error as error:
        raise StoreError(_words(path, timeout_s, error, str(error))) from error


def _words(path: Path, timeout_s: float, error: sqlite3.Error | None, message: str) -> str:
    """What an SQLite error means and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    meaning = {
        sqlite3.SQLITE_BUSY: f"locked by another process for more than {timeout_s:g} s; end it or wait for it",
        sqlite3.SQLITE_LOCKED: f"locked by another process for more than {timeout_s:g} s; end it or wait for it",
        sqlite3.SQLITE_READONLY: "the file is read-only; make it writable or give another --db",
        sqlite3.SQLITE_CORRUPT: "the file is damaged or cut short; restore a copy or try sqlite3's .recover",
        sqlite3.SQLITE_NOTADB: "not an SQLite file; give the path of a results database",
        sqlite3.SQLITE_FULL: "the disk is full; make room and run the command again",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the path and the permissions of its folder",
        sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk",
    }.get(code)
    shown = one_line(str(path))
    return f"{shown}: {one_line(message)}" if meaning is None else f"{shown}: {meaning} ({one_line(message)})"


def _inspect(path: Path) -> bool:
    """True when the file exists and begins as an SQLite file; an empty one counts as an empty database."""
    shown = one_line(str(path))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(f"{shown}: there is no folder {one_line(str(path.parent))}; create it first") from None
        return False
    except OSError as error:
        raise StoreError(f"{shown}: {error.strerror}; give the path of a file") from error
    if stat.S_ISDIR(mode):
        raise StoreError(f"{shown}: is a folder; give the path of a file in it, such as {shown}/autotune.db")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{shown}: is not a regular file; give the path of a file")
    header = _header(path)
    if header and not header.startswith(MAGIC):
        raise StoreError(f"{shown}: not an SQLite file; give the path of a results database or of a new file")
    return True


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except OSError as error:
        raise StoreError(f"{one_line(str(path))}: cannot be read: {error.strerror}; check its permissions") from error


def _in_wal_mode(path: Path) -> bool:
    return _header(path)[19:20] == b"\2"  # file format, 1.3.3: read version, 2 is WAL


def _connect(path: Path, options: str, timeout_s: float) -> sqlite3.Connection:
    # isolation_level=None: transactions begin where this package says, not where the driver guesses.
    # check_same_thread=False: the pool hands a connection to one thread at a time.
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?{options}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def _connect_for_writing(path: Path, timeout_s: float) -> sqlite3.Connection:
    raw = _connect(path, "mode=rwc", timeout_s)
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA synchronous = NORMAL")
    return raw


def _switch_to_wal(path: Path, timeout_s: float) -> None:
    """Make the file keep a log, so that readers and a writer do not wait for each other."""
    if _in_wal_mode(path):
        return
    deadline = time.monotonic() + timeout_s
    with in_words(path, timeout_s), closing(_connect(path, "mode=rwc", timeout_s)) as raw:
        while True:
            try:
                raw.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(WAL_RETRY_S)


def _engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _version(connection: Connection, path: Path) -> str | None:
    """The schema's version, None for an empty database. Raises StoreError when the file is not ours or too new."""
    shown = one_line(str(path))
    names = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    if not names:
        return None
    if not {"alembic_version", "schema_versions"} <= names:
        what = "an Optuna storage" if {"study_directions", "trial_values"} & names else "another program's database"
        raise StoreError(f"{shown}: {what}, not a results database of autotune; give another --db")
    version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    if not isinstance(version, str):
        raise StoreError(f"{shown}: the schema's version is missing; restore a copy of the file")
    if version > SCHEMA:
        newest = select(schema_versions.c.autotune_version).where(schema_versions.c.version == version)
        writer = connection.execute(newest).scalar_one_or_none() or "a newer one"
        raise StoreError(
            f"{shown}: schema {one_line(version)} is newer than this autotune's {SCHEMA}; "
            f"install autotune {one_line(str(writer))} or newer"
        )
    return version


def _check_or_migrate(database: Database, clock: Clock) -> None:
    """Bring the schema up to date. A file that is not ours is refused before anything in it changes."""
    with database.read() as connection:
        version = _version(connection, database.path)
    _switch_to_wal(database.path, database.timeout_s)
    if version == SCHEMA:
        return
    with database.write() as connection:
        if _version(connection, database.path) == SCHEMA:  # another process was quicker
            return
        _upgrade(connection)
        row = {"version": SCHEMA, "autotune_version": __version__, "applied_at": date_text(clock())}
        connection.execute(schema_versions.insert(), row)


def _upgrade(connection: Connection) -> None:
    from alembic import command  # 100 ms, needed only here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
