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
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import orjson
from sqlalchemy import Connection

from autotune import __version__
from autotune.errors import StoreError
from autotune.second_process import SecondProcess, in_turns, second_process
from autotune.store.column_types import metadata
from autotune.store.row_checks import FaultyRows
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Database, utc_now
from autotune.store.sqlite.hidden_rows import Fault, Hidden
from autotune.store.sqlite.open_database import (
    is_large,
    may_be_copied,
    open_as_it_is,
    open_copy,
    open_for_reading,
    open_for_writing,
)
from autotune.store.sqlite.query import Cell
from autotune.store.sqlite.schema import newest_schema, unenforced
from autotune.store.unreadable import hide_faulty_rows

VERSION = 1
"""of this format"""
_AT_ONCE = 100  # rows that are written at once: those of `sources` may have a megabyte each
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def dump(url: str | Path, write: Callable[[str], object]) -> int:
    """Write every row as a line, many lines at once, parents and children in one consistent state; the number of rows.

    Rows that cannot be understood are left out, with a note.
    """
    with (
        second_process(__name__) if is_large(url) and may_be_copied(url) else nullcontext() as other,
        closing(_opened(url, other)) as database,
    ):
        still = database if database.file != database.path else None
        if other and still:
            other.inherit(database.file.parent)
        # A wrong text costs its kernel alone.
        database.find_faults = partial(FaultyRows, texts=False, still=still, other=other)
        hide_faulty_rows(database)
        count = 0
        write(_line({"autotune_dump": VERSION, "schema": newest_schema(), "autotune": __version__}))
        for lines, some in _all_lines(database, other if still else None):
            write(lines)
            count += some
        write(_line({"end": count}))
    return count


def _opened(url: str | Path, other: SecondProcess | None) -> Database:
    """A copy where another process is to see the same, if one can be made."""
    if other:
        with suppress(StoreError):
            return open_copy(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)
    return open_for_reading(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)


_Piece: TypeAlias = tuple[str, int, int]
"""Rows of a table: the first and the last."""


def _all_lines(database: Database, other: SecondProcess | None) -> Iterator[tuple[str, int]]:
    """The lines of all rows, many at once, and how many; every second time the other process has made them."""
    with database.read() as connection:
        pieces = list(_pieces(connection))
        if other and other.begin(_lines_there, database.path, database.file, database.hidden, pieces[1::2]):
            yield from in_turns(_lines_of(connection, pieces[::2]), other.received())
        else:
            yield from _lines_of(connection, pieces)


def _pieces(connection: Connection) -> Iterator[_Piece]:
    cursor = connection.connection.cursor()  # of tuples: SQLAlchemy's rows take as long again
    for table in sorted(metadata.tables):
        found = cursor.execute(f"SELECT rowid FROM {table} ORDER BY rowid")  # noqa: S608
        rows = array("q", chain.from_iterable(found))
        for at in range(0, len(rows), _AT_ONCE):
            yield table, rows[at], rows[min(at + _AT_ONCE, len(rows)) - 1]


def _lines_there(
    _: object, path: Path, file: Path, hidden: Hidden, pieces: Sequence[_Piece]
) -> Iterator[tuple[str, int]]:
    """In a second process: the lines of these rows."""
    with closing(open_as_it_is(path, LOCK_TIMEOUT_S, file=file)) as database:
        database.hidden = hidden
        with database.read() as connection:
            yield from _lines_of(connection, pieces)


def _lines_of(connection: Connection, pieces: Sequence[_Piece]) -> Iterator[tuple[str, int]]:
    """A line for each row, as many at once as a piece has, and how many."""
    encode = partial(orjson.dumps, default=_json_of)  # null for numbers that are not finite, which no checked row has
    found = connection.connection.cursor()
    for table, some in groupby(pieces, key=itemgetter(0)):
        names = [str(name) for name in metadata.tables[table].columns.keys()]  # noqa: SIM118 - orjson's keys are plain str
        head = json.dumps({"table": table}, separators=(",", ":"))[:-1].encode() + b',"row":'
        sql = f"SELECT {', '.join(names)} FROM {table} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"  # noqa: S608
        for _, first, last in some:
            rows = found.execute(sql, (first, last)).fetchall()
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
        return tuple(FaultyRows(connection))


def quarantine_rows(url: str | Path, write: Callable[[str], object]) -> tuple[Fault, ...]:
    """Take the rows that cannot be understood out of a database, once each is written as a line with its reason."""
    with closing(open_for_reading(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)):
        pass  # it is there and not empty
    with closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=utc_now)) as database, database.write():
        pass  # its schema is the newest
    with unenforced(database.path, database.path, LOCK_TIMEOUT_S) as connection:
        found = tuple(FaultyRows(connection))
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
