"""SQL statements that create a new file or add what an older file lacks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from autotune import __version__
from autotune.field_docs import documented
from autotune.store.schema.tables import metadata, schema_versions
from autotune.store.schema.views import VIEWS

_DIALECT = sqlite.dialect()


@cache
def statements() -> tuple[str, ...]:
    """Return the statements that create the tables, their indexes and the views."""
    return (*_tables(), *_indexes(), *(f"CREATE VIEW {name} AS\n{sql}" for name, sql in VIEWS.items()))


def create(connection: Connection, version: int, now: datetime) -> None:
    """Turn an empty file into a results database."""
    for statement in statements():
        connection.exec_driver_sql(statement)
    stamp(connection, version, now)


def stamp(connection: Connection, version: int, now: datetime) -> None:
    """Record that this version of autotune created the file's schema or migrated the file to it."""
    row = {"version": version, "autotune_version": __version__, "applied_at": now}
    connection.execute(schema_versions.insert(), row)


def lacking(connection: Connection) -> list[Column[Any]]:
    """Return the declared columns that are missing from a file's tables."""
    statement = (
        "SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table'"
    )
    found = {(table, name) for table, name in connection.exec_driver_sql(statement)}
    tables = {table for table, _ in found}
    columns = (column for table in metadata.sorted_tables if table.name in tables for column in table.c)
    return [column for column in columns if (column.table.name, column.name) not in found]


def add_columns(connection: Connection) -> None:
    """Add the declared columns that are missing from a file."""
    for column in lacking(connection):
        sql = CreateColumn(column).compile(dialect=_DIALECT)
        rule = f" CHECK ({column.info['rule']})" if column.info.get("rule") else ""
        connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {sql}{rule}")


def make_views(connection: Connection) -> None:
    """Drop the views and recreate them from their current declarations."""
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
    for name, sql in VIEWS.items():
        connection.exec_driver_sql(f"CREATE VIEW {name} AS\n{sql}")


def _tables() -> Iterator[str]:
    for table in metadata.sorted_tables:
        yield _with_comments(table, str(CreateTable(table).compile(dialect=_DIALECT)).strip())


def _indexes() -> Iterator[str]:
    for table in metadata.sorted_tables:
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=_DIALECT))


def _with_comments(table: Table, sql: str) -> str:
    """Add column comments to CREATE TABLE, because SQLAlchemy omits them for SQLite.

    A column without its own comment gets the text of the record's field.
    """
    first, *lines = (line.rstrip() for line in sql.splitlines())
    found = [first, f"\t-- {table.comment}"]
    for line in lines:
        named = re.match(r'\t"?(\w+)"? [A-Z]+', line)
        column = table.c.get(named[1]) if named else None
        comment = "" if column is None else column.comment or _texts(column.info.get("record")).get(column.name)
        found.append(f"{line}  -- {comment}" if comment else line)
    return "\n".join(found)


@cache
def _texts(record: type | None) -> dict[str, str]:
    """Return the text of each of a record's fields."""
    return {} if record is None else {ast.unparse(field.target): text for field, text in documented(record)}
