"""Rows of another database that SQLite itself brings here, without Python: kernels and trials may be very many.

The other file is attached as `other`, a private copy that nobody changes. Of each table whose rows others refer to, a
temporary table says which id a row has here: `here_trials`, for example, of `there`, `here` and whether it is `new`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Table

from autotune.store.row_ids import RowIds, parents_of

BATCH = 3000
"""rows written in one transaction at most: of trials, in some 80 ms"""


def attach(connection: Connection, copy: Path) -> None:
    """Let statements see the other file as `other`, from now on and read only."""
    if any(name == "other" for _, name, _ in connection.exec_driver_sql("PRAGMA database_list")):
        return
    uri = f"file://{quote(os.fsencode(copy.absolute()))}?mode=ro&immutable=1"
    connection.exec_driver_sql("ATTACH ? AS other", (uri,))


def know(connection: Connection, table: Table, ids: RowIds | None = None) -> None:
    """Make the temporary table of a table's ids, with those that are known."""
    connection.exec_driver_sql(
        f"CREATE TEMP TABLE here_{table.name} (there INTEGER PRIMARY KEY, here INTEGER, new INTEGER)"
    )
    known = [] if ids is None else list(ids.rows())
    if known:
        connection.exec_driver_sql(f"INSERT INTO temp.here_{table.name} VALUES (?, ?, ?)", known)  # noqa: S608


class MovedIds:
    """What a temporary table of ids holds, looked up one by one: few rows of the tables behind refer to them."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self._cursor = connection.connection.cursor()
        self._sql = f"SELECT here, new FROM temp.here_{table.name} WHERE there = ?"  # noqa: S608
        counts = f"SELECT count(*), coalesce(sum(new), 0) FROM temp.here_{table.name}"  # noqa: S608
        self.size, self.new_count = map(int, connection.exec_driver_sql(counts).one())

    def __contains__(self, there: object) -> bool:
        return isinstance(there, int) and self._found(there) is not None

    def __getitem__(self, there: int) -> int:
        """The id here. Raises KeyError for a row that was not brought."""
        found = self._found(there)
        if found is None:
            raise KeyError(there)
        return found[0]

    def is_new(self, there: int) -> bool:
        """Whether the row is new here."""
        found = self._found(there)
        return found is not None and bool(found[1])

    def _found(self, there: int) -> tuple[int, int] | None:
        found: tuple[int, int] | None = self._cursor.execute(self._sql, (there,)).fetchone()
        return found


def batches(connection: Connection, table: Table) -> Iterator[tuple[int, int]]:
    """The first and the last id of so many rows of a table there, again and again."""
    sql = f"SELECT min(id), max(id) FROM (SELECT id FROM {table.name} WHERE id > ? ORDER BY id LIMIT {BATCH})"  # noqa: S608
    last = -1
    while True:
        first, last = connection.exec_driver_sql(sql, (last,)).one()
        if last is None:
            return
        yield first, last


def moved(table: Table, names: Iterable[str], changed: Mapping[str, str]) -> tuple[str, str]:
    """Columns of rows there, which are `o`, with the ids that their parents have here; and the joins that this takes.

    Some are other SQL.
    """
    parents = {name: parent for name, parent in parents_of(table) if name in names and name not in changed}
    values = (changed.get(name) or (f"of_{name}.here" if name in parents else f"o.{name}") for name in names)
    joins = (  # a subquery for each would be begun anew for each row
        f"LEFT JOIN temp.here_{parent.name} of_{name} ON of_{name}.there = o.{name}" for name, parent in parents.items()
    )
    return ", ".join(values), " ".join(joins)


def move(
    connection: Connection, table: Table, source: str, which: str, among: Mapping[str, int], **changed: str
) -> int:
    """Insert rows there, some columns as other SQL; the number of rows.

    `source` is what stands behind FROM, with the rows there as `o`, and `which` what follows it.
    """
    names = table.c.keys()
    values, joins = moved(table, names, changed)
    sql = f"INSERT INTO main.{table.name} ({', '.join(names)}) SELECT {values} FROM {source} {joins} {which}"  # noqa: S608
    return connection.exec_driver_sql(sql, dict(among)).rowcount
