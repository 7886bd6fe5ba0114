"""One SQLite file: its path, connections and transactions, its errors in words.

What knows SQLite by name is in this package: the URL, WAL, BEGIN IMMEDIATE, the pragmas.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import LRUCache

from autotune.errors import DISK_IS_FULL, StoreError, StudyError, TemplateError
from autotune.reading import check_regular
from autotune.store.column_types import date_text
from autotune.store.sqlite.hidden_rows import Fault, Hidden, hide_rows

WAL_RETRY_S = 0.005
"""pause between attempts to switch to WAL, which SQLite's busy timeout does not cover"""

LOCK_TIMEOUT_S = 30.0
"""how long a transaction waits for another process's"""

LOG_PAGES = 8000
"""pages of 4 KB that the log may take before a commit folds it into the file, which waits for the disk"""

LOG_INDEX_BYTES = 1 << 15
"""of the file that SQLite maps beside a log (https://www.sqlite.org/walformat.html, 2.2): no room for less is none"""

LEAST_BYTES = 512
"""of an SQLite file that is not empty: its smallest page (file format, 1.3.2)"""

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


class UnreadableRow(StoreError):
    """A row cannot be understood."""


def utc_now() -> datetime:
    """The date that rows get unless a caller brings a clock of its own."""
    return datetime.now(UTC)


def one_line(text: str) -> str:
    """The text on one line, control characters escaped."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


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
        """A transaction that holds the write lock from its start."""
        if self.writable is not None:
            self._turn_to(self.writable())
        with in_words(self.path, self.timeout_s), self._writing:
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
        """A transaction that sees one state of the file. Raises UnreadableRow for what comes of a row that is none."""
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

    def _turn_to(self, opened: Database) -> None:
        """Be another database from now on, which is open for writing."""
        self.close()
        self.engine, self.reader, self.file, self.closing = opened.engine, opened.reader, opened.file, opened.closing
        self.writable = None

    def close(self) -> None:
        """Close every connection; the last one to leave folds the log into the file, if it may write."""
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


def is_sqlite(path: Path) -> bool:
    """Whether a file claims to be an SQLite database, found out by SQLite. Raises OSError when it cannot be read."""
    status = path.stat()
    check_regular(status)
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if status.st_size < LEAST_BYTES:  # no connection can hold a lock on it
        return path.read_bytes().startswith(b"SQLite format 3\0")
    try:
        with closing(connect_for_reading(path, 0.0)) as raw:
            raw.execute("SELECT 1 FROM sqlite_master").close()
    except sqlite3.Error as error:  # any other error than this one is a database's
        return error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_NOTADB
    return True


def connect_beside(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A second connection to a file that this process has open already; SQLite itself refuses it every write."""
    return _connect_read_only(path, "mode=ro", timeout_s)


def connect_for_reading(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection that changes nothing in the file and leaves nothing beside it that was not there."""
    # A file in WAL mode makes SQLite create -wal and -shm beside it, even for a reader; only a connection
    # that may write removes them when it is the last one. But where a killed writer has left its log, such a
    # connection would fold it into the file.
    return _connect_read_only(path, "mode=rw" if _writable(path) and not log_state(path) else "mode=ro", timeout_s)


def fold_log(path: Path, timeout_s: float, read: LogState) -> None:
    """Fold the log of a writer that ended while this process read, and so could not fold it itself.

    `read` is what the log was when reading began; one that is still so is left alone.
    """
    if read and _writable(path) and log_state(path) not in (None, read):
        with closing(_connect(path, "mode=rw", timeout_s)) as raw:
            raw.execute("SELECT 1 FROM sqlite_master").close()


def _connect_read_only(path: Path, options: str, timeout_s: float) -> sqlite3.Connection:
    # The file is never opened but by SQLite: closing a descriptor of one's own would drop the locks that this
    # process's other connections hold on it (https://www.sqlite.org/howtocorrupt.html, 2.2).
    raw = _connect(path, options, timeout_s)
    if not log_state(path):
        try:
            _prepared(raw, "SELECT 1 FROM sqlite_master")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in NO_LOG_CAN_BE_MADE or log_state(path):
                raise
            # In WAL mode, without a log, where none can be made: it is read as one that nobody changes.
            raw = _connect(path, "mode=ro&immutable=1", timeout_s)
    return _prepared(raw, "PRAGMA query_only = ON")


LogState = tuple[int, int] | None
NO_LOG_CAN_BE_MADE = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
)
"""what SQLite says of a folder that may not be written, and of a full disk"""


def log_state(path: Path) -> LogState:
    """Size and date of what the log beside a file holds; None: nothing."""
    try:
        status = Path(f"{path}-wal").stat()
    except FileNotFoundError:
        return None
    return (status.st_size, status.st_mtime_ns) if status.st_size else None


def _writable(path: Path) -> bool:
    return may_write(path) and may_write(path.parent)


def may_write(path: Path) -> bool:
    """Whether this process may write there, as opening it would decide."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


@contextmanager
def in_words(path: Path, timeout_s: float) -> Iterator[None]:
    """Turn SQLite's errors into a StoreError of one line."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if UNDECODED in str(cause):
            shown, words = one_line(str(path)), one_line(str(cause))
            raise UnreadableRow(f"{shown}: a row is not UTF-8 ({words}); restore a copy") from error
        known = cause if isinstance(cause, sqlite3.Error) else None
        raise StoreError(_words(path, timeout_s, known, str(cause))) from error


UNDECODED = "Could not decode to UTF-8"
"""what Python says of text that is none"""


def _words(path: Path, timeout_s: float, error: sqlite3.Error | None, message: str) -> str:
    """What an SQLite error means and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    meaning = {
        sqlite3.SQLITE_BUSY: f"locked by another process for more than {timeout_s:g} s; end it or wait for it",
        sqlite3.SQLITE_LOCKED: f"locked by another process for more than {timeout_s:g} s; end it or wait for it",
        sqlite3.SQLITE_READONLY: "the file is read-only; make it writable or name another database",
        sqlite3.SQLITE_CORRUPT: "the file is damaged or cut short; restore a copy or try sqlite3's .recover",
        sqlite3.SQLITE_NOTADB: "not an SQLite file; give the path of a results database",
        sqlite3.SQLITE_FULL: DISK_IS_FULL,
        sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the path and the permissions of its folder",
        sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk",
    }.get(code)
    if code == sqlite3.SQLITE_IOERR and _disk_is_full(path):  # which SQLite says only of pages, not of what it maps
        meaning = DISK_IS_FULL
    shown = one_line(str(path))
    return f"{shown}: {one_line(message)}" if meaning is None else f"{shown}: {meaning} ({one_line(message)})"


def _disk_is_full(path: Path) -> bool:
    """Whether a file's disk has no room for what SQLite keeps beside it."""
    try:
        return shutil.disk_usage(path.absolute().parent).free < LOG_INDEX_BYTES
    except OSError:
        return False


def _connect(path: Path, options: str, timeout_s: float) -> sqlite3.Connection:
    # isolation_level=None: transactions begin where this package says, not where the driver guesses.
    # check_same_thread=False: the pool hands a connection to one thread at a time.
    raw = sqlite3.connect(
        f"file://{quote(os.fsencode(path.absolute()))}?{options}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    return _prepared(raw, "PRAGMA trusted_schema = OFF")  # a file's views and triggers call harmless functions only


def _prepared(raw: sqlite3.Connection, *statements: str) -> sqlite3.Connection:
    """A connection after these statements; closed where one of them fails, as on a file that is no database."""
    try:
        for statement in statements:
            raw.execute(statement).close()
    except BaseException:
        raw.close()
        raise
    return raw


def connect_for_writing(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection that enforces references."""
    log = f"PRAGMA wal_autocheckpoint = {LOG_PAGES}"
    raw = _connect(path, "mode=rwc", timeout_s)
    return _prepared(raw, "PRAGMA foreign_keys = ON", "PRAGMA synchronous = NORMAL", log)


def connect_for_migrating(path: Path, timeout_s: float, *, kept: bool) -> sqlite3.Connection:
    """A connection for making tables anew, as https://www.sqlite.org/lang_altertable.html#otheralter says.

    Text that is not UTF-8 can be read, and cannot be written. A file that is not kept need not outlast a power cut.
    """
    raw = _connect(path, "mode=rwc", timeout_s)
    raw.text_factory = _escaped_where_not_utf8
    return _prepared(raw, *MAKING_TABLES_ANEW, f"PRAGMA synchronous = {'FULL' if kept else 'OFF'}")


def connect_to_memory() -> sqlite3.Connection:
    """The same to a database of its own that no file holds."""
    return _prepared(sqlite3.connect(":memory:", isolation_level=None), *MAKING_TABLES_ANEW)


MAKING_TABLES_ANEW = ("PRAGMA foreign_keys = OFF", "PRAGMA legacy_alter_table = ON")


def _escaped_where_not_utf8(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def connect_to_nothing() -> sqlite3.Connection:
    """A connection to a database of its own, in a temporary file that no folder lists; for rows of no use later."""
    return _prepared(sqlite3.connect("", isolation_level=None), "PRAGMA journal_mode = OFF", "BEGIN")


def switch_to_wal(path: Path, timeout_s: float) -> None:
    """Make the file keep a log, so that readers and a writer do not wait for each other."""
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
