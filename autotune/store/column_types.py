"""What every table is made of: its metadata, kinds of columns, dates as text."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from sqlalchemy import Boolean, Column, Float, ForeignKey, Integer, MetaData, String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

SqlValue = int | float | str | bytes | bool | None
Values = dict[str, SqlValue]
"""Column to value, for an insert or an update."""

metadata = MetaData()
"""The tables; each noun's module declares its own. The migrations create them and say what each column means."""
views = MetaData()
"""Views, kept apart from what a migration must create as tables."""

LARGEST = 2**53
"""of ids, numbers and sizes: what JSON's readers keep exactly, and far from where SQLite's ids end"""
EARLIEST, LATEST = datetime(1, 1, 4, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
"""Dates that every time zone has, and that Python can tell the zone of."""


def escaped(text: str) -> str:
    """Text that every reader of the file can read: what UTF-8 cannot carry, and NUL, are escapes."""
    if text.isprintable() and text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class Text(TypeDecorator[str]):
    """Text, written as `escaped`."""

    impl = String
    cache_ok = True

    @property
    def python_type(self) -> type[str]:
        """Of its values; SQLAlchemy 2.0 does not know it by itself."""
        return str

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Escape lone surrogates and NUL."""
        return None if value is None else escaped(value)


def row_id() -> Column[int]:
    """The primary key."""
    return Column("id", Integer, primary_key=True)


def integer(name: str) -> Column[int]:
    """An integer, never NULL."""
    return Column(name, Integer, nullable=False)


def real(name: str) -> Column[float]:
    """A number, never NULL."""
    return Column(name, Float, nullable=False)


def flag(name: str) -> Column[bool]:
    """0 or 1, never NULL."""
    return Column(name, Boolean, nullable=False)


def text(name: str) -> Column[str]:
    """Text, never NULL."""
    return Column(name, Text, nullable=False)


def reference(name: str, target: str) -> Column[int]:
    """The id of a row of another table, never NULL."""
    return Column(name, ForeignKey(target), nullable=False)


def date_text(date: datetime) -> str:
    """ISO 8601 in UTC, microseconds always there, so that text sorts as time."""
    return date.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def date_of(text: str) -> datetime:
    """The date that `date_text` wrote. Raises ValueError for any other text."""
    date = datetime.fromisoformat(text)
    if len(text) == _LENGTH and text[-1] == "Z" and _FIRST <= text <= _LAST:  # as most are; dates take long to compare
        return date
    if date.tzinfo is None or not EARLIEST <= date <= LATEST:
        raise ValueError(f"{text!r} is not a date with a zone between the years 1 and 9999")
    return date


_FIRST, _LAST = date_text(EARLIEST), date_text(LATEST)
_LENGTH = len(_FIRST)


def finite(value: float | None) -> float | None:
    """The value, or None for what is not a number."""
    return value if value is not None and math.isfinite(value) else None
