"""One SQLite file: its path, engine and transactions.

Only this package deals with SQLite itself: the URL, WAL, BEGIN IMMEDIATE and the pragmas.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import LRUCache

from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.resources import RECORDED, recorded_database, shown_results
from autotune.store.sqlite.connections import translate_errors

LOCK_TIMEOUT_S = 60.0
"""seconds that a transaction waits for another process; merging 20,000 trials holds the lock for several seconds"""

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current date, which new rows get unless the caller passes a different clock."""
    return datetime.now(UTC)


@dataclass(slots=True)
class Database:
    """An open results database."""

    path: Path
    """the path as the user named it"""
    timeout_s: float
    engine: Engine
    file: Path
    """the file that is open: `path`, or a copy of `path` with the newest schema"""
    clock: Clock = utc_now
    """returns the date of new rows"""
    closing: ExitStack = field(default_factory=ExitStack)
    """resources to close with the database"""
    _reader: Engine = field(init=False, repr=False)
    _closed: bool = field(default=False, init=False, repr=False)
    _writer: Connection | None = field(default=None, init=False, repr=False)
    """the writing connection, kept between writes because getting one from the pool takes as long as storing a row"""
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self._reader = self.engine.execution_options(reading=True)

    @property
    def shown(self) -> str:
        """How messages refer to the database, on one line."""
        return one_line(shown_results(self.path))

    def now(self) -> datetime:
        """Return the date for new rows."""
        return self.clock().astimezone(UTC)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that holds the write lock from the start. Raises StoreError if the database is closed."""
        with translate_errors(self.path, self.timeout_s), self._writing:
            self._check_open()
            connection, self._writer = self._writer or self.engine.connect(), None
            try:
                with connection.begin():
                    yield connection
            except BaseException:
                connection.close()
                raise
            self._writer = connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees a single state of the file. Raises StoreError if the database is closed."""
        self._check_open()
        with translate_errors(self.path, self.timeout_s), self._reader.begin() as connection:
            yield connection

    def _check_open(self) -> None:
        if self._closed:  # otherwise the engine would reopen the file, and nobody would close it
            raise StoreError(f"{self.shown}: is closed; open it again")

    def close(self) -> None:
        """Close all connections. The last process to close the file moves the log into it, if it is allowed to
        write.
        """
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        self.engine.dispose()
        self.closing.close()


def path_of(name: str | Path) -> Path:
    """Return the file, given its path or the name of bundled results.

    Raises StoreError for URLs and in-memory databases.
    """
    if isinstance(name, Path):
        return name
    if name in RECORDED:
        return recorded_database(name)
    if "://" in name:
        raise StoreError(f"{one_line(name)}: results are kept in an SQLite file; give its path")
    if name in ("", ":memory:"):
        raise StoreError("a database in memory would be lost at the end; give the path of a file")
    return Path(name)


@cache
def _dialect() -> tuple[Dialect, LRUCache[object, object]]:
    """Return the dialect and the cache of compiled statements shared by all of this process's engines.

    The cache is as large as SQLAlchemy's cache for a single engine.
    """
    # SQLAlchemy logs a signal that arrives while it closes a connection, with a traceback, if no logging is set up.
    logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())
    engine = create_engine("sqlite+pysqlite://", poolclass=NullPool)
    with closing(engine.connect()):  # the dialect asks for the version of SQLite
        return engine.dialect, LRUCache(500)


def sqlite_engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    """Create an engine whose transactions hold the write lock from the start, unless they only read."""
    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool)
    engine.dialect, compiled = _dialect()
    engine.update_execution_options(compiled_cache=compiled)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine
