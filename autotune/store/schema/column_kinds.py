"""Kinds of columns: the Python value, the type in SQLite's STRICT tables, and the constraint."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from sqlalchemy import (
    INTEGER,
    REAL,
    TEXT,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
)
from sqlalchemy import text as sql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from autotune.trial import LEAST, MOST

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Values = dict[str, Any]
"""Column names and values, for an INSERT or an UPDATE."""


def escaped(text: str) -> str:
    """Escape NUL and characters that UTF-8 can't encode, so that every program can read the text."""
    if text.isprintable() and text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class Text(TypeDecorator[str]):
    """A text column. The text is stored as returned by `escaped`."""

    impl = TEXT
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else escaped(value)


class Flag(TypeDecorator[bool]):
    """A column with 0 or 1, which is a bool in Python."""

    impl = INTEGER
    cache_ok = True

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> int | None:  # noqa: ARG002, FBT001
        return None if value is None else int(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> bool | None:  # noqa: ARG002
        return None if value is None else bool(value)


class Date(TypeDecorator[datetime]):
    """A date, stored as ISO 8601 in UTC, always with microseconds, so that the texts sort by time."""

    impl = TEXT
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else date_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else datetime.fromisoformat(value)


class Json(TypeDecorator[Any]):
    """A JSON object or array, which is a dict or a tuple in Python."""

    impl = TEXT
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else as_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        found = None if value is None else json.loads(value)
        return tuple(found) if isinstance(found, list) else found


def as_json(value: object) -> str:
    """Return a value as ASCII JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def date_text(date: datetime) -> str:
    """Return a date in the database's format."""
    return date.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seven_digits(time_us: float) -> float:
    """Round a time to the precision of CUDA's event timer, which returns milliseconds as a float32."""
    return float(f"{time_us:.7g}")


metadata = MetaData()


def table(
    name: str, comment: str, *items: Column[Any] | CheckConstraint | Index | UniqueConstraint, rowid: bool = True
) -> Table:
    """Declare a STRICT table with its columns' constraints. `.schema` shows the comments."""
    rules = [CheckConstraint(rule) for item in items if (rule := item.info.get("rule"))]
    return Table(name, metadata, *items, *rules, comment=comment, sqlite_strict=True, sqlite_with_rowid=rowid)


def _column(
    kind: type[TypeEngine[Any]],
    rule: str,
    name: str,
    comment: str | None = None,
    *,
    null: bool = False,
    **more: Any,
) -> Column[Any]:
    return Column(name, kind, comment=comment, nullable=null, info={"rule": rule.format(name)}, **more)


def _kind(kind: type[TypeEngine[Any]], rule: str = "") -> Callable[..., Column[Any]]:
    return partial(_column, kind, rule)


_JSON = "{{0}} IS NULL OR json_valid({{0}}) AND json_type({{0}}) = '{}'"

integer = _kind(INTEGER)
real = _kind(REAL)
measured = _kind(REAL, f"{{0}} BETWEEN {LEAST} AND {MOST}")
"""A column with a time or a rate."""
text = _kind(Text)
flag = _kind(Flag, "{0} IN (0, 1)")
date = _kind(Date, "{0} IS NULL OR julianday({0}) IS NOT NULL AND {0} LIKE '____-__-__T%Z'")
"""A date, in the format of `date_text`."""
array = _kind(Json, _JSON.format("array"))
"""A column with a JSON array, in Python a tuple."""
mapping = _kind(Json, _JSON.format("object"))
"""A column with a JSON object, in Python a dict."""
json_object = _kind(Text, _JSON.format("object"))
"""A column with a JSON object, in Python the text of the object."""


_PLAIN = {int: integer, float: real, str: text, bool: flag}


def columns_of(
    record: type[DataclassInstance], comment: str | None = None, *, null: bool = False, besides: Collection[str] = ()
) -> Iterator[Column[Any]]:
    """Yield a column for each plain field of a record, except those in `besides`.

    A column's comment is the field's text; `comment` replaces that of the first column. A column has the same default
    as the field, so that fields can be added to a file that already contains rows.
    """
    hints = get_type_hints(record)
    for field in fields(record):
        kind, *more = get_args(hints[field.name]) or (hints[field.name],)
        if field.name in besides or kind not in _PLAIN:
            continue
        may_be_null = null or type(None) in more
        default = None
        if not may_be_null and field.default is not MISSING:
            default = field.default if kind is str else sql(f"{field.default:g}")
        column = _PLAIN[kind](field.name, comment, null=may_be_null, server_default=default)
        column.info["record"] = record
        yield column
        comment = None


def word(name: str, words: tuple[str, ...], comment: str | None = None, **more: Any) -> Column[Any]:
    """Declare a column that contains one of the given words."""
    listed = ", ".join(repr(str(word)) for word in words)
    return _column(Text, f"{name} IN ({listed})", name, comment, **more)


def key(name: str = "id", comment: str | None = None) -> Column[Any]:
    """Declare the column that numbers the rows."""
    return Column(name, INTEGER, primary_key=True, comment=comment)


def reference(name: str, of: str, comment: str | None = None, *, null: bool = False, **more: Any) -> Column[Any]:
    """Declare a column with the id of a row in another table."""
    return Column(name, ForeignKey(f"{of}.id"), comment=comment, nullable=null, **more)


def origin(comment: str) -> Column[Any]:
    """Declare the column that says whether a row was measured here or copied by a merge."""
    return word("origin", ("measured", "imported"), comment, server_default="measured")
