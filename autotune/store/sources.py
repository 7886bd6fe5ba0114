"""Rendered kernels: their texts and launches."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Column, Connection, LargeBinary, RowMapping, Table, bindparam, select, update

from autotune.compilation.compile import Program
from autotune.devices.tensor_map import TensorMap
from autotune.errors import StoreError
from autotune.family.source import ConstantSymbol, KernelSource, Stage, fields_of
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.store.column_types import Text, Values, flag, integer, metadata, reference, row_id, text
from autotune.store.layers import layers, problem_of
from autotune.store.packed import unpacked
from autotune.store.scopes import Scope
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert_unless_there, rows_of
from autotune.store.templates import templates
from autotune.store.unreadable import reading
from autotune.trial import END_TO_END, Config

ZLIB_LEVEL = 1
"""a kernel's text takes half the time that it takes at the usual level, and a tenth more room"""

_Json = str | int | list[str] | list[int]

sources = Table(
    "sources",
    metadata,
    row_id(),
    Column("hash", Text, nullable=False, unique=True),
    reference("layer_id", "layers.id"),
    Column("text_zlib", LargeBinary, nullable=False),
    integer("text_bytes"),
    text("entries"),
    text("flags"),
    text("launches"),
    text("accuracy"),
    flag("deterministic"),
)

_SOURCE = select(sources).where(sources.c.hash == bindparam("hash"))


def source_values(source: KernelSource) -> Values:
    """The columns of a rendered kernel, but for its layer."""
    text = source.program.text.encode("utf-8", "backslashreplace")
    packed = zlib.compress(text, ZLIB_LEVEL)
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
        launches["tensor_maps"] = [asdict(each) for each in source.tensor_maps]
    return {
        "hash": source.hash,
        "text_zlib": packed if len(packed) < len(text) else text,  # as sqlar_uncompress expects
        "text_bytes": len(text),
        "entries": json.dumps(source.program.entries),
        "flags": json.dumps(source.program.flags),
        "launches": json.dumps(launches),
        "accuracy": source.accuracy,
        "deterministic": source.deterministic,
    }


def source_text(row: RowMapping) -> str:
    """The kernel's text of a row that has the columns of `sources`."""
    return unpacked(row[sources.c.text_zlib], row[sources.c.text_bytes]).decode()


def source_of(row: RowMapping, config: Config) -> KernelSource:
    """The rendered kernel of a row that has the columns of `sources` and `layers`."""
    column = sources.c
    check_launches(row[column.launches])
    launches = json.loads(row[column.launches])
    return KernelSource(
        problem=problem_of(row),
        config=config,
        program=Program(source_text(row), tuple(json.loads(row[column.entries])), tuple(json.loads(row[column.flags]))),
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
    """A tensor map from its JSON."""
    return NamedTensorMap(name, array, TensorMap(**_with_tuples(tensor)))  # type: ignore[arg-type]  # as stage_of


def stage_of(stage: Mapping[str, _Json]) -> Stage:
    """A stage from its JSON. Raises ValueError or TypeError for what is none."""
    made = Stage(**_with_tuples(stage))  # type: ignore[arg-type]  # written by source_values from a Stage
    if len(made.block) != 3 or len(made.grid) != 3:
        raise ValueError("a grid and a block have three sizes")
    _check_words(made.entry, *made.args)
    _check_sizes(made.smem_bytes, *made.block, *made.grid)
    return made


def check_launches(text: str) -> None:
    """Raise ValueError, TypeError or KeyError for a row's launches that are none; an empty object was dropped."""
    launches = json.loads(text)
    if not isinstance(launches, dict):
        raise TypeError("not an object")
    if not launches:
        return
    for stage in (*launches["prepare"], *launches["stages"]):
        stage_of(stage)
    for symbol in launches["constants"]:
        _check_words(*asdict(ConstantSymbol(**symbol)).values())
    for each in launches.get("tensor_maps", ()):
        named = _tensor_map_of(**each)
        _check_words(named.name, named.array, named.tensor.dtype)
        _check_sizes(named.tensor.swizzle_bytes, *named.tensor.global_dim, *named.tensor.box_dim)
        _check_sizes(*named.tensor.element_strides)
    _check_sizes(*(launches[name] for name in ("loop_count", "packed_w_bytes", "workspace_bytes")))
    _check_sizes(launches.get("flops") or 0)


def _check_words(*words: object) -> None:
    if not all(isinstance(word, str) for word in words):
        raise TypeError("expected words")


def _check_sizes(*sizes: object) -> None:
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
            raise ValueError("expected whole numbers from 0")


def _with_tuples(fields: Mapping[str, _Json]) -> dict[str, object]:
    """A record's fields, whose tuples became lists in JSON."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def store_source(connection: Connection, scope: Scope, record: KernelSource) -> int:
    """Id of a rendered kernel, whose text is filled in where only its hash was kept.

    Raises StoreError when another kernel has its hash.
    """
    values = source_values(record)
    new_id = insert_unless_there(connection, sources, {**values, "layer_id": scope.layer_id})
    if new_id is not None:
        return new_id
    row = next(rows_of(connection, _SOURCE, {"hash": record.hash}))
    if not row[sources.c.text_bytes]:
        connection.execute(update(sources).where(sources.c.id == row[sources.c.id]), values)
        return int(row[sources.c.id])
    same = row[sources.c.launches] == values["launches"] and row[sources.c.flags] == values["flags"]
    if not same or source_text(row).encode() != record.program.text.encode("utf-8", "backslashreplace"):
        raise StoreError(f"{scope.name}: two different kernels claim the hash {record.hash}; do not trust this file")
    return int(row[sources.c.id])


def store_hash(connection: Connection, scope: Scope, source_hash: str) -> int:
    """Id of a kernel of which nothing but its hash is known here, unless it is stored."""
    nothing: Values = {"entries": "[]", "flags": "[]", "launches": "{}", "accuracy": "", "deterministic": False}
    unknown: Values = {"text_zlib": b"", "text_bytes": 0, **nothing}
    new_id = insert_unless_there(connection, sources, {"hash": source_hash, "layer_id": scope.layer_id, **unknown})
    if new_id is not None:
        return new_id
    return int(connection.execute(select(sources.c.id).where(sources.c.hash == source_hash)).scalar_one())


@dataclass(frozen=True, slots=True)
class SourceStore:
    """The rendered kernels."""

    database: Database

    @reading
    def get(self, source_hash: str) -> KernelSource | None:
        """A rendered kernel, whole, with the config of the first trial that used it; None where no text is kept."""
        trials = metadata.tables["trials"]  # by name: their module stands above this one
        statement = (
            select(sources, layers, trials.c.config, templates.c.family)
            .join(layers, layers.c.id == sources.c.layer_id)
            .join(trials, trials.c.source_id == sources.c.id)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(sources.c.hash == source_hash)
            .order_by(trials.c.policy == END_TO_END, trials.c.id)
            .limit(1)
        )
        with self.database.read() as connection:
            row = next(rows_of(connection, statement), None)
            if row is None or not row[sources.c.text_bytes] or not row[sources.c.text_zlib]:
                return None
            return source_of(row, Config.of(row[templates.c.family], json.loads(row[trials.c.config])))
