"""Layers as shapes, and the subjects of trials: a layer, a set of layers, an imported space."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    RowMapping,
    Table,
    UniqueConstraint,
    case,
    func,
    select,
)

from autotune.errors import StoreError
from autotune.operation import operation
from autotune.problem import Conv2dProblem, Layer
from autotune.store.column_types import Text, Values, integer, metadata, row_id, text
from autotune.store.statements import identify, insert

_SIZES = tuple(size.name for size in operation().sizes)
_WORDS = tuple(operation().words)

PROBLEM_COLUMNS = (*_SIZES, *_WORDS)
"""Conv2dProblem's fields, in its order: the operation's declared sizes and words. A new one needs a migration."""

LARGEST_INTEGER = 2**63 - 1
"""SQLite's integers are signed and have 64 bits"""

layers = Table(
    "layers",
    metadata,
    row_id(),
    *(integer(name) for name in _SIZES),
    *(text(name) for name in _WORDS),
    *(integer(name) for name in ("p", "q", "flops", "minimal_bytes")),
    UniqueConstraint(*PROBLEM_COLUMNS),
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


def problem_values(problem: Conv2dProblem) -> Values:
    """The columns that identify a layer."""
    return {name: getattr(problem, name) for name in PROBLEM_COLUMNS}


def problem_extras(problem: Conv2dProblem) -> Values:
    """The columns computed from a problem. Raises StoreError when they do not fit SQLite's integers."""
    extras: Values = {"p": problem.p, "q": problem.q, "flops": problem.flops, "minimal_bytes": problem.tensor_bytes}
    if max(problem.flops, problem.tensor_bytes) > LARGEST_INTEGER:
        raise StoreError(f"layer {problem}: too large to store, over 2^63 operations or bytes; make n smaller")
    return extras


def problem_of(row: RowMapping) -> Conv2dProblem:
    """The problem of a row that has the columns of `layers`."""
    return Conv2dProblem(*(row[layers.c[name]] for name in PROBLEM_COLUMNS))


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


def of_problem(problem: Conv2dProblem) -> tuple[ColumnElement[bool], ...]:
    """The conditions on a row of `layers` that it is of this shape."""
    return tuple(layers.c[name] == value for name, value in problem_values(problem).items())


def layers_of_sets(connection: Connection) -> dict[int, frozenset[int]]:
    """The layers' ids of each subject that is a set of layers."""
    found: dict[int, set[int]] = {}
    for subject_id, layer_id in connection.execute(select(subject_layers.c.subject_id, subject_layers.c.layer_id)):
        found.setdefault(subject_id, set()).add(layer_id)
    return {subject_id: frozenset(layer_ids) for subject_id, layer_ids in found.items()}
