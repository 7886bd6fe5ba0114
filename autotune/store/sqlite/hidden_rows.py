"""Rows that a connection does not see: temporary views stand in for their tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

Hidden = Mapping[str, Collection[int]]
"""Table to the rowids of rows that are not to be seen."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that cannot be understood."""

    table: str
    row: int
    """its id, or SQLite's rowid where it has none"""
    reason: str

    def __str__(self) -> str:
        return f"{self.table} row {self.row}: {self.reason}"


def hide_rows(connection: Connection, hidden: Hidden) -> None:
    """Let statements on this connection, which only read from now on, see none of these rows; so do its views."""
    connection.detach()  # no other transaction gets it
    views = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'view'").all()
    connection.exec_driver_sql("PRAGMA query_only = OFF")  # which temporary views would count against
    connection.exec_driver_sql("CREATE TEMP TABLE hidden_rows (name, number, PRIMARY KEY (name, number)) WITHOUT ROWID")
    numbers = [(table, number) for table, rows in hidden.items() for number in rows]
    connection.exec_driver_sql("INSERT INTO hidden_rows VALUES (?, ?)", numbers)
    for table in hidden:
        seen = f"SELECT number FROM temp.hidden_rows WHERE name = '{table}'"  # noqa: S608
        rows = f"SELECT rowid AS rowid, * FROM main.{table} WHERE rowid NOT IN ({seen})"  # noqa: S608
        connection.exec_driver_sql(f"CREATE TEMP VIEW {table} AS {rows}")
    for _name, sql in views:  # which would see the file's own tables
        connection.exec_driver_sql(sql.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))
    connection.exec_driver_sql("PRAGMA query_only = ON")
