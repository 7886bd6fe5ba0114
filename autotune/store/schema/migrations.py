"""Migrate a database with an older schema: MIGRATIONS lists a function for each schema from FIRST on."""

from __future__ import annotations

import json
import sqlite3
import tomllib
import zlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.store.schema.column_kinds import seven_digits
from autotune.store.schema.create import add_columns, make_views, stamp, statements
from autotune.store.schema.kernel_text import store_text
from autotune.store.schema.tables import metadata
from autotune.study import admitted_classes

NAMED_12 = {
    "policy": "measurement_mode",
    "subject_id": "tuning_target_id",
    "basis": "decided_by",
    "ranked_us": "ranking_median_us",
    "discarded_count": "discarded",
    "throttled_count": "throttled",
    "pass_count": "passes",
    "subjects": "tuning_targets",
    "subject_layers": "tuning_target_layers",
}
"""Names of tables and columns in schema 12, and their current names."""

_OUTCOME = (
    "CASE outcome WHEN 'constraints' THEN 'invalid_config' WHEN 'correctness' THEN 'wrong_result' ELSE outcome END"
)
_LIMITS = "json_array({0}_limit_x, {0}_limit_y, {0}_limit_z)"
_OTHERWISE = {
    # table and column to an expression over schema 12's columns, for columns that differ in more than their name
    ("study_layers", "admitted"): (
        "admitted((SELECT text FROM old.studies WHERE id = study_id), (SELECT coalesce(dtype, json_extract(problem, "
        "'$.dtype')) FROM old.layers JOIN old.subjects ON layer_id = layers.id WHERE subjects.id = subject_id))"
    ),
    ("devices", "grid_limits"): _LIMITS.format("grid"),
    ("devices", "block_limits"): _LIMITS.format("block"),
    ("trials", "outcome"): _OUTCOME,
    ("measurements", "samples_us"): "seven_digits(samples_us)",
    ("measurements", "discarded"): "coalesce(discarded_count, 0)",
    ("measurements", "throttled"): "coalesce(throttled_count, 0)",
    ("measurements", "passes"): "coalesce(pass_count, 1)",
    ("rates", "unit"): "name",
    ("dispatched_layers", "id"): "rowid",
}
_OLD_TABLES = {"tuning_targets": "subjects", "tuning_target_layers": "subject_layers"}
_OLD_COLUMNS = {new: old for old, new in NAMED_12.items()}
_MADE_HERE = ("schema_versions", "paragraphs", "source_paragraphs")
_MADE_BY_12 = "SELECT type, name FROM main.sqlite_master WHERE type IN ('view', 'table') AND name NOT LIKE 'sqlite_%'"


def _from_12(connection: Connection, old: Path) -> None:
    """Drop the tables of schema 12, which `tables` did not declare, create today's, and copy the rows from `old`."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)  # noqa: S101 - an engine of SQLite
    raw.create_function("admitted", 2, _admitted, deterministic=True)
    raw.create_function("seven_digits", 1, _seven_digits, deterministic=True)
    raw.execute("ATTACH ? AS old", (f"file://{quote(str(old.absolute()))}?mode=ro",))
    for kind, name in raw.execute(_MADE_BY_12).fetchall():
        raw.execute(f"DROP {kind} {name}")
    for statement in statements():
        raw.execute(statement)
    for table in metadata.sorted_tables:
        if table.name not in _MADE_HERE:
            raw.execute(_copying(raw, table.name, [column.name for column in table.c]))
    for source_id, packed, size_bytes in raw.execute(
        "SELECT id, text_zlib, text_bytes FROM old.sources WHERE text_bytes > 0 AND length(text_zlib) > 0"
    ).fetchall():
        text = packed if len(packed) == size_bytes else zlib.decompress(packed)
        store_text(raw.executemany, source_id, text.decode())


def _copying(raw: sqlite3.Connection, table: str, columns: list[str]) -> str:
    """Return the statement that copies a table; a column that schema 12 lacks gets its default."""
    old = _OLD_TABLES.get(table, table)
    old_columns = {row[1] for row in raw.execute(f"PRAGMA old.table_info({old})")}
    found = {name: _OTHERWISE.get((table, name), _OLD_COLUMNS.get(name, name)) for name in columns}
    copied = {
        name: old_name for name, old_name in found.items() if (table, name) in _OTHERWISE or old_name in old_columns
    }
    names, values = ", ".join(copied), ", ".join(copied.values())
    return f"INSERT INTO main.{table} ({names}) SELECT {values} FROM old.{old} ORDER BY rowid"


def _admitted(study: str, dtype: str | None) -> str:
    """Return the accuracy classes that a study's text admits, as JSON."""
    accuracy = tomllib.loads(study).get("accuracy")
    return json.dumps(admitted_classes(accuracy if isinstance(accuracy, str) else None, dtype or "f32"))


def _seven_digits(samples: str) -> str:
    return json.dumps([seven_digits(value) for value in json.loads(samples)], separators=(",", ":"))


def _conv_gets_a_prologue(connection: Connection, _old: Path) -> None:
    """Add the word `prologue`, with the value `none`, to stored layers of `conv`.

    If a layer was also tuned with the word, both rows are kept, each with its own trials.
    """
    connection.exec_driver_sql(
        "UPDATE OR IGNORE layers SET problem = ("
        "SELECT json_group_object(key, value) FROM ("
        "SELECT key, value FROM json_each(json_insert(problem, '$.prologue', 'none')) ORDER BY key)) "
        "WHERE operation = 'conv' AND declaration IS NULL"
    )


def _strips_name_their_filter_rows(connection: Connection, _old: Path) -> None:
    """Rename the parameter `shared_r` of depthwise_strips to `smem_filter_rows`, in configs and recorded headers."""
    connection.exec_driver_sql(
        "UPDATE trials SET config = replace(config, 'shared_r', 'smem_filter_rows') "
        "WHERE template_id IN (SELECT id FROM templates WHERE family = 'depthwise_strips')"
    )
    connection.exec_driver_sql(
        "UPDATE templates SET header = replace(header, 'shared_r', 'smem_filter_rows') "
        "WHERE family = 'depthwise_strips'"
    )


FIRST = 12
"""The oldest schema that can be migrated."""
MIGRATIONS: tuple[Callable[[Connection, Path], object], ...] = (
    _from_12,
    _conv_gets_a_prologue,
    _strips_name_their_filter_rows,
)
"""Functions that each migrate a file to the next schema; their second argument is a copy of the original file.

`_from_12` creates the tables of the newest schema, so the functions after it also run on these. A new column that may
be NULL or has a default needs no migration: a file that lacks the column gets it.
"""


def newest_schema() -> int:
    """Return the version of the schema that this version of autotune writes."""
    return FIRST + len(MIGRATIONS)


def migrate(connection: Connection, version: int, old: Path, shown: str, now: datetime) -> None:
    """Migrate a database to the newest schema, in the connection's transaction.

    `old` is a copy of the database. Raises StoreError, which names the database as `shown`, if a row breaks a
    constraint.
    """
    try:
        for each in MIGRATIONS[version - FIRST :]:
            each(connection, old)
    except (sqlite3.IntegrityError, IntegrityError, zlib.error, UnicodeError) as error:
        raise StoreError(
            f"{shown}: cannot be migrated to the newest schema, because a row breaks a rule ({one_line(str(error))}); "
            f"`sqlite3 {shown} .recover` extracts the readable rows"
        ) from error
    add_columns(connection)
    make_views(connection)
    if version != newest_schema():
        stamp(connection, newest_schema(), now)
