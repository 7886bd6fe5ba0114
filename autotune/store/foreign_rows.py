"""Another database's rows as they are stored there, some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table

from autotune.store.column_types import SqlValue, Values
from autotune.store.sqlite.database import Database
from autotune.store.sqlite.error_words import in_words

Row = tuple[SqlValue, ...]
BATCH = 1000
"""rows read at once, and at most written in one transaction where there may be very many"""


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """What a transaction that reads another database sees."""

    database: Database
    connection: Connection

    @property
    def path(self) -> Path:
        """The other database's file."""
        return self.database.path

    @property
    def shown(self) -> str:
        """The path on one line."""
        return self.database.shown

    def batches(self, table: Table, where: str = "1") -> Iterator[list[Values]]:
        """A table's rows by their columns' names, in the order of its primary key."""
        names = table.c.keys()
        for rows in self.tuples(table, where):
            yield [dict(zip(names, row, strict=True)) for row in rows]

    def tuples(self, table: Table, where: str = "1", among: Sequence[SqlValue] = ()) -> Iterator[Sequence[Row]]:
        """The same in the columns' order, in half the time, for tables of very many rows."""
        names, order = ", ".join(table.c.keys()), ", ".join(table.primary_key.columns.keys())
        sql = f"SELECT {names} FROM {table.name} WHERE {where} ORDER BY {order}"  # noqa: S608
        path, timeout_s = self.database.path, self.database.timeout_s
        with in_words(path, timeout_s):
            found = self.connection.exec_driver_sql(sql, tuple(among))
        while True:
            with in_words(path, timeout_s):
                rows = found.fetchmany(BATCH)
            if not rows:
                return
            yield [tuple(row) for row in rows]
