"""Dispatchers and their trials, whose tuning target is a set of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, RowMapping, select, update

from autotune.devices.device import DeviceInfo
from autotune.problem import Layer
from autotune.store.devices import device_of
from autotune.store.layers import problem_of, store_layer
from autotune.store.rows import insert, record_of, rows_of, values_of
from autotune.store.run_context import TargetScope
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import devices, dispatched_layers, dispatchers, layers, studies, templates, trials
from autotune.store.sqlite.database import Database
from autotune.store.studies import find
from autotune.store.trial_store import begin_trial, within
from autotune.store.trials import config_of, outcome_values
from autotune.trial import Config, Outcome, Timing, Trial


@dataclass(frozen=True, slots=True)
class DispatchedLayer:
    """The kernel that a dispatcher chooses for one layer, its time, and the times of other choices."""

    layer: Layer
    role: Literal["tuned", "held out"]
    kernel: str | None
    """the name of the chosen kernel; None if no kernel supports the layer, which must then be tuned"""
    default_first: bool
    """whether the safe default came first because no threshold of the rule applies to the layer"""
    time_us: float | None
    """time of the chosen kernel; None if no kernel was chosen"""
    best_us: float
    """time of the layer's own best kernel"""
    left_out_us: float | None
    """time of the kernel that a dispatcher built without the layer chooses"""
    default_us: float | None
    """time of the safe default"""
    single_us: float | None
    """time of the kernel that is best on the other layers, or of the default if that kernel does not support this layer
    """
    nearest_us: float | None
    """time of the best kernel of the most similar layer whose kernel supports this layer"""


@dataclass(frozen=True, slots=True)
class DispatcherRow:
    """A dispatcher and the times of its kernels on each layer."""

    study: str
    generation: int
    device: DeviceInfo
    measurement_mode: str
    number: int
    """number of the dispatcher's trial, among the trials of the same set of layers"""
    total_us: float
    """total time of the layers, each weighted by its count"""
    document: str
    """the dispatcher as JSON, which the store does not parse"""
    layers: tuple[DispatchedLayer, ...]
    built_at: datetime

    @property
    def held_out(self) -> bool:
        """Whether some layers were held out to evaluate the dispatcher."""
        return any(layer.role == "held out" for layer in self.layers)


def total_timing(total_us: float) -> Timing:
    """Make a timing, without samples, of the total time for a set of layers."""
    return Timing((total_us,), total_us, total_us, total_us, "")


def _layers_of(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[DispatchedLayer, ...]]:
    """Return these dispatchers' layers in the order they were stored."""
    found: dict[int, list[DispatchedLayer]] = {dispatcher_id: [] for dispatcher_id in ids}
    column = dispatched_layers.c
    statement = (
        select(dispatched_layers, layers)
        .join(layers, layers.c.id == column.layer_id)
        .where(column.dispatcher_id.in_(ids))
        .order_by(column.id)
    )
    for row in rows_of(connection, statement):
        layer = Layer(row[column["name"]], problem_of(row), row[column["count"]])
        found[row[column.dispatcher_id]].append(record_of(DispatchedLayer, row, dispatched_layers, layer=layer))
    return {dispatcher_id: tuple(rows) for dispatcher_id, rows in found.items()}


@dataclass(frozen=True, slots=True)
class DispatcherStore:
    """Stores dispatchers, and the trials for sets of layers that they are built from."""

    database: Database

    def trials(self, scope: TargetScope) -> Mapping[Config, Trial]:
        """Return the finished trials for a set of layers, by config.

        Such a trial has a number, an outcome, a reason, a message and the layers' total time.
        """
        statement = (
            select(trials, templates.c.family)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(within(scope), trials.c.outcome != str(Outcome.RUNNING), trials.c.origin == "measured")
            .order_by(trials.c.number)
        )
        with self.database.read() as connection:
            found = (
                Trial(
                    row[trials.c.number],
                    config_of(row),
                    Outcome(row[trials.c.outcome]),
                    row[trials.c.reason],
                    row[trials.c.message],
                    timing=None if row[trials.c.median_us] is None else total_timing(row[trials.c.median_us]),
                )
                for row in rows_of(connection, statement)
            )
            return {trial.config: trial for trial in found}

    def add_trial(
        self, scope: TargetScope, trial: Trial, total_us: float | None, *, proposed_by: str = "search"
    ) -> None:
        """Store a trial for a set of layers with their total time, weighted by count.

        It is not ranked among kernels.
        """
        now = self.database.now()
        ended: Values = {**outcome_values(trial), "median_us": total_us, "ranking_median_us": None, "ended_at": now}
        with self.database.write() as connection:
            trial_id = begin_trial(connection, scope, trial.number, trial.config, None, now, proposed_by=proposed_by)
            connection.execute(update(trials).where(trials.c.id == trial_id), ended)

    def add(self, scope: TargetScope, number: int, document: str, layers: Sequence[DispatchedLayer]) -> None:
        """Store a trial's dispatcher with its time on each layer, unless the latest stored one is the same."""
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
                insert(connection, dispatched_layers, {**values_of(one, dispatched_layers), **key, **place})

    def list(self, study: str | None = None) -> tuple[DispatcherRow, ...]:
        """List the dispatchers of a study's newest generation, latest first.

        This includes dispatchers built with held-out layers, whose `held_out` is True.
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
    return record_of(
        *(DispatcherRow, row, dispatchers, trials, studies),
        study=row[studies.c.name],
        device=device_of(row),
        total_us=row[trials.c.median_us],
        document=row[dispatchers.c.record],
        layers=members,
    )
