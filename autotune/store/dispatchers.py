"""Dispatchers: trials whose subject is a set of layers, and the records that were made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Column, Connection, Float, ForeignKey, RowMapping, Table, select, update

from autotune.devices.device import DeviceInfo
from autotune.problem import Layer
from autotune.store.column_types import Text, Values, date_of, flag, integer, metadata, real, reference, row_id, text
from autotune.store.devices import device_of, devices
from autotune.store.layers import layers, problem_of, store_layer
from autotune.store.scopes import SubjectScope
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert, rows_of
from autotune.store.studies import find, studies
from autotune.store.templates import templates
from autotune.store.trial_store import begin_trial, within
from autotune.store.trials import config_of, outcome_values, trials
from autotune.store.unreadable import reading
from autotune.trial import Config, Outcome, Timing, Trial

_CONTENT = (
    "role",
    "kernel",
    "default_first",
    "time_us",
    "best_us",
    "left_out_us",
    "default_us",
    "single_us",
    "nearest_us",
)

dispatchers = Table(
    "dispatchers",
    metadata,
    row_id(),
    reference("trial_id", "trials.id"),
    text("record"),
    text("built_at"),
)

dispatched_layers = Table(
    "dispatched_layers",
    metadata,
    Column("dispatcher_id", ForeignKey("dispatchers.id"), primary_key=True),
    Column("layer_id", ForeignKey("layers.id"), primary_key=True),
    text("name"),
    integer("count"),
    text("role"),
    Column("kernel", Text),
    flag("default_first"),
    Column("time_us", Float),
    real("best_us"),
    *(Column(name, Float) for name in ("left_out_us", "default_us", "single_us", "nearest_us")),
)


@dataclass(frozen=True, slots=True)
class DispatchedLayer:
    """What a dispatcher does with one layer, and what other ways to choose would, each made without the layer."""

    layer: Layer
    role: Literal["tuned", "held out"]
    kernel: str | None
    """the name of what serves it; None: nothing fits, it is to be tuned"""
    default_first: bool
    """the rule says nothing of it, so that the safe default came first"""
    time_us: float | None
    """of what serves it"""
    best_us: float
    """of its own best kernel"""
    left_out_us: float | None
    """of what a dispatcher made without it chooses"""
    default_us: float | None
    """of the safe default"""
    single_us: float | None
    """of the single kernel that is best over the other layers, the default where that does not fit"""
    nearest_us: float | None
    """of the best kernel of the layer most like it, of the next one's where that does not fit"""


@dataclass(frozen=True, slots=True)
class DispatcherRow:
    """A dispatcher that was built, with what it costs its layers."""

    study: str
    generation: int
    device: DeviceInfo
    policy: str
    number: int
    """of its trial among those of its set of layers"""
    total_us: float
    """of all its layers, each as often as the network runs it"""
    document: str
    """the dispatcher as who built it wrote it; the store does not look into it"""
    layers: tuple[DispatchedLayer, ...]
    built_at: datetime

    @property
    def held_out(self) -> bool:
        """Whether layers were kept from its making to judge it by."""
        return any(layer.role == "held out" for layer in self.layers)


def _trial_of(row: RowMapping) -> Trial:
    column = trials.c
    us = row[column.median_us]
    return Trial(
        *(row[column.number], config_of(row), Outcome(row[column.outcome]), row[column.reason], row[column.message]),
        timing=None if us is None else total_timing(us),
    )


def total_timing(total_us: float) -> Timing:
    """The time of a set of layers, which has no samples of its own."""
    return Timing((total_us,), total_us, total_us, total_us, "")


def _layers_of(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[DispatchedLayer, ...]]:
    """The layers of these dispatchers, in the order in which they were stored."""
    found: dict[int, list[DispatchedLayer]] = {dispatcher_id: [] for dispatcher_id in ids}
    column = dispatched_layers.c
    statement = (
        select(dispatched_layers, layers)
        .join(layers, layers.c.id == column.layer_id)
        .where(column.dispatcher_id.in_(ids))
        .order_by(text("dispatched_layers.rowid"))
    )
    for row in rows_of(connection, statement):
        layer = Layer(row[column.name], problem_of(row), row[column.count])
        content = {name: row[column[name]] for name in _CONTENT}
        found[row[column.dispatcher_id]].append(DispatchedLayer(layer, **content))
    return {dispatcher_id: tuple(rows) for dispatcher_id, rows in found.items()}


@dataclass(frozen=True, slots=True)
class DispatcherStore:
    """Dispatchers, and the trials of the sets of layers that they are made of."""

    database: Database

    @reading
    def trials(self, scope: SubjectScope) -> Mapping[Config, Trial]:
        """The finished trials of a set of layers by config: number, outcome, reason, message and time of all layers."""
        statement = (
            select(trials, templates.c.family)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(within(scope), trials.c.outcome != str(Outcome.RUNNING), trials.c.origin == "measured")
            .order_by(trials.c.number)
        )
        with self.database.read() as connection:
            return {trial.config: trial for trial in map(_trial_of, rows_of(connection, statement))}

    def add_trial(
        self, scope: SubjectScope, trial: Trial, total_us: float | None, *, proposed_by: str = "search"
    ) -> None:
        """Store a trial of a set of layers with the time of all of them, each as often as the network runs it.

        It ranks nowhere among kernels.
        """
        now = self.database.now()
        ended: Values = {**outcome_values(trial), "median_us": total_us, "ranked_us": None, "ended_at": now}
        with self.database.write() as connection:
            trial_id = begin_trial(connection, scope, trial.number, trial.config, None, now, proposed_by=proposed_by)
            connection.execute(update(trials).where(trials.c.id == trial_id), ended)

    def add(self, scope: SubjectScope, number: int, document: str, layers: Sequence[DispatchedLayer]) -> None:
        """Store the dispatcher of a trial with what it costs each layer; once, where nothing has changed."""
        with self.database.write() as connection:
            numbered = (within(scope), trials.c.number == number)
            trial_id = connection.execute(select(trials.c.id).where(*numbered)).scalar_one()
            of_trial = select(dispatchers).where(dispatchers.c.trial_id == trial_id).order_by(dispatchers.c.id.desc())
            row = next(rows_of(connection, of_trial.limit(1)), None)
            if row is not None and row[dispatchers.c.record] == document:
                latest_id = row[dispatchers.c.id]
                if _layers_of(connection, [latest_id])[latest_id] == tuple(layers):
                    return
            values: Values = {"trial_id": trial_id, "record": document, "built_at": self.database.now()}
            dispatcher_id = insert(connection, dispatchers, values)
            for one in layers:
                layer_id, _ = store_layer(connection, one.layer)
                key: Values = {"dispatcher_id": dispatcher_id, "layer_id": layer_id}
                place: Values = {"name": one.layer.name, "count": one.layer.count}
                content: Values = {name: getattr(one, name) for name in _CONTENT}
                connection.execute(dispatched_layers.insert(), {**key, **place, **content})

    @reading
    def list(self, study: str | None = None) -> tuple[DispatcherRow, ...]:
        """The dispatchers that were built of a study's newest generation, the latest first.

        Those that were built to be judged by layers held out are among them; `held_out` says which.
        """
        with self.database.read() as connection:
            ids = {place.study_id for place in find(connection, study, self.database.shown)}
            statement = (
                select(dispatchers, trials, studies, devices)
                .join(trials, trials.c.id == dispatchers.c.trial_id)
                .join(studies, studies.c.id == trials.c.study_id)
                .join(devices, devices.c.id == trials.c.device_id)
                .where(trials.c.study_id.in_(ids), trials.c.origin == "measured")
                .order_by(dispatchers.c.id.desc())
            )
            rows = list(rows_of(connection, statement))
            members = _layers_of(connection, [row[dispatchers.c.id] for row in rows])
            return tuple(_row(row, members[row[dispatchers.c.id]]) for row in rows)


def _row(row: RowMapping, members: tuple[DispatchedLayer, ...]) -> DispatcherRow:
    return DispatcherRow(
        study=row[studies.c.name],
        generation=row[studies.c.generation],
        device=device_of(row),
        policy=row[trials.c.policy],
        number=row[trials.c.number],
        total_us=row[trials.c.median_us],
        document=row[dispatchers.c.record],
        layers=members,
        built_at=date_of(row[dispatchers.c.built_at]),
    )
