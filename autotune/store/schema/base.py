"""The base of every table: how SQLite stores a Python type, and the constraints that tables share.

The modules of tables do without `from __future__ import annotations`: SQLAlchemy would evaluate each annotation's text.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import INTEGER, REAL, CheckConstraint, Constraint, Index
from sqlalchemy.orm import DeclarativeBase, MappedAsDataclass, mapped_column

from autotune.store.schema.types import Date, Flag, Numbers, Object, Text, Words
from autotune.trial import ACCURACY_CLASSES, LEAST, MOST

Id = Annotated[int, mapped_column(primary_key=True)]


class Base(MappedAsDataclass, DeclarativeBase):
    """A row. `type_annotation_map` says how SQLite stores a Python type."""

    type_annotation_map: ClassVar[Mapping[Any, Any]] = {
        int: INTEGER,
        float: REAL,
        bool: Flag,
        str: Text,
        datetime: Date,
        tuple[float, ...]: Numbers,
        tuple[int, ...]: Numbers,
        tuple[str, ...]: Words,
        Mapping[str, Any]: Object,
    }


def table(*constraints: Constraint | Index, comment: str, rowid: bool = True) -> tuple[Any, ...]:
    """The `__table_args__` of a STRICT table; its comment stands in `.schema`."""
    return (*constraints, {"comment": comment, "sqlite_strict": True, "sqlite_with_rowid": rowid})


def is_one_of(column: str, words: tuple[str, ...]) -> CheckConstraint:
    """One of these words, or NULL."""
    return CheckConstraint(f"{column} IN ({', '.join(repr(str(word)) for word in words)})")


def is_json(column: str, kind: str = "object") -> CheckConstraint:
    """A JSON object or array, or NULL."""
    return CheckConstraint(f"{column} IS NULL OR json_valid({column}) AND json_type({column}) = '{kind}'")


def is_date(*columns: str) -> CheckConstraint:
    """Dates as `date_text` writes them, or NULL."""
    dated = "({0} IS NULL OR julianday({0}) IS NOT NULL AND {0} LIKE '____-__-__T%Z')"
    return CheckConstraint(" AND ".join(map(dated.format, columns)))


def is_measured(column: str) -> CheckConstraint:
    """A time or a rate, or NULL."""
    return CheckConstraint(f"{column} BETWEEN {LEAST} AND {MOST}")


CLASSES = ("", *ACCURACY_CLASSES)
"""of accuracy; empty for what was not rendered"""
ORIGIN = "measured here, or imported by a merge: unverified until re-timed here"
