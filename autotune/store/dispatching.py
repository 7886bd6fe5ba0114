"""Dispatchers in the store: trials whose subject is a set of layers, and the records that were made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, RowMapping, and_, select, text, update

from autotune.problem import Layer
from autotune.store import recording
from autotune.store.answers import Place
from autotune.store.columns import Values, date_of
from autotune.store.records import DispatchedLayer, DispatcherRow, SubjectScope
from autotune.store.rows import config_of, device_of, outcome_values, problem_of
from autotune.store.tables import devices, dispatched_layers, dispatchers, layers, studies, templates, trials
from autotune.trial import Config, Outcome, Trial


def list_trials(connection: Connection, scope: SubjectScope) -> Mapping[Config, Trial]:
    """The finished trials of a set of layers by config: number, outcome and reason; a dispatcher has no samples."""
    statement = (
        select(trials, templates.c.family)
        .join(templates, templates.c.id == trials.c.template_id)
        .where(recording.within(scope), trials.c.outcome != str(Outcome.RUNNING), trials.c.origin == "measured")
        .order_by(trials.c.number)
    )
    return {trial.config: trial for trial in map(_trial_of, connection.execute(statement).mappings())}


def _trial_of(row: RowMapping) -> Trial:
    column = trials.c
    return Trial(
        row[column.number], config_of(row), Outcome(row[column.outcome]), row[column.reason], row[column.message]
    )


def add_trial(
    connection: Connection, scope: SubjectScope, trial: Trial, total_us: float | None, now: str, *, proposed_by: str
) -> None:
    """Insert a trial of a set of layers; it ranks nowhere among kernels."""
    trial_id = recording.begin_trial(connection, scope, trial.number, trial.config, None, now, proposed_by=proposed_by)
    values = outcome_values(trial)
    ended: Values = {**values, "median_us": total_us, "ranked_us": None, "ended_at": now}
    connection.execute(update(trials).where(trials.c.id == trial_id), ended)


def add_dispatcher(
    connection: Connection,
    scope: SubjectScope,
    number: int,
    document: str,
    rows: Sequence[DispatchedLayer],
    now: str,
) -> None:
    """Insert a dispatcher with what it costs its layers, unless the latest of its trial is the same."""
    numbered = and_(recording.within(scope), trials.c.number == number)
    trial_id = connection.execute(select(trials.c.id).where(numbered)).scalar_one()
    latest = select(dispatchers).where(dispatchers.c.trial_id == trial_id).order_by(dispatchers.c.id.desc()).limit(1)
    row = connection.execute(latest).mappings().one_or_none()
    if row is not None and row[dispatchers.c.record] == document:
        dispatcher_id = row[dispatchers.c.id]
        if _layers_of(connection, [dispatcher_id])[dispatcher_id] == tuple(rows):
            return
    values: Values = {"trial_id": trial_id, "record": document, "built_at": now}
    dispatcher_id = recording.insert(connection, dispatchers, values)
    for one in rows:
        layer_id, _ = recording.subject(connection, one.layer)
        content: Values = {name: getattr(one, name) for name in _CONTENT}
        place: Values = {"name": one.layer.name, "count": one.layer.count}
        key: Values = {"dispatcher_id": dispatcher_id, "layer_id": layer_id}
        connection.execute(dispatched_layers.insert(), {**key, **place, **content})


_CONTENT = ("role", "kernel", "unsure", "time_us", "best_us", "left_out_us", "default_us", "single_us", "nearest_us")


def list_dispatchers(connection: Connection, places: Sequence[Place]) -> tuple[DispatcherRow, ...]:
    """The dispatchers that were built here of these studies' generations, the latest first."""
    statement = (
        select(dispatchers, trials, studies, devices)
        .join(trials, trials.c.id == dispatchers.c.trial_id)
        .join(studies, studies.c.id == trials.c.study_id)
        .join(devices, devices.c.id == trials.c.device_id)
        .where(trials.c.study_id.in_({place.study_id for place in places}), trials.c.origin == "measured")
        .order_by(dispatchers.c.built_at.desc(), dispatchers.c.id.desc())
    )
    rows = connection.execute(statement).mappings().all()
    members = _layers_of(connection, [row[dispatchers.c.id] for row in rows])
    return tuple(
        DispatcherRow(
            study=row[studies.c.name],
            generation=row[studies.c.generation],
            device=device_of(row),
            policy=row[trials.c.policy],
            number=row[trials.c.number],
            total_us=row[trials.c.median_us],
            document=row[dispatchers.c.record],
            layers=members[row[dispatchers.c.id]],
            built_at=date_of(row[dispatchers.c.built_at]),
        )
        for row in rows
    )


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
    for row in connection.execute(statement).mappings():
        layer = Layer(row[column.name], problem_of(row), row[column.count])
        content = {name: row[column[name]] for name in _CONTENT}
        found[row[column.dispatcher_id]].append(DispatchedLayer(layer, **content))
    return {dispatcher_id: tuple(rows) for dispatcher_id, rows in found.items()}
