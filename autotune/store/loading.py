"""A database made of a dump's lines: in a file beside, which takes its place once all of it is checked."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from autotune.errors import StoreError, shortened
from autotune.printable import one_line
from autotune.second_process import SecondProcess, second_process
from autotune.store.dump import VERSION, Json
from autotune.store.moved_rows import attach
from autotune.store.row_checks import FaultyRows
from autotune.store.sqlite.connections import switch_to_wal
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, Database, utc_now
from autotune.store.sqlite.open_database import open_as_it_is, prepare_for_writing, refresh_statistics, remove_empty
from autotune.store.sqlite.query import Cell
from autotune.store.sqlite.schema import dangling_reference, migrate, newest_schema, unenforced, version_of, versions
from autotune.writing import file_beside, take_name

_AT_ONCE = 200  # rows that are inserted at once; so many are on their way while others are read
_OWN_SHARE = 0.35  # of the rows that this process checks, which makes indexes, too
_FEW = 10  # so often before a second process is begun

_Batch: TypeAlias = tuple[int, str, str, Sequence[tuple[Cell, ...]]]
"""Rows of a table: the number of the first one's line, the table, the statement that inserts one, and their values."""


def load(lines: Iterable[str], name: str, url: str | Path, *, clock: Clock = utc_now) -> int:
    """Make a database of a dump's lines; the number of rows. It must be new or have no row in it.

    Raises StoreError that begins with `name`, and names a line that is wrong, or table and row of one that cannot be
    understood; nothing is loaded then.
    """
    dumped = _Lines(lines, name)
    with closing(prepare_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as database:
        schema = dumped.header()
        if database.path.exists():
            _check_empty(database.path, schema)
        with file_beside(database.path) as begun:
            _fill(dumped, schema, database, begun)
            _place(begun, database)
    return dumped.count


def _check_empty(path: Path, schema: str) -> None:
    """Raise StoreError, before anything is changed, for a file that cannot take a dump of this schema."""
    shown = one_line(str(path))
    with closing(open_as_it_is(path, LOCK_TIMEOUT_S)) as database, database.read() as connection:
        version = version_of(connection, path)
        if version not in (None, schema):
            raise StoreError(f"{shown}: has schema {version} and the dump {schema}; load it into a new file")
        _refuse_rows(connection, shown)


def _refuse_rows(connection: Connection, shown: str) -> None:
    if any(_filled(connection, table) for table in _tables(connection) if table != "schema_versions"):
        raise StoreError(f"{shown}: has results already; load into a new file, or `autotune merge` that one")


def _fill(lines: _Lines, schema: str, database: Database, begun: Path) -> None:
    """Make a database in a new file, with all rows, and check it."""
    with unenforced(database.path, begun, database.timeout_s) as connection:
        migrate(connection, database.path, schema, database.clock)
        connection.exec_driver_sql("DELETE FROM schema_versions")
        indexes = _without_indexes(connection)
        tables = _tables(connection)
    with ExitStack() as stack:
        other = _insert_all(lines, _batches(lines, tables), database, begun, stack)
        if schema != newest_schema():
            _bring_up_to_date(lines, database, begun, indexes)
            indexes = ()
        switch_to_wal(begun, LOCK_TIMEOUT_S)  # so that one reads while indexes are made
        with closing(open_as_it_is(database.path, LOCK_TIMEOUT_S, file=begun)) as filled, filled.read() as reading:
            faults = FaultyRows(reading, texts=False, still=filled, other=other, own_share=_OWN_SHARE)
            with unenforced(database.path, begun, database.timeout_s) as connection:
                _make(indexes, connection)
            for fault in faults:
                raise StoreError(f"{lines.shown}: {fault}; nothing was loaded")


def _bring_up_to_date(lines: _Lines, database: Database, begun: Path, indexes: Sequence[str]) -> None:
    """Make these indexes, which migrations know of, and bring the schema up to date."""
    with unenforced(database.path, begun, database.timeout_s) as connection:
        _make(indexes, connection)
        dangling = dangling_reference(connection)
        if dangling is not None:
            raise StoreError(f"{lines.shown}: {dangling}; nothing was loaded")
        migrate(connection, database.path, newest_schema(), database.clock)


def _without_indexes(connection: Connection) -> Sequence[str]:
    """Leave out the indexes that keep nothing apart, and return what makes them anew: quicker than row by row."""
    found = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT LIKE 'CREATE UNIQUE %'"
    indexes = connection.exec_driver_sql(found).all()
    for name, _ in indexes:
        connection.exec_driver_sql(f"DROP INDEX {name}")
    return [sql for _, sql in indexes]


def _make(indexes: Sequence[str], connection: Connection) -> None:
    for sql in indexes:
        connection.exec_driver_sql(sql)


def _insert_all(
    lines: _Lines, batches: Iterator[_Batch], database: Database, begun: Path, stack: ExitStack
) -> SecondProcess | None:
    """Insert all rows; very many are read here while a second process, which is returned, inserts them."""
    with unenforced(database.path, begun, database.timeout_s) as connection:
        _insert(connection, lines.shown, islice(batches, _FEW))
        more = next(batches, None)
        if more is None:
            return None
        other = stack.enter_context(second_process(__name__))
        batches = chain([more], batches)
        if other:
            other.inherit(begun)
            _insert(connection, lines.shown, _until_begun(other, batches))
    if other and other.begin(_insert_there, database.path, begun, lines.shown):
        _send(batches, other)
        return other
    with unenforced(database.path, begun, database.timeout_s) as connection:
        _insert(connection, lines.shown, batches)
    return None


def _until_begun(other: SecondProcess, batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """What can be inserted while it starts."""
    for batch in batches:
        yield batch
        if other.would_begin():
            return


def _send(batches: Iterator[_Batch], other: SecondProcess) -> None:
    """Have rows inserted there. Raises what comes first: a line that is wrong, or a row that the schema refuses."""
    wrong: StoreError | None = None
    try:
        for batch in batches:
            if not other.send(batch):
                break
    except StoreError as error:
        wrong = error  # those before it are still being inserted
    other.send_end()
    for _ in other.received():
        pass
    if wrong is not None:
        raise wrong


def _insert_there(given: Iterable[_Batch], path: Path, begun: Path, shown: str) -> Iterator[None]:
    """In a second process: insert what is given; yields nothing."""
    with unenforced(path, begun, LOCK_TIMEOUT_S) as connection:
        _insert(connection, shown, given)
    yield from ()


def _insert(connection: Connection, shown: str, batches: Iterable[_Batch]) -> None:
    """Insert rows. Raises StoreError for the first that the schema refuses; its CHECKs are left to `FaultyRows`."""
    connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")  # a third of the time
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - it is open
    for first, table, statement, rows in batches:
        before = raw.total_changes
        try:
            connection.exec_driver_sql(statement, rows)
        except (DatabaseError, ValueError, OverflowError) as error:
            cause = error.orig if isinstance(error, DatabaseError) else error
            number = first + raw.total_changes - before  # after those that are in
            raise _wrong(shown, number, f"{table}: {one_line(str(cause))}") from error


def _batches(lines: _Lines, tables: Mapping[str, _Columns]) -> Iterator[_Batch]:
    """The rows, with their values in order. Raises StoreError for one that does not fit its table's columns."""
    for table, some in groupby(lines.rows(tables), key=itemgetter(1)):
        columns = tables[table]
        while waiting := list(islice(some, _AT_ONCE)):
            rows = [row for _, _, row in waiting]
            values = columns.values(rows)
            if values is None:
                values = []
                try:
                    for row in rows:
                        values.append(columns.checked(row))  # one by one: so many had been read where one raises
                except ValueError as error:
                    raise lines.wrong(waiting[len(values)][0], f"{table}: {one_line(str(error))}") from error
            yield waiting[0][0], table, columns.insert, values


def _place(begun: Path, database: Database) -> None:
    """Let the new file have the database's name, or copy the rows."""
    with closing(prepare_for_writing(begun, timeout_s=LOCK_TIMEOUT_S, clock=database.clock)) as filled:
        refresh_statistics(filled)
    if not take_name(begun, database.path):
        _move_into(begun, database)


def _move_into(begun: Path, database: Database) -> None:
    """Copy the rows into a file that has none, or is not there yet."""
    try:
        with unenforced(database.path, database.file, database.timeout_s) as connection:
            if version_of(connection, database.path) != newest_schema():
                migrate(connection, database.path, newest_schema(), database.clock)
            _refuse_rows(connection, database.shown)  # that another process has added meanwhile
            connection.exec_driver_sql("DELETE FROM schema_versions")
            attach(connection, begun)
            for table, columns in _tables(connection).items():
                names = ", ".join(columns.types)
                sql = f"INSERT INTO main.{table} ({names}) SELECT {names} FROM other.{table} ORDER BY rowid"  # noqa: S608
                connection.exec_driver_sql(sql)
        switch_to_wal(database.path, database.timeout_s)
        refresh_statistics(database)
    except BaseException:
        remove_empty(database.path)
        raise


@dataclass(frozen=True, slots=True)
class _Columns:
    """A table's columns as the file has them: name to declared type and whether NULL is allowed."""

    table: str
    types: Mapping[str, tuple[str, bool]]
    in_order: Callable[[Mapping[str, Json]], tuple[Any, ...]]
    """a row's values in the order of the columns, of which each table has two at least"""
    plain: Sequence[set[type]]
    """of each column, the types of what is stored as it comes, or unpacked"""
    packed: Sequence[tuple[int, str]]
    """columns of bytes, with their places"""

    @property
    def insert(self) -> str:
        """The statement that inserts one row."""
        names = ", ".join(f'"{name}"' for name in self.types)
        return f"INSERT INTO {self.table} ({names}) VALUES ({', '.join('?' * len(self.types))})"  # noqa: S608

    def values(self, rows: Sequence[Mapping[str, Json]]) -> Sequence[tuple[Any, ...]] | None:
        """The rows in the order of the columns; None where a value, or a name, may not be a column's."""
        if set(map(len, rows)) != {len(self.types)}:
            return None
        try:
            given = list(map(self.in_order, rows))
            columns = list(zip(*given, strict=True))
            if not all(set(map(type, cells)) <= kinds for cells, kinds in zip(columns, self.plain, strict=True)):
                return None
            for place, name in self.packed:
                columns[place] = tuple(_cell(name, cell, *self.types[name]) for cell in columns[place])
        except (KeyError, ValueError):
            return None
        return list(zip(*columns, strict=True)) if self.packed else given

    def checked(self, row: Mapping[str, Json]) -> tuple[Cell, ...]:
        """A row in the order of the columns. Raises ValueError for what does not fit them."""
        if row.keys() != self.types.keys():
            odd = sorted(row.keys() ^ self.types.keys())
            raise ValueError(f"columns {shortened(', '.join(odd))} are missing or unknown")
        return tuple(_cell(name, row[name], *self.types[name]) for name in self.types)


_PLAIN = {"INTEGER": int, "REAL": float, "TEXT": str, "BLOB": dict}
"""what values of a column are in a dump"""


def _cell(name: str, value: Json, declared: str, optional: bool) -> Cell:  # noqa: FBT001
    if value is None and optional:
        return None
    if declared == "BLOB" and isinstance(value, dict) and value.keys() == {"base64"}:
        text = value["base64"]
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    if declared == "INTEGER" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if declared == "REAL" and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if declared == "TEXT" and isinstance(value, str):
        value.encode()  # raises for what UTF-8 cannot carry
        return value
    raise ValueError(f"{name} = {shortened(one_line(json.dumps(value)))}: expected {declared}")


def _tables(connection: Connection) -> dict[str, _Columns]:
    found = {}
    names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
    for name in names:
        if name == "alembic_version" or name.startswith("sqlite_"):  # all others are this schema's
            continue
        info = connection.exec_driver_sql("SELECT name, type, [notnull] FROM pragma_table_info(?)", (name,))
        types = {column: (kind, not needed) for column, kind, needed in info}
        plain = [{_PLAIN[kind], *((type(None),) if optional else ())} for kind, optional in types.values()]
        packed = [(place, column) for place, (column, (kind, _)) in enumerate(types.items()) if kind == "BLOB"]
        found[name] = _Columns(name, types, itemgetter(*types), plain, packed)
    return found


def _filled(connection: Connection, table: str) -> bool:
    return connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() is not None  # noqa: S608


def _wrong(shown: str, number: int, what: str) -> StoreError:
    return StoreError(f"{shown}:{number}: {what}; nothing was loaded")


class _Lines:
    """The lines of a dump, numbered, each checked for its form."""

    def __init__(self, lines: Iterable[str], name: str) -> None:
        self.shown = one_line(name)
        self.count = 0
        self._objects = self._parsed(lines)

    def wrong(self, number: int, what: str) -> StoreError:
        """The error for a line."""
        return _wrong(self.shown, number, what)

    def header(self) -> str:
        """The schema that the first line names. Raises StoreError for a newer dump or another kind of file."""
        _number, record = next(self._objects, (1, {}))
        version, schema = record.get("autotune_dump"), record.get("schema")
        if not isinstance(version, int) or not isinstance(schema, str):
            raise self.wrong(1, "not a dump of autotune, whose first line says autotune_dump and schema")
        writer = one_line(str(record.get("autotune")))
        if version != VERSION or schema > newest_schema():
            raise self.wrong(
                1,
                f"dump {version} of schema {one_line(schema)}, newer than this autotune's dump {VERSION} of schema "
                f"{newest_schema()}; install autotune {writer} or newer",
            )
        if schema not in versions():
            raise self.wrong(1, f"schema {one_line(schema)!r} is none of autotune's")
        return schema

    def rows(self, tables: Mapping[str, _Columns]) -> Iterator[tuple[int, str, Mapping[str, Json]]]:
        """Each row with its line's number and table, to the last line, which counts them."""
        number = 1
        for number, record in self._objects:
            table, row = record.get("table"), record.get("row")
            if table is None and record.keys() == {"end"}:
                if record["end"] != self.count:
                    raise self.wrong(number, f"the dump had {record['end']} rows, this file has {self.count}")
                if next(self._objects, None) is not None:
                    raise self.wrong(number + 1, "goes on after its last line")
                return
            if not isinstance(table, str) or table not in tables or not isinstance(row, dict):
                raise self.wrong(number, f"expected a row of one of {', '.join(sorted(tables))}")
            self.count += 1
            yield number, table, row
        raise self.wrong(number + 1, "the file is cut short: its last line, which counts the rows, is missing")

    def _parsed(self, lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Json]]]:
        number = 0
        try:
            for number, line in enumerate(lines, 1):
                try:
                    record: Json = orjson.loads(line)
                except ValueError as error:
                    raise self.wrong(number, f"not JSON ({one_line(str(error))})") from error
                if not isinstance(record, dict):  # quicker than to ask for a Mapping
                    raise self.wrong(number, "not a JSON object")
                yield number, record
        except UnicodeDecodeError as error:
            raise self.wrong(number + 1, f"not UTF-8 ({one_line(str(error))})") from error
        except OSError as error:
            raise StoreError(f"{self.shown}: cannot be read: {error.strerror}; nothing was loaded") from error
