"""Dump a database as SQL, and create a database from a dump."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from autotune import __version__
from autotune.atomic_write import publish, sibling_temp
from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.store.schema.migrations import newest_schema
from autotune.store.sqlite.connections import check_whole, connect_for_reading, translate_errors
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, path_of, utc_now
from autotune.store.sqlite.open_database import open_for_reading, schema_of

_ALLOWED = frozenset(
    {
        *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_INSERT),
        *(sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT),
        sqlite3.SQLITE_FUNCTION,
    }
)
"""The operations that a dump may use, apart from CREATE's own changes to sqlite_master."""
SHOWN_CHARACTERS = 200
"""the number of characters of a forbidden statement that an error message shows"""
_STATISTICS = ("ANALYZE", 'DELETE FROM "sqlite_stat', 'INSERT INTO "sqlite_stat')


def dump(url: str | Path, write: Callable[[str], object]) -> int:
    """Write SQL statements that recreate the database, and return the number of rows."""
    with (
        closing(open_for_reading(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)) as database,
        translate_errors(database.path, LOCK_TIMEOUT_S),
        closing(connect_for_reading(database.file, LOCK_TIMEOUT_S)) as raw,
    ):
        raw.execute("BEGIN")
        write(f"-- autotune {__version__}, schema {newest_schema()}\n")
        count = 0
        for statement in raw.iterdump():
            if not statement.startswith(_STATISTICS):
                write(f"{statement}\n")
                count += statement.startswith("INSERT")
    return count


def load(text: str, name: str, url: str | Path) -> int:
    """Create a database from a dump, and return the number of rows.

    Raises StoreError if the file already exists. If the text contains statements other than CREATE and INSERT, or rows
    that break a constraint, nothing is loaded.
    """
    path = path_of(url)
    shown = one_line(str(path))
    if path.exists():
        raise StoreError(f"{shown}: exists already; `load` creates a new database; give another --db")
    if not path.parent.is_dir():
        raise StoreError(f"{shown}: there is no folder {one_line(str(path.parent))}; create it first")
    with sibling_temp(path) as begun:
        with translate_errors(path, LOCK_TIMEOUT_S), closing(sqlite3.connect(begun, isolation_level=None)) as raw:
            raw.execute("PRAGMA synchronous = OFF")
            raw.set_authorizer(_authorize)
            try:
                raw.executescript(text)
            except (sqlite3.DatabaseError, ValueError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                    raise
                raise StoreError(
                    f"{name}: not a dump of autotune ({one_line(str(error)[:SHOWN_CHARACTERS])}); nothing was loaded"
                ) from error
            count = raw.total_changes
        if schema_of(begun, LOCK_TIMEOUT_S) is None:
            raise StoreError(f"{name}: the dump is empty; nothing was loaded")
        with closing(connect_for_reading(begun, LOCK_TIMEOUT_S)) as raw:
            check_whole(raw, Path(name))
        if not publish(begun, path):
            raise StoreError(f"{shown}: cannot be created; give another --db")
    return count


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _inner: str | None) -> int:
    if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master":
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
