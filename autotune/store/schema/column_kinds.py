"""A function for each kind of column, with the constraint of that kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from sqlalchemy import INTEGER, REAL, CheckConstraint, Column, ForeignKey, Index, MetaData, Table, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.types import TypeEngine

from autotune.store.schema.types import Date, Flag, Json, Text
from autotune.trial import LEAST, MOST

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

metadata = MetaData()


def table(
    name: str, comment: str, *items: Column[Any] | CheckConstraint | Index | UniqueConstraint, rowid: bool = True
) -> Table:
    """A STRICT table with the constraints of its columns; `.schema` shows the comments."""
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
"""A time or a rate."""
text = _kind(Text)
flag = _kind(Flag, "{0} IN (0, 1)")
date = _kind(Date, "{0} IS NULL OR julianday({0}) IS NOT NULL AND {0} LIKE '____-__-__T%Z'")
"""As `date_text` writes it."""
array = _kind(Json, _JSON.format("array"))
"""A JSON array, in Python a tuple."""
mapping = _kind(Json, _JSON.format("object"))
"""A JSON object, in Python a dict."""
json_object = _kind(Text, _JSON.format("object"))
"""A JSON object, in Python its text."""


_PLAIN = {int: integer, float: real, str: text, bool: flag}


def columns_of(
    record: type[DataclassInstance], comment: str | None = None, *, null: bool = False, besides: Collection[str] = ()
) -> Iterator[Column[Any]]:
    """A column for each plain field of a record, except those `besides`; the comment is that of the first.

    The default of a field is that of its column, so that the field can be added to a file that has rows.
    """
    hints = get_type_hints(record)
    for field in fields(record):
        kind, *more = get_args(hints[field.name]) or (hints[field.name],)
        if field.name in besides or kind not in _PLAIN:
            continue
        may_be_null = null or type(None) in more
        default = field.default if kind is str else sql(f"{field.default:g}")
        yield _PLAIN[kind](field.name, comment, null=may_be_null, server_default=None if may_be_null else default)
        comment = None


def word(name: str, words: tuple[str, ...], comment: str | None = None, **more: Any) -> Column[Any]:
    """One of the given words."""
    listed = ", ".join(repr(str(word)) for word in words)
    return _column(Text, f"{name} IN ({listed})", name, comment, **more)


def key(name: str = "id", comment: str | None = None) -> Column[Any]:
    """The number of a row."""
    return Column(name, INTEGER, primary_key=True, comment=comment)


def reference(name: str, of: str, comment: str | None = None, *, null: bool = False, **more: Any) -> Column[Any]:
    """The id of a row of another table."""
    return Column(name, ForeignKey(f"{of}.id"), comment=comment, nullable=null, **more)


def origin(comment: str) -> Column[Any]:
    """Whether a row was measured here or copied by a merge."""
    return word("origin", ("measured", "imported"), comment, server_default="measured")
