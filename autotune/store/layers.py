"""Layers as shapes, and the subjects of trials: a layer, a set of layers, an imported space."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Integer,
    RowMapping,
    Table,
    UniqueConstraint,
    case,
    func,
    select,
)

from autotune.errors import StoreError
from autotune.operation import parse_operation
from autotune.operations import CONV2D, operation, operations
from autotune.problem import Layer, Problem, make_problem
from autotune.store.column_types import LARGEST, SqlValue, Text, Values, integer, metadata, row_id, text
from autotune.store.statements import identify, insert

_KEPT = 4096  # problems that a process keeps
_NOWHERE = Path(os.devnull)  # the folder of a stored operation: nothing is read or run there
_SIZES = tuple(size.name for size in operation(CONV2D).sizes)
_WORDS = tuple(operation(CONV2D).words)
_DERIVED = ("p", "q")
NAMED = (*_SIZES, *_WORDS, *_DERIVED)
"""conv2d's sizes and words, for SQL; another operation has those that are its own, and NULL. More need a migration."""
IDENTITY = ("operation", "problem")
"""The columns that identify a layer."""
PROBLEM_COLUMNS = (*IDENTITY, "declaration", *NAMED)
"""All that a problem is made of."""

LARGEST_INTEGER = 2**63 - 1
"""SQLite's integers are signed and have 64 bits"""

layers = Table(
    "layers",
    metadata,
    row_id(),
    *(Column(name, Integer) for name in _SIZES),
    *(Column(name, Text) for name in _WORDS),
    *(Column(name, Integer) for name in _DERIVED),
    *(integer(name) for name in ("flops", "minimal_bytes")),
    *(text(name) for name in IDENTITY),
    Column("declaration", Text),
    UniqueConstraint(*IDENTITY),
)

subjects = Table(
    "subjects",
    metadata,
    row_id(),
    text("kind"),
    Column("layer_id", ForeignKey("layers.id"), unique=True),
    Column("name", Text),
    Column("params", Text),
    UniqueConstraint("name", "params"),
)

subject_layers = Table(
    "subject_layers",
    metadata,
    Column("subject_id", ForeignKey("subjects.id"), primary_key=True),
    Column("layer_id", ForeignKey("layers.id"), primary_key=True),
)


def problem_values(problem: Problem) -> Values:
    """The columns that identify a layer: its operation's name, and sizes and words as JSON whose keys are sorted."""
    return {
        "operation": problem.operation.name,
        "problem": json.dumps(dict(problem.values), sort_keys=True, separators=(",", ":")),
    }


def problem_extras(problem: Problem) -> Values:
    """The columns computed from a problem. Raises StoreError when they do not fit SQLite's integers."""
    if max(problem.flops, problem.tensor_bytes) > LARGEST_INTEGER:
        raise StoreError(
            f"layer {problem}: too large to store, over 2^63 operations or bytes; "
            f"make {problem.operation.runtime} smaller"
        )
    declared = problem.operation
    return {
        **dict(zip(NAMED, _named(problem), strict=True)),
        "declaration": None if declared.name in operations() else declared.text,
        "flops": problem.flops,
        "minimal_bytes": problem.tensor_bytes,
    }


def _named(problem: Problem) -> tuple[SqlValue, ...]:
    """What the columns NAMED have: of another operation's names, those that stand for the like, others NULL."""
    names = problem.names()
    sizes = map(names.get, (*_SIZES, *_DERIVED))
    whole = [value if type(value) is int and 0 <= value <= LARGEST else None for value in sizes]
    texts = [value if isinstance(value, str) else None for value in map(names.get, _WORDS)]
    return (*whole[: len(_SIZES)], *texts, *whole[len(_SIZES) :])


def problem_of(row: RowMapping) -> Problem:
    """The problem of a row that has the columns of `layers`. Raises as `stored_problem` does."""
    return stored_problem(*(row[layers.c[name]] for name in PROBLEM_COLUMNS))


@lru_cache(maxsize=_KEPT)
def stored_problem(name: str, values: str, declaration: str | None, *named: SqlValue) -> Problem:
    """A problem of what `PROBLEM_COLUMNS` say: its operation, its values as JSON, the declaration, and values by name.

    Raises ValueError, TypeError, StudyError or TemplateError for what is no problem, or where they disagree.
    """
    given = json.loads(values)
    problem = make_problem(
        operation(name) if declaration is None else parse_operation(_NOWHERE / name, declaration), given
    )
    if given != problem.values or named != _named(problem):
        raise ValueError("its columns do not agree")
    return problem


def store_layer(connection: Connection, layer: Layer) -> tuple[int, int]:
    """Ids of a layer's shape and of the subject that it is."""
    problem = layer.problem
    layer_id = identify(connection, layers, problem_values(problem), problem_extras(problem))
    return layer_id, identify(connection, subjects, {"kind": "layer", "layer_id": layer_id}, {})


def store_layer_set(connection: Connection, members: Sequence[Layer]) -> int:
    """Id of the subject that a set of layers is."""
    ids = {store_layer(connection, layer)[0] for layer in members}
    sets = (
        select(subject_layers.c.subject_id)
        .group_by(subject_layers.c.subject_id)
        .having(func.count() == len(ids), func.sum(case((subject_layers.c.layer_id.in_(ids), 1), else_=0)) == len(ids))
    )
    found = connection.execute(sets).scalar_one_or_none()
    if found is not None:
        return int(found)
    subject_id = insert(connection, subjects, {"kind": "layers"})
    for layer_id in sorted(ids):
        connection.execute(subject_layers.insert(), {"subject_id": subject_id, "layer_id": layer_id})
    return subject_id


def of_problem(problem: Problem) -> tuple[ColumnElement[bool], ...]:
    """The conditions on a row of `layers` that it is of this shape."""
    return tuple(layers.c[name] == value for name, value in problem_values(problem).items())


def layers_of_sets(connection: Connection) -> dict[int, frozenset[int]]:
    """The layers' ids of each subject that is a set of layers."""
    found: dict[int, set[int]] = {}
    for subject_id, layer_id in connection.execute(select(subject_layers.c.subject_id, subject_layers.c.layer_id)):
        found.setdefault(subject_id, set()).add(layer_id)
    return {subject_id: frozenset(layer_ids) for subject_id, layer_ids in found.items()}
