"""Rows of a file that break a rule, as SQLite finds them.

`load` and `merge` refuse a file with a row that is none, `dump --check` lists such rows, and whoever meets one while
reading does without it (`reading`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, PrimaryKeyConstraint, Table, UniqueConstraint

from autotune.printable import one_line
from autotune.second_process import SecondProcess
from autotune.store.column_types import metadata
from autotune.store.row_rules import FUNCTIONS, Rule, rules_of
from autotune.store.sound_rows import is_sound, surely_sound
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Database
from autotune.store.sqlite.hidden_rows import Fault
from autotune.store.sqlite.open_database import open_as_it_is

_SHOWN = 60  # characters of a value in a reason
_MANY = 10_000  # rows of a table: fewer are looked at in less time than another process is told of
_TWICE = {
    # beside UNIQUE and PRIMARY KEY: what the partial indexes of the schema keep apart
    "measurements": (
        ("trial_id", "finals_id IS NULL AND retime_id IS NULL"),
        ("retime_id", "retime_id IS NOT NULL"),
    ),
    "study_layers": (("study_id, name", "position IS NOT NULL"),),
}


class FaultyRows:
    """Every row that cannot be understood, parents first, and those that refer to such a row or to none.

    `other` begins to look at its part of a database at once, which `still` is open on: nobody changes it meanwhile.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        texts: bool = True,
        still: Database | None = None,
        other: SecondProcess | None = None,
        own_share: float = 0.45,
    ) -> None:
        """The connection reads the file's own tables. `own_share`: of a large table, what this process looks at.

        Without `texts`, packed texts of kernels are not unpacked: a wrong one costs its kernel alone.
        """
        self._connection, self._texts, self._other = connection, texts, other
        self._own: dict[str, int] = {}
        """large tables, each with the last row at which this process looks"""
        if other and still:
            shared = {name: int(own_share * last) for name, last in _large_tables(connection)}
            if other.begin(_wrong_behind, still.path, still.file, shared, texts):
                self._own = shared

    def __iter__(self) -> Iterator[Fault]:
        connection = self._connection
        wrong = self._wrong()
        wrong["trials"] += _unmeasured(connection, [fault.row for fault in wrong["measurements"]])
        gone: dict[str, set[int]] = {}
        for table in metadata.sorted_tables:
            gone[table.name] = set()
            for fault in (*wrong[table.name], *_dangling(connection, table, gone)):
                if fault.row not in gone[table.name]:
                    gone[table.name].add(fault.row)
                    yield fault

    def _wrong(self) -> dict[str, list[Fault]]:
        """The rows that break a rule of their table."""
        _define_functions(self._connection)
        wrong = {}
        for table in metadata.sorted_tables:
            among = f"rowid <= {self._own[table.name]}" if table.name in self._own else "1"
            wrong[table.name] = list(_wrong(self._connection, table, among, texts=self._texts))
        if self._other and self._own:
            for name, found in self._other.received():
                wrong[name] += found
        return wrong


def _large_tables(connection: Connection) -> Iterator[tuple[str, int]]:
    """The tables of many rows, each with its last."""
    for table in metadata.sorted_tables:
        last = connection.exec_driver_sql(f"SELECT max(rowid) FROM {table.name}").scalar_one() or 0  # noqa: S608
        if last > _MANY:
            yield table.name, last


def _wrong_behind(
    _: object,
    path: Path,
    file: Path,
    tables: Mapping[str, int],
    texts: bool,  # noqa: FBT001
) -> Iterator[tuple[str, list[Fault]]]:
    """In a second process: the wrong rows behind those."""
    with closing(open_as_it_is(path, LOCK_TIMEOUT_S, file=file)) as database, database.read() as connection:
        _define_functions(connection)
        for name, last in tables.items():
            yield name, list(_wrong(connection, metadata.tables[name], f"rowid > {last}", texts=texts))


def _define_functions(connection: Connection) -> None:
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - it is open
    for name, function in {**FUNCTIONS, "is_sound": is_sound}.items():
        raw.create_function(name, -1, function, deterministic=True)


def _unmeasured(connection: Connection, rows: Sequence[int]) -> Iterator[Fault]:
    """The trials whose own measurement is one of these rows."""
    own = f"rowid IN ({', '.join(map(str, rows))}) AND finals_id IS NULL AND retime_id IS NULL"
    sql = f"SELECT trial_id, rowid FROM measurements WHERE {own} AND typeof(trial_id) = 'integer'"  # noqa: S608
    for trial, row in connection.exec_driver_sql(sql):
        yield Fault("trials", trial, f"its measurement, row {row} of measurements, cannot be understood")


def repeated_rows(connection: Connection) -> Iterator[Fault]:
    """Rows whose identity an earlier row of their table has."""
    for table in metadata.sorted_tables:
        unique = dict.fromkeys(", ".join(columns) for columns in _identities(table))  # of one column, told twice
        for columns, only in (*((columns, "1") for columns in unique), *_TWICE.get(table.name, ())):
            some = " AND ".join(f"{column} IS NOT NULL" for column in columns.split(", "))
            sql = f"SELECT max(rowid) FROM {table.name} WHERE {only} AND {some} GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608
            for (row,) in connection.exec_driver_sql(sql):
                yield Fault(table.name, row, f"another row has its {columns}")


def _identities(table: Table) -> Iterator[Sequence[str]]:
    for constraint in table.constraints:
        if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            yield [column.name for column in constraint.columns]
    for column in table.columns:
        if column.unique:
            yield [column.name]


def _wrong(connection: Connection, table: Table, among: str, *, texts: bool) -> Iterator[Fault]:
    """The rows of a table, among some, that break one of its rules, each with the first."""
    rules = tuple(rules_of(table, texts=texts))
    reasons = " ".join(f"WHEN {rule.bad} THEN {_reason(rule)}" for rule in rules)
    some = " OR ".join(f"({rule.bad})" for rule in rules)  # once more: to ask for a reason takes a third longer
    wrong = f"CASE WHEN {surely_sound(table, texts=texts)} THEN 0 WHEN {some} THEN 1 END"  # WHEN stops at what decides
    sql = f"SELECT rowid, CASE {reasons} END FROM {table.name} WHERE {among} AND {wrong}"  # noqa: S608
    for row, reason in connection.exec_driver_sql(sql):
        yield Fault(table.name, row, one_line(reason))


def _reason(rule: Rule) -> str:
    """Why a row is none, in SQL."""
    quoted = f"CAST(substr(quote({rule.column}), 1, {_SHOWN}) AS BLOB)"
    shown = "" if not rule.column else f"'{rule.column} = ' || legible({quoted}) || ': ' || "
    expected = rule.expected.replace("'", "''")
    return f"{shown}'expected {expected}'"


def _dangling(connection: Connection, table: Table, gone: dict[str, set[int]]) -> Iterator[Fault]:
    """The rows of a table that refer to a row that is not there, or that cannot be understood."""
    broken = {}
    for key in sorted(table.foreign_keys, key=lambda key: key.parent.name):
        column, parent = key.parent.name, key.column.table.name
        without = ", ".join(map(str, sorted(gone[parent])))
        unknown = f"{column} NOT IN (SELECT {key.column.name} FROM {parent})"  # noqa: S608
        broken[column, parent] = f"({column} IN ({without}) OR ({column} IS NOT NULL AND {unknown}))"
    some = f"SELECT EXISTS (SELECT 1 FROM {table.name} WHERE {' OR '.join(broken.values())})"  # noqa: S608
    if not broken or not connection.exec_driver_sql(some).scalar_one():  # the table is read once, not for each
        return
    for (column, parent), where in broken.items():
        found = f"SELECT rowid, {column} FROM {table.name} WHERE {where} ORDER BY rowid"  # noqa: S608
        for row, target in connection.exec_driver_sql(found):
            yield Fault(table.name, row, f"{column} = {target}: {parent} has no such row")
