"""Rows of any table: inserted, identified, numbered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Insert, RowMapping, Select, Table, Update, func, select
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.dialects.sqlite import insert as insert_new
from sqlalchemy.types import NullType

from autotune.store.column_types import LARGEST, Values, escaped

CHUNK = 500
"""rows written at once, ids in one IN list"""
Given = TypeVar("Given", bound=Sequence[Any])
Identity = TypeVar("Identity", int, str)
_AT_ONCE = 100  # rows that are fetched: one by one takes a tenth longer
_SOME = {"yield_per": _AT_ONCE}
_DIALECT = dialect(paramstyle="named")


@cache
def _sql(statement: Insert | Update | Select[*tuple[object, ...]], names: tuple[str, ...]) -> tuple[str, Values]:
    """A statement's text, with the values that it has itself."""
    compiled = statement.compile(dialect=_DIALECT, column_keys=names)
    return str(compiled), {name: value for name, value in compiled.params.items() if name not in names}


@cache
def _inserting(table: Table) -> Insert:
    return table.insert()


@cache
def _inserting_unless_there(table: Table) -> Insert:
    return insert_new(table).on_conflict_do_nothing()


def execute(connection: Connection, statement: Insert | Update, values: Values) -> CursorResult[Any]:
    """Run a statement as its text: SQLAlchemy takes longer to adapt a trial's values than SQLite to store them."""
    text, fixed = _sql(statement, tuple(values))
    given = {name: escaped(value) if isinstance(value, str) else value for name, value in values.items()}
    return connection.exec_driver_sql(text, {**given, **fixed})


def insert(connection: Connection, table: Table, values: Values) -> int:
    """Insert a row and return its id."""
    return execute(connection, _inserting(table), values).lastrowid


def insert_unless_there(connection: Connection, table: Table, values: Values) -> int | None:
    """Insert a row and return its id; None when a row with its identity is there."""
    result = execute(connection, _inserting_unless_there(table), values)
    return result.lastrowid if result.rowcount else None


def next_id(connection: Connection, table: Table) -> int:
    """The id of the next new row; ids of another program's, close to where SQLite's end, are passed over."""
    return int(connection.execute(select(func.max(table.c.id)).where(table.c.id < LARGEST)).scalar_one() or 0) + 1


def identify(connection: Connection, table: Table, identity: Values, rest: Values) -> int:
    """The id of the row with this identity; a new row gets the rest too."""
    matches = [table.c[name] == value for name, value in identity.items()]
    found = connection.execute(select(table.c.id).where(*matches)).scalar_one_or_none()
    return insert(connection, table, {**identity, **rest}) if found is None else int(found)


def chunks(ids: Sequence[Identity]) -> Iterator[Sequence[Identity]]:
    """What identifies rows, in parts that fit one IN list: SQLite's least limit for bound values is 999."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


def rows_of(
    connection: Connection, statement: Select[*tuple[object, ...]], values: Values | None = None
) -> Iterator[RowMapping]:
    """What a statement yields. Raises TypeError for a value that is not of its column's type."""
    found = connection.execute(statement, values or {}, execution_options=_SOME)
    return (row._mapping for row in _checked(found, statement))


def tuples_of(
    connection: Connection, statement: Select[*tuple[object, ...]], values: Values | None = None
) -> Iterator[Sequence[Any]]:
    """The same as values in the columns' order: quicker where there are very many rows."""
    return _checked(connection.execute(statement, values or {}, execution_options=_SOME), statement)


def texts_tuples_of(
    connection: Connection, statement: Select[*tuple[object, ...]], values: Values
) -> Iterator[Sequence[Any]]:
    """The same for a statement that is kept, run as its text in half the time; a flag is 0 or 1."""
    text, fixed = _sql(statement, tuple(values))
    found = connection.connection.cursor()
    found.execute(text, {**values, **fixed})
    return _checked(chain.from_iterable(iter(partial(found.fetchmany, _AT_ONCE), [])), statement)


def _checked(rows: Iterable[Given], statement: Select[*tuple[object, ...]]) -> Iterator[Given]:
    columns = statement.selected_columns
    kinds = [_kinds(column.type) for column in columns]
    known: set[tuple[type, ...]] = set()
    for row in rows:
        pattern = tuple(map(type, row))
        if pattern not in known:  # few rows differ in their types
            for column, value, kind in zip(columns, row, kinds, strict=True):
                if not isinstance(value, kind):
                    raise TypeError(f"{column} is {type(value).__name__}")
            known.add(pattern)
        yield row


def _kinds(column_type: object) -> tuple[type, ...]:
    """The Python types that a column's values have; NULL stands for a row that is not there as well."""
    if isinstance(column_type, NullType):
        return (object,)
    kind: type = column_type.python_type  # type: ignore[attr-defined]  # SQLAlchemy's types all have it
    if kind is float:
        return (int, float, type(None))
    return (int if kind is bool else kind, type(None))
