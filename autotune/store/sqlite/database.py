"""One SQLite file: its path, engine and transactions.

What knows SQLite by name is in this package: the URL, WAL, BEGIN IMMEDIATE, the pragmas.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import LRUCache

from autotune.errors import StoreError, StudyError, TemplateError
from autotune.printable import one_line
from autotune.store.column_types import date_text
from autotune.store.sqlite.error_words import UnreadableRow, in_words
from autotune.store.sqlite.hidden_rows import Fault, Hidden, hide_rows

LOCK_TIMEOUT_S = 30.0
"""how long a transaction waits for another process's"""

Clock = Callable[[], datetime]
NOT_UNDERSTOOD = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    zlib.error,
)
"""What records raise that are made of a row which is none: of JSON, a date, an enum, a source."""


def utc_now() -> datetime:
    """The date that rows get unless a caller brings a clock of its own."""
    return datetime.now(UTC)


@dataclass(slots=True)
class Database:
    """An open results database."""

    path: Path
    """as the user named it"""
    timeout_s: float
    engine: Engine
    file: Path
    """what is open: the path, or a copy of it with the newest schema"""
    clock: Clock = utc_now
    """what dates new rows"""
    closing: ExitStack = field(default_factory=ExitStack)
    """what else ends with it"""
    writable: Callable[[], Database] | None = field(default=None, repr=False)
    """what opens the path itself for writing, called by the first write; None: this is open for it, or for reading"""
    hidden: Hidden = field(default_factory=dict, repr=False)
    """rows that cannot be understood, which no transaction that only reads sees"""
    find_faults: Callable[[Connection], Iterable[Fault]] = field(default=lambda _: (), repr=False)
    """what finds such rows"""
    reader: Engine = field(init=False, repr=False)
    """the engine, for transactions that only read"""
    _closed: bool = field(default=False, init=False, repr=False)
    _writer: Connection | None = field(default=None, init=False, repr=False)
    """kept from a write to the next: to take one and give it back takes as long as to store a row"""
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self.reader = self.engine.execution_options(reading=True)

    @property
    def shown(self) -> str:
        """The path on one line."""
        return one_line(str(self.path))

    def now(self) -> str:
        """The date that new rows get."""
        return date_text(self.clock())

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its start. Raises StoreError once it is closed."""
        with in_words(self.path, self.timeout_s), self._writing:
            self._check_open()
            if self.writable is not None:
                self._turn_to(self.writable())
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
        """A transaction that sees one state of the file.

        Raises UnreadableRow for what comes of a row that is none, StoreError once it is closed.
        """
        self._check_open()
        with self.understanding(), in_words(self.path, self.timeout_s), self.reader.begin() as connection:
            if self.hidden:
                hide_rows(connection, self.hidden)
            yield connection

    @contextmanager
    def understanding(self) -> Iterator[None]:
        """Make something of rows that were read. Raises UnreadableRow where that fails."""
        try:
            yield
        except (*NOT_UNDERSTOOD, StudyError, TemplateError) as error:
            words = one_line(str(error))
            raise UnreadableRow(
                f"{self.shown}: a row cannot be understood ({words}); `autotune dump --check` lists such rows"
            ) from error

    def _check_open(self) -> None:
        if self._closed:  # the engine would open the file again, and nobody would close it
            raise StoreError(f"{self.shown}: is closed; open it again")

    def _turn_to(self, opened: Database) -> None:
        """Be another database from now on, which is open for writing."""
        self._let_go()
        self.engine, self.reader, self.file, self.closing = opened.engine, opened.reader, opened.file, opened.closing
        self.writable = None

    def close(self) -> None:
        """Close every connection; the last one to leave folds the log into the file, if it may write."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self.engine.dispose()
        self.closing.close()


def path_of(url: str | Path) -> Path:
    """The file that a path or an SQLAlchemy URL names. Raises StoreError for any other database."""
    if isinstance(url, Path):
        return url
    text = url
    if "://" in url:
        shown = _without_secrets(url)
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise StoreError(f"{shown}: not a database URL; give a path or sqlite:///PATH") from None
        if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise StoreError(f"{shown}: {parsed.drivername} is not supported; give a path or sqlite:///PATH")
        if parsed.host or parsed.query or parsed.username or parsed.password:
            raise StoreError(
                f"{shown}: a host, a user or options are not supported; give a path or sqlite:///PATH "
                f"(four slashes for an absolute path)"
            )
        text = parsed.database or ""
    if text in ("", ":memory:"):
        raise StoreError("a database in memory would be lost at the end; give the path of a file")
    if "\0" in text:
        raise StoreError(f"{one_line(text)}: a path cannot contain a null character")
    return Path(text)


def _without_secrets(url: str) -> str:
    """A URL on one line without its user, password and options, whatever characters these are of."""
    scheme, _, rest = url.partition("://")
    kept = rest.rpartition("@")[2].partition("?")
    return one_line(f"{scheme}://{'***@' if '@' in rest else ''}{kept[0]}{'?***' if kept[1] else ''}")


@cache
def _dialect() -> tuple[Dialect, LRUCache[object, object]]:
    """Shared by all engines, so that a process compiles a statement once; it keeps as many as one engine would."""
    # SQLAlchemy tells of a signal that comes while it closes a connection: with a traceback, where nobody set a log.
    logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())
    engine = create_engine("sqlite+pysqlite://", poolclass=NullPool)
    with closing(engine.connect()):  # it asks for the version
        return engine.dialect, LRUCache(500)


def sqlite_engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool)
    engine.dialect, compiled = _dialect()
    engine.update_execution_options(compiled_cache=compiled)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine
