"""Connections to an SQLite file: for reading without a trace, for writing, for making tables anew."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from autotune.reading import check_regular
from autotune.store.sqlite.error_words import in_words

WAL_RETRY_S = 0.005
"""pause between attempts to switch to WAL, which SQLite's busy timeout does not cover"""

LOG_PAGES = 8000
"""pages of 4 KB that the log may take before a commit folds it into the file, which waits for the disk"""

LEAST_BYTES = 512
"""of an SQLite file that is not empty: its smallest page (file format, 1.3.2)"""


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
