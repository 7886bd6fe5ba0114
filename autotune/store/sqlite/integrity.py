"""Check a file with SQLite's own checks, which include every constraint of the tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from autotune.store.schema.tables import metadata
from autotune.store.schema.texts import paragraph_id
from autotune.store.sqlite.error_messages import damaged


def check_whole(raw: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError if the file has a broken page, a row that breaks a constraint or a dangling reference."""
    missing = sorted(metadata.tables.keys() - {name for (name,) in raw.execute("SELECT name FROM sqlite_master")})
    if missing:
        raise damaged(path, f"no table {missing[0]}")
    try:
        (found,) = raw.execute("PRAGMA integrity_check(1)").fetchone()
        dangling = raw.execute("PRAGMA foreign_key_check").fetchone()
        paragraphs = raw.execute("SELECT id, text FROM paragraphs").fetchall() if found == "ok" else []
    except (sqlite3.DatabaseError, UnicodeError) as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        raise damaged(path, str(error)) from error
    if found != "ok":
        raise damaged(path, found)
    if dangling is not None:
        raise damaged(path, f"row {dangling[1]} of {dangling[0]} refers to a row of {dangling[2]} that does not exist")
    for row_id, text in paragraphs:
        if paragraph_id(text) != row_id:
            raise damaged(path, f"row {row_id} of paragraphs has another text than its id says")
