"""Rows of any table: insert them, find their ids, and convert them to records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, RowMapping, Select, Table, func, select
from sqlalchemy.dialects.sqlite import insert as insert_new

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

from autotune.store.schema.column_kinds import Values

Record = TypeVar("Record", bound="DataclassInstance")


def insert(connection: Connection, table: Table, values: Values) -> int:
    """Insert a row and return its id."""
    return int(connection.execute(table.insert(), values).lastrowid)


def insert_unless_there(connection: Connection, table: Table, values: Values) -> int | None:
    """Insert a row and return its id, or None if a row with the same identity exists."""
    result = connection.execute(insert_new(table).on_conflict_do_nothing(), values)
    return int(result.lastrowid) if result.rowcount else None


def identify(connection: Connection, table: Table, identity: Values, rest: Values) -> int:
    """Return the id of the row with this identity, inserting it with the values in `rest` if there is none."""
    matches = [table.c[name] == value for name, value in identity.items()]
    found = connection.execute(select(table.c.id).where(*matches)).scalar_one_or_none()
    return insert(connection, table, {**identity, **rest}) if found is None else int(found)


def among(column: Column[Any], values: Iterable[int | str]) -> ColumnElement[bool]:
    """Return the condition that a column has one of these values. There may be any number of values."""
    return column.in_(select(func.json_each(json.dumps([*values])).table_valued("value").c.value))


def rows_of(
    connection: Connection, statement: Select[*tuple[Any, ...]], values: Mapping[str, Any] | None = None
) -> Iterator[RowMapping]:
    """Yield the rows of a statement, keyed by column."""
    return (row._mapping for row in connection.execute(statement, values or {}))


@cache
def _columns(
    record: type[DataclassInstance], tables: tuple[Table, ...], others: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Column[Any], ...]]:
    """Return those fields of a record that are columns of these tables, except `others`, and the columns."""
    names = {field.name for field in fields(record)}.difference(others)
    found = {name: table.c[name] for table in reversed(tables) for name in names if name in table.c}
    return tuple(found), tuple(found.values())


def record_of(record: type[Record], row: RowMapping, /, *tables: Table, **rest: object) -> Record:
    """Make a record from a row.

    A field is the column of the same name in the first of these tables that has one, or a value in `rest`.
    """
    names, columns = _columns(record, tables, tuple(rest))
    return record(**dict(zip(names, map(row.__getitem__, columns), strict=True)), **rest)


def values_of(record: DataclassInstance, table: Table) -> Values:
    """Return those fields of a record that are columns of a table, with their values."""
    return {name: getattr(record, name) for name in _shared_names(type(record), table)}


@cache
def _shared_names(record: type[DataclassInstance], table: Table) -> tuple[str, ...]:
    """Return the names of those fields of a record that are columns of a table."""
    return tuple(field.name for field in fields(record) if field.name in table.c)


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is infinite or NaN."""
    return value if value is not None and math.isfinite(value) else None
