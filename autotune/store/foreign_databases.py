"""Databases of other programs that are named by URL: which one, and its errors in words, never with a password."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autotune.errors import StoreError
from autotune.printable import one_line

OPTUNA_ALONE = "version_info"
"""A table that each of Optuna's databases has and none of this project's, though both have `studies` and `trials`."""


@dataclass(frozen=True, slots=True)
class OptunaDatabase:
    """A database for Optuna's tables."""

    url: str
    """with the password"""
    shown: str
    """without it"""

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Raise StoreError, one line without a password, for what goes wrong there."""
        try:
            yield
        except (SQLAlchemyError, ImportError) as error:
            cause = error if isinstance(error, ImportError) else getattr(error, "orig", None) or error
            text = one_line(str(cause)).split(" Background on this error")[0]
            password = make_url(self.url).password
            text = text.replace(str(password), "***") if password else text
            raise StoreError(f"{self.shown}: {text}") from None


def optuna_database(storage: str) -> OptunaDatabase:
    """The database at a path or URL, which need not exist. Raises StoreError for a file that is not Optuna's."""
    text = storage if "://" in storage else f"sqlite:///{storage}"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError("--storage: not a database URL; give a path, sqlite:///PATH or such as mysql://...") from None
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() not in ("sqlite", "mysql", "postgresql"):
        raise StoreError(f"{shown}: Optuna keeps studies in sqlite, mysql and postgresql")
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise StoreError(f"{shown}: a database in memory would be lost at the end; give the path of a file")
        _check_file(Path(str(url.database)))
    return OptunaDatabase(url.render_as_string(hide_password=False), shown)


def _check_file(path: Path) -> None:
    """Raise StoreError for a file that has tables, but not Optuna's."""
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {path.parent}")
    if not path.exists():
        return
    if path.is_dir():
        raise StoreError(f"{path}: is a directory; give the path of a file")
    unwritten = (
        "" if Path(f"{path}-wal").exists() else "&immutable=1"
    )  # else SQLite makes a log beside a file that has none
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{unwritten}", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from None
    if tables and OPTUNA_ALONE not in tables:
        raise StoreError(
            f"{path}: holds other tables than Optuna's, of which some have the same names; give another file"
        )
