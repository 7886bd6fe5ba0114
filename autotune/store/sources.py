"""Rendered kernels: their text, their launches and the columns that describe them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, select, update

from autotune.compilation.compile import Program
from autotune.devices.tensor_map import TensorMap
from autotune.family.source import ConstantSymbol, KernelSource, Stage, fields_of
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.store.layers import problem_of
from autotune.store.rows import insert_unless_there, rows_of
from autotune.store.run_context import Scope
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.kernel_text import joined, store_text
from autotune.store.schema.tables import layers, paragraphs, source_paragraphs, sources, templates, trials
from autotune.store.sqlite.database import Database
from autotune.trial import END_TO_END, Config

_Json = str | int | list[str] | list[int]


def source_values(source: KernelSource) -> Values:
    """Return a rendered kernel's columns, except for its layer."""
    launches: dict[str, object] = {
        "prepare": [fields_of(stage) for stage in source.prepare],
        "stages": [fields_of(stage) for stage in source.stages],
        "loop_count": source.loop_count,
        "constants": [fields_of(symbol) for symbol in source.constants],
        "packed_w_bytes": source.packed_w_bytes,
        "workspace_bytes": source.workspace_bytes,
        **({} if source.error_factor == 1 else {"error_factor": source.error_factor}),
        **({} if source.flops is None else {"flops": source.flops}),
    }
    if source.tensor_maps:
        launches["tensor_maps"] = [fields_of(each) for each in source.tensor_maps]
    return {
        "hash": source.hash,
        "entries": source.program.entries,
        "flags": source.program.flags,
        "launches": json.dumps(launches),
        "accuracy": source.accuracy,
        "deterministic": source.deterministic,
    }


def text_of(connection: Connection, source_id: int) -> str | None:
    """Return a kernel's text, or None if only its hash is stored."""
    statement = (
        select(paragraphs.c.text)
        .join(source_paragraphs, source_paragraphs.c.paragraph_id == paragraphs.c.id)
        .where(source_paragraphs.c.source_id == source_id)
        .order_by(source_paragraphs.c.position)
    )
    found = list(connection.execute(statement).scalars())
    return joined(found) if found else None


def source_of(row: RowMapping, config: Config, text: str) -> KernelSource:
    """Make a rendered kernel from its text and a row with the columns of `sources` and `layers`."""
    column = sources.c
    launches = json.loads(row[column.launches])
    return KernelSource(
        problem=problem_of(row),
        config=config,
        program=Program(text, row[column.entries], row[column.flags]),
        prepare=tuple(stage_of(stage) for stage in launches["prepare"]),
        stages=tuple(stage_of(stage) for stage in launches["stages"]),
        loop_count=launches["loop_count"],
        constants=tuple(ConstantSymbol(**symbol) for symbol in launches["constants"]),
        packed_w_bytes=launches["packed_w_bytes"],
        workspace_bytes=launches["workspace_bytes"],
        accuracy=row[column.accuracy],
        deterministic=row[column.deterministic],
        error_factor=launches.get("error_factor", 1),
        flops=launches.get("flops"),
        tensor_maps=tuple(_tensor_map_of(**each) for each in launches.get("tensor_maps", ())),
    )


def _tensor_map_of(name: str, array: str, tensor: Mapping[str, _Json]) -> NamedTensorMap:
    """Make a tensor map from JSON."""
    return NamedTensorMap(name, array, TensorMap(**_with_tuples(tensor)))  # type: ignore[arg-type]  # as stage_of


def stage_of(stage: Mapping[str, _Json]) -> Stage:
    """Make a stage from JSON."""
    return Stage(**_with_tuples(stage))  # type: ignore[arg-type]  # written by source_values from a Stage


def _with_tuples(fields: Mapping[str, _Json]) -> dict[str, object]:
    """Convert lists in JSON back to the tuples that a record's fields contain."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def store_source(connection: Connection, scope: Scope, record: KernelSource) -> int:
    """Store a rendered kernel and return its id. If only its hash was stored, fill in the text."""
    values = source_values(record)
    source_id = insert_unless_there(connection, sources, {**values, "layer_id": scope.layer_id})
    if source_id is None:
        source_id = int(connection.execute(select(sources.c.id).where(sources.c.hash == record.hash)).scalar_one())
        part = select(source_paragraphs.c.position).where(source_paragraphs.c.source_id == source_id).limit(1)
        if connection.execute(part).first() is not None:
            return source_id
        connection.execute(update(sources).where(sources.c.id == source_id), values)
    store_text(connection.exec_driver_sql, source_id, record.program.text)
    return source_id


@dataclass(frozen=True, slots=True)
class SourceStore:
    """Reads rendered kernels."""

    database: Database

    def get(self, source_hash: str) -> KernelSource | None:
        """Return a rendered kernel with the config of the first trial that used it, or None if its text isn't
        stored.
        """
        statement = (
            select(sources, layers, trials.c.config, templates.c.family)
            .join(layers, layers.c.id == sources.c.layer_id)
            .join(trials, trials.c.source_id == sources.c.id)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(sources.c.hash == source_hash)
            .order_by(trials.c.measurement_mode == END_TO_END, trials.c.id)
            .limit(1)
        )
        with self.database.read() as connection:
            row = next(rows_of(connection, statement), None)
            text = None if row is None else text_of(connection, row[sources.c.id])
            if row is None or text is None:
                return None
            return source_of(row, Config.of(row[templates.c.family], json.loads(row[trials.c.config])), text)
