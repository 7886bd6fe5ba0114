"""A database as JSON lines, without loss: a header, a line for each row, a last line that counts them.

    {"autotune_dump": 1, "schema": "0007", "autotune": "0.1.0"}
    {"table": "devices", "row": {"id": 1, "kind": "cuda", "name": "NVIDIA H200", ...}}
    {"end": 1}

Bytes are written as {"base64": "..."}. A dump of an older schema is loaded as such and then brought up to date.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from autotune import __version__
from autotune.errors import StoreError, shortened
from autotune.printable import one_line
from autotune.store.column_types import metadata
from autotune.store.row_checks import faulty_rows
from autotune.store.sqlite.connections import switch_to_wal
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, Database, utc_now
from autotune.store.sqlite.hidden_rows import Fault
from autotune.store.sqlite.open_database import (
    open_as_it_is,
    open_for_reading,
    open_for_writing,
    prepare_for_writing,
    refresh_statistics,
)
from autotune.store.sqlite.query import Cell
from autotune.store.sqlite.schema import dangling_reference, migrate, newest_schema, unenforced, version_of, versions
from autotune.store.statements import CHUNK
from autotune.store.unreadable import hide_faulty_rows

VERSION = 1
"""of this format"""
_AT_ONCE = 100  # rows that are written at once: those of `sources` may have a megabyte each
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def dump(url: str | Path, write: Callable[[str], object]) -> int:
    """Write every row as a line, many lines at once, parents and children in one consistent state; the number of rows.

    Rows that cannot be understood are left out, with a note.
    """
    with closing(open_for_reading(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)) as database:
        database.find_faults = partial(faulty_rows, texts=False)  # a wrong text costs its kernel alone
        hide_faulty_rows(database)
        count = 0
        with database.read() as connection:
            write(_line({"autotune_dump": VERSION, "schema": newest_schema(), "autotune": __version__}))
            for table in sorted(metadata.tables):
                for lines, some in _lines_of(connection, table):
                    write(lines)
                    count += some
        write(_line({"end": count}))
    return count


def _lines_of(connection: Connection, table: str) -> Iterator[tuple[str, int]]:
    """A line for each row of a table, many at once, and how many."""
    names = [str(name) for name in metadata.tables[table].columns.keys()]  # noqa: SIM118 - orjson's keys are plain str
    head = json.dumps({"table": table}, separators=(",", ":"))[:-1].encode() + b',"row":'
    encode = partial(orjson.dumps, default=_json_of)  # null for numbers that are not finite, which no checked row has
    found = connection.connection.cursor()  # of tuples: SQLAlchemy's rows take as long again
    found.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid")  # noqa: S608
    while rows := found.fetchmany(_AT_ONCE):
        lines = (b"}\n" + head).join(map(encode, map(dict, map(zip, repeat(names), rows))))
        text = f"{head.decode()}{lines.decode()}}}\n"
        if not text.isascii():
            text = "".join(_line(json.loads(line)) for line in text.split("\n")[:-1])
        yield text, len(rows)


def check(url: str | Path) -> tuple[Fault, ...]:
    """The rows of a database that cannot be understood."""
    with (
        closing(open_for_reading(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)) as database,
        database.read() as connection,
    ):
        return tuple(faulty_rows(connection))


def quarantine_rows(url: str | Path, write: Callable[[str], object]) -> tuple[Fault, ...]:
    """Take the rows that cannot be understood out of a database, once each is written as a line with its reason."""
    with closing(open_for_reading(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)):
        pass  # it is there and not empty
    with closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)) as database, database.write():
        pass  # its schema is the newest
    with unenforced(database.path, database.path, LOCK_TIMEOUT_S) as connection:
        found = tuple(faulty_rows(connection))
        raw = connection.connection.driver_connection
        assert raw is not None  # noqa: S101 - it is open
        raw.text_factory = _text_or_bytes
        for fault in found:
            columns = metadata.tables[fault.table].columns.keys()
            sql = f"SELECT {', '.join(columns)} FROM {fault.table} WHERE rowid = ?"  # noqa: S608
            row = connection.exec_driver_sql(sql, (fault.row,)).one()
            values = {name: _json_of(value) for name, value in zip(columns, row, strict=True)}
            write(_line({"table": fault.table, "row": values, "reason": fault.reason}))
        for fault in found:
            connection.exec_driver_sql(f"DELETE FROM {fault.table} WHERE rowid = ?", (fault.row,))  # noqa: S608
    return found


def _text_or_bytes(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


_in_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _line(record: Mapping[str, Json]) -> str:
    return _in_ascii(record) + "\n"


def _json_of(value: Cell) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": str(value)}
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def load(lines: Iterable[str], name: str, url: str | Path, *, clock: Clock = utc_now) -> int:
    """Make a database of a dump's lines; the number of rows. It must be new or have no row in it.

    Raises StoreError that begins with `name` and the line's number for a line that is wrong; nothing is loaded then.
    """
    database = prepare_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)
    new = not database.path.exists()
    loaded = False
    try:
        dumped = _Lines(lines, name)
        schema = dumped.header()
        if not new:
            _check_empty(database.path, schema)
        count = _load(dumped, schema, database)
        switch_to_wal(database.path, database.timeout_s)
        refresh_statistics(database)
        loaded = True
    finally:
        database.close()
        if new and not loaded:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{database.path}{suffix}").unlink(missing_ok=True)
    return count


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


def _load(lines: _Lines, schema: str, database: Database) -> int:
    with unenforced(database.path, database.file, database.timeout_s) as connection:
        if version_of(connection, database.path) is None:
            migrate(connection, database.path, schema, database.clock)
        tables = _tables(connection)
        _refuse_rows(connection, database.shown)  # that another process has added meanwhile
        connection.exec_driver_sql("DELETE FROM schema_versions")
        with _without_indexes(connection):
            for table, some in groupby(lines.rows(tables), key=itemgetter(1)):
                while waiting := list(islice(some, CHUNK)):
                    _insert(connection, lines, tables[table], waiting)
        if schema != newest_schema():
            dangling = dangling_reference(connection)
            if dangling is not None:
                raise StoreError(f"{lines.shown}: {dangling}; nothing was loaded")
            migrate(connection, database.path, newest_schema(), database.clock)
        for fault in faulty_rows(connection, texts=False):
            raise StoreError(f"{lines.shown}: {fault}; nothing was loaded")
    return lines.count


@contextmanager
def _without_indexes(connection: Connection) -> Iterator[None]:
    """Leave out the indexes that keep nothing apart, and make them anew at the end: quicker than row by row."""
    found = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT LIKE 'CREATE UNIQUE %'"
    indexes = connection.exec_driver_sql(found).all()
    for name, _ in indexes:
        connection.exec_driver_sql(f"DROP INDEX {name}")
    yield
    for _, sql in indexes:
        connection.exec_driver_sql(sql)


def _insert(
    connection: Connection, lines: _Lines, columns: _Columns, rows: Sequence[tuple[int, str, Mapping[str, Json]]]
) -> None:
    """Insert rows of one table, given with their lines' numbers."""
    values: list[tuple[Cell, ...]] = []
    try:
        for _, _, row in rows:
            values.append(columns.values(row))  # one by one: so many had been read where one raises
    except ValueError as error:
        raise lines.wrong(rows[len(values)][0], f"{columns.table}: {one_line(str(error))}") from error
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - it is open
    before = raw.total_changes
    try:
        connection.exec_driver_sql(columns.insert, values)
    except (DatabaseError, ValueError, OverflowError) as error:
        cause = error.orig if isinstance(error, DatabaseError) else error
        number = rows[raw.total_changes - before][0]  # after those that are in
        raise lines.wrong(number, f"{columns.table}: {one_line(str(cause))}") from error


@dataclass(frozen=True, slots=True)
class _Columns:
    """A table's columns as the file has them: name to declared type and whether NULL is allowed."""

    table: str
    types: Mapping[str, tuple[str, bool]]
    in_order: Callable[[Mapping[str, Json]], tuple[Any, ...]]
    """a row's values in the order of the columns, of which each table has two at least"""
    packed: dict[tuple[type, ...], Sequence[tuple[int, str]]] = field(default_factory=dict)
    """the types of rows that fitted: which of their values are stored as others, such as bytes"""

    @property
    def insert(self) -> str:
        """The statement that inserts one row."""
        names = ", ".join(f'"{name}"' for name in self.types)
        return f"INSERT INTO {self.table} ({names}) VALUES ({', '.join('?' * len(self.types))})"  # noqa: S608

    def values(self, row: Mapping[str, Json]) -> tuple[Cell, ...]:
        """The row in the order of the columns. Raises ValueError for what does not fit them."""
        if row.keys() != self.types.keys():
            odd = sorted(row.keys() ^ self.types.keys())
            raise ValueError(f"columns {shortened(', '.join(odd))} are missing or unknown")
        given = self.in_order(row)
        kinds = tuple(map(type, given))
        stored = self.packed.get(kinds)
        if stored is not None:
            if not stored:
                return given
            cells = list(given)
            for place, name in stored:
                cells[place] = _cell(name, given[place], *self.types[name])
            return tuple(cells)
        fitted = tuple(_cell(name, row[name], *self.types[name]) for name in self.types)
        places = enumerate(zip(self.types, given, fitted, strict=True))
        self.packed[kinds] = [(place, name) for place, (name, one, cell) in places if cell is not one]
        return fitted


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
        found[name] = _Columns(name, types, itemgetter(*types))
    return found


def _filled(connection: Connection, table: str) -> bool:
    return connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() is not None  # noqa: S608


class _Lines:
    """The lines of a dump, numbered, each checked for its form."""

    def __init__(self, lines: Iterable[str], name: str) -> None:
        self.shown = one_line(name)
        self.count = 0
        self._objects = self._parsed(lines)

    def wrong(self, number: int, what: str) -> StoreError:
        """The error for a line."""
        return StoreError(f"{self.shown}:{number}: {what}; nothing was loaded")

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
