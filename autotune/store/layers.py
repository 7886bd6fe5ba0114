"""Layers as shapes, and tuning targets: a layer or a set of layers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, RowMapping, case, func, select

from autotune.errors import StoreError
from autotune.operation.operation import parse_operation
from autotune.operation.registry import operation, operations
from autotune.problem import Layer, Problem, make_problem
from autotune.store.rows import identify, insert
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import SIZES, WORDS, layers, tuning_target_layers, tuning_targets

_KEPT = 4096  # number of problems that a process caches
_NOWHERE = Path(os.devnull)  # the folder of a stored operation: no file is read or run from it

LARGEST_INTEGER = 2**63 - 1
"""SQLite's largest integer (signed, 64 bits)."""


def problem_values(problem: Problem) -> Values:
    """Return the columns that identify a layer: the operation's name, and sizes and words as JSON with sorted keys."""
    return {
        "operation": problem.operation.name,
        "problem": json.dumps(dict(problem.values), sort_keys=True, separators=(",", ":")),
    }


def problem_extras(problem: Problem) -> Values:
    """Return the columns computed from a problem. Raises StoreError if a value doesn't fit into SQLite's integers."""
    if max(problem.flops, problem.tensor_bytes) > LARGEST_INTEGER:
        raise StoreError(
            f"layer {problem}: too large to store, over 2^63 operations or bytes; "
            f"make {problem.operation.runtime} smaller"
        )
    declared, names = problem.operation, problem.names()
    return {
        **{name: value if type(value := names.get(name)) is int else None for name in (*SIZES, "p", "q")},
        **{name: value if isinstance(value := names.get(name), str) else None for name in WORDS},
        "declaration": None if declared.name in operations() else declared.text,
        "flops": problem.flops,
        "minimal_bytes": problem.tensor_bytes,
    }


def problem_of(row: RowMapping) -> Problem:
    """Make the problem of a row that includes the columns of `layers`."""
    return stored_problem(row[layers.c.operation], row[layers.c.problem], row[layers.c.declaration])


@lru_cache(maxsize=_KEPT)
def stored_problem(name: str, values: str, declaration: str | None) -> Problem:
    """Make a problem from its operation's name and its values as JSON.

    `declaration` is the text of an operation that isn't bundled.
    """
    known = operation(name) if declaration is None else parse_operation(_NOWHERE / name, declaration)
    return make_problem(known, json.loads(values))


def store_layer(connection: Connection, layer: Layer) -> tuple[int, int]:
    """Store a layer's shape and tuning target if they are new, and return the ids of both."""
    problem = layer.problem
    layer_id = identify(connection, layers, problem_values(problem), problem_extras(problem))
    return layer_id, identify(connection, tuning_targets, {"kind": "layer", "layer_id": layer_id}, {})


def store_layer_set(connection: Connection, members: Sequence[Layer]) -> int:
    """Store the tuning target for a set of layers if it is new, and return its id."""
    ids = {store_layer(connection, layer)[0] for layer in members}
    column = tuning_target_layers.c
    sets = (
        select(column.tuning_target_id)
        .group_by(column.tuning_target_id)
        .having(func.count() == len(ids), func.sum(case((column.layer_id.in_(ids), 1), else_=0)) == len(ids))
    )
    found = connection.execute(sets).scalar_one_or_none()
    if found is not None:
        return int(found)
    target_id = insert(connection, tuning_targets, {"kind": "layers"})
    for layer_id in sorted(ids):
        connection.execute(tuning_target_layers.insert(), {"tuning_target_id": target_id, "layer_id": layer_id})
    return target_id


def of_problem(problem: Problem) -> tuple[ColumnElement[bool], ...]:
    """Return conditions that select the row of `layers` with this shape."""
    return tuple(layers.c[name] == value for name, value in problem_values(problem).items())
