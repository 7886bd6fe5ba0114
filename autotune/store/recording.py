"""What the store writes, each function a part of its caller's transaction; `now` is the date that new rows get."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Insert,
    RowMapping,
    Table,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.dialects.sqlite import insert as insert_new

from autotune import __version__
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import StoreError
from autotune.family.source import KernelSource
from autotune.problem import Layer
from autotune.store.columns import Values, date_of, escaped, metadata
from autotune.store.records import (
    RETIME_LABELS,
    Finals,
    KernelProfile,
    Scope,
    StudyKey,
    StudyRecord,
    SubjectScope,
    TemplateRecord,
    TrialKey,
    TrialRow,
)
from autotune.store.rows import (
    device_identity,
    device_limits,
    environment_identity,
    outcome_values,
    problem_extras,
    problem_values,
    profile_values,
    source_text,
    source_values,
    span_values,
    timing_values,
)
from autotune.store.sqlite.database import one_line
from autotune.store.tables import (
    devices,
    environments,
    finals,
    layers,
    measurements,
    profiles,
    retimes,
    runs,
    sources,
    spans,
    studies,
    study_layers,
    subject_layers,
    subjects,
    templates,
    trials,
    verdicts,
)
from autotune.trial import Config, Outcome, SpanParts, Timing, Trial

# The statements of every trial, made once.
_INSERT = {table: table.insert() for table in metadata.sorted_tables}
_INSERT_NEW = {table: insert_new(table).on_conflict_do_nothing() for table in (sources, trials)}
_DIALECT = dialect(paramstyle="named")
_SOURCE = select(sources).where(sources.c.hash == bindparam("hash"))
_SCOPE = ("study_id", "subject_id", "device_id", "environment_id", "policy")
_NUMBERED = select(trials.c.id, trials.c.outcome, trials.c.config, trials.c.attempts).where(
    *(trials.c[name] == bindparam(name) for name in (*_SCOPE, "number"))
)
# A copy does not rank: the trial that it was copied from has the same shape, device and policy, and may be measured
# again.
_END = (
    update(trials)
    .where(trials.c.id == bindparam("trial_id"), trials.c.outcome == str(Outcome.RUNNING))
    .values(ranked_us=case((trials.c.reused_trial_id.is_(None), bindparam("own_us"))))
)


@cache
def _sql(statement: Insert | Update, names: tuple[str, ...]) -> tuple[str, Values]:
    """A statement's text, with the values that it has itself."""
    compiled = statement.compile(dialect=_DIALECT, column_keys=names)
    return str(compiled), {name: value for name, value in compiled.params.items() if name not in names}


def _run(connection: Connection, statement: Insert | Update, values: Values) -> CursorResult[Any]:
    """Run a statement as its text: SQLAlchemy takes longer to adapt a trial's values than SQLite to store them."""
    text, fixed = _sql(statement, tuple(values))
    given = {name: escaped(value) if isinstance(value, str) else value for name, value in values.items()}
    return connection.exec_driver_sql(text, {**given, **fixed})


def insert(connection: Connection, table: Table, values: Values) -> int:
    """Insert a row and return its id."""
    return _run(connection, _INSERT[table], values).lastrowid


def insert_unless_there(connection: Connection, table: Table, values: Values) -> int | None:
    """Insert a row and return its id; None when a row with its identity is there."""
    result = _run(connection, _INSERT_NEW[table], values)
    return result.lastrowid if result.rowcount else None


def next_id(connection: Connection, table: Table) -> int:
    """The id of the next new row."""
    return int(connection.execute(select(func.max(table.c.id))).scalar_one() or 0) + 1


def identify(connection: Connection, table: Table, identity: Values, rest: Values) -> int:
    """The id of the row with this identity; a new row gets the rest too."""
    matches = [table.c[name] == value for name, value in identity.items()]
    found = connection.execute(select(table.c.id).where(*matches)).scalar_one_or_none()
    return insert(connection, table, {**identity, **rest}) if found is None else int(found)


def begin_study(connection: Connection, record: StudyRecord, now: str, *, fresh: bool) -> StudyKey:
    """The study's newest generation brought up to date, or a new generation."""
    newest = (
        select(studies.c.id, studies.c.generation, studies.c.fresh, studies.c.created_at)
        .where(studies.c.name == record.name, studies.c.imported_from.is_(None))
        .order_by(studies.c.generation.desc())
        .limit(1)
    )
    row = connection.execute(newest).one_or_none()
    content: Values = {"seed": record.seed, "text": record.text}
    if row is None or fresh:
        generation = next_generation(connection, record.name)
        identity: Values = {"name": record.name, "generation": generation, "fresh": fresh, "created_at": now}
        study_id = insert(connection, studies, {**identity, **content})
    else:
        study_id, generation = row.id, row.generation
        fresh, now = row.fresh, row.created_at
        connection.execute(update(studies).where(studies.c.id == study_id), content)
    connection.execute(update(study_layers).where(study_layers.c.study_id == study_id).values(position=None))
    for position, layer in enumerate(record.layers):
        _layer_id, subject_id = subject(connection, layer)
        named = and_(
            study_layers.c.study_id == study_id,
            study_layers.c.name == layer.name,
            study_layers.c.subject_id == subject_id,
        )
        place: Values = {"count": layer.count, "position": position}
        if connection.execute(update(study_layers).where(named), place).rowcount == 0:
            owner: Values = {"study_id": study_id, "name": layer.name, "subject_id": subject_id}
            connection.execute(study_layers.insert(), {**owner, **place})
    return StudyKey(study_id, record.name, generation, date_of(now) if fresh else None)


def next_generation(connection: Connection, name: str) -> int:
    """One more than any study of this name has, imported ones included."""
    last = select(func.max(studies.c.generation)).where(studies.c.name == name)
    return (connection.execute(last).scalar_one() or 0) + 1


def subject(connection: Connection, layer: Layer) -> tuple[int, int]:
    """Ids of a layer's shape and of the subject that it is."""
    problem = layer.problem
    layer_id = identify(connection, layers, problem_values(problem), problem_extras(problem))
    return layer_id, identify(connection, subjects, {"kind": "layer", "layer_id": layer_id}, {})


def layer_set(connection: Connection, members: Sequence[Layer]) -> int:
    """Id of the subject that a set of layers is."""
    ids = {subject(connection, layer)[0] for layer in members}
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


def device(connection: Connection, info: DeviceInfo, now: str) -> int:
    """Id of a device; its limits become what is known now."""
    limits = device_limits(info)
    device_id = identify(connection, devices, device_identity(info), {**limits, "first_seen_at": now})
    connection.execute(update(devices).where(devices.c.id == device_id), limits)
    return device_id


def environment(connection: Connection, record: Environment, now: str) -> int:
    """Id of an environment, matched field by field; its attributes belong to a run."""
    return identify(connection, environments, environment_identity(record), {"first_seen_at": now})


def run(connection: Connection, device_id: int, environment_id: int, record: Environment, now: str) -> int:
    """Id of a new run."""
    attributes = json.dumps(dict(record.attributes), sort_keys=True)
    ids: Values = {"device_id": device_id, "environment_id": environment_id}
    rest: Values = {"attributes": attributes, "autotune_version": __version__, "started_at": now}
    return insert(connection, runs, {**ids, **rest})


def template(connection: Connection, record: TemplateRecord, now: str) -> int:
    """Id of a template's version."""
    identity: Values = {"family": record.family, "hash": record.hash}
    return identify(connection, templates, identity, {"header": record.header, "first_seen_at": now})


def source(connection: Connection, scope: Scope, record: KernelSource) -> int:
    """Id of a rendered kernel, whose text is filled in where only its hash was kept.

    Raises StoreError when another kernel has its hash.
    """
    values = source_values(record)
    new_id = insert_unless_there(connection, sources, {**values, "layer_id": scope.layer_id})
    if new_id is not None:
        return new_id
    row = connection.execute(_SOURCE, {"hash": record.hash}).mappings().one()
    if not row[sources.c.text_bytes]:
        connection.execute(update(sources).where(sources.c.id == row[sources.c.id]), values)
        return int(row[sources.c.id])
    same = row[sources.c.launches] == values["launches"] and row[sources.c.flags] == values["flags"]
    if not same or source_text(row).encode() != record.program.text.encode("utf-8", "backslashreplace"):
        raise StoreError(f"{scope.name}: two different kernels claim the hash {record.hash}; do not trust this file")
    return int(row[sources.c.id])


def identity_of(scope: SubjectScope, number: int) -> Values:
    """What makes a trial the only one of its number."""
    return {
        "study_id": scope.study.id,
        "subject_id": scope.subject_id,
        "device_id": scope.device_id,
        "environment_id": scope.environment_id,
        "policy": scope.policy,
        "number": number,
    }


def begun(scope: SubjectScope, config: Config, now: str, proposed_by: str) -> Values:
    """What is known of a trial as it begins."""
    template_id = dict(scope.template_ids).get(config.template)
    if template_id is None:
        raise ValueError(f"family {config.template} was not given to Store.scope")
    return {
        "run_id": scope.run_id,
        "template_id": template_id,
        "config": config.to_json(),
        "started_at": now,
        "proposed_by": proposed_by,
    }


def add_rejected(
    connection: Connection, scope: SubjectScope, rejected: Sequence[Trial], now: str, proposed_by: str
) -> None:
    """Insert trials that ended before they had a source."""
    rows = [
        {
            **identity_of(scope, trial.number),
            **begun(scope, trial.config, now, proposed_by),
            **outcome_values(trial),
            "attempts": 1,
            "ended_at": now,
        }
        for trial in rejected
    ]
    if rows:
        connection.execute(trials.insert(), rows)


def begin_trial(
    connection: Connection,
    scope: SubjectScope,
    number: int,
    config: Config,
    source_id: int | None,
    now: str,
    *,
    proposed_by: str,
    reused_trial_id: int | None = None,
) -> int:
    """Id of a running trial: a new one, or the suspect of that number and config begun again.

    Raises StoreError when the scope has that number already otherwise.
    """
    beginning: Values = {
        **begun(scope, config, now, proposed_by),
        "source_id": source_id,
        "reused_trial_id": reused_trial_id,
    }
    identity = identity_of(scope, number)
    running = outcome_values(Trial(number, config, Outcome.RUNNING))
    new_id = insert_unless_there(connection, trials, {**identity, **beginning, **running, "attempts": 1})
    if new_id is not None:
        return new_id
    row = connection.execute(_NUMBERED, identity).mappings().one()
    if row[trials.c.outcome] != str(Outcome.RUNNING) or row[trials.c.config] != config.to_json():
        raise StoreError(
            f"{scope.name}: trial {number} is stored already; is another run tuning this study into the same file?"
        )
    again = update(trials).where(trials.c.id == row[trials.c.id])
    connection.execute(again, {**beginning, "attempts": row[trials.c.attempts] + 1})
    return int(row[trials.c.id])


def end_trial(connection: Connection, key: TrialKey, trial: Trial, now: str, parts: SpanParts | None = None) -> None:
    """Complete a running trial and add its measurement, with its parts where it is end to end.

    Raises StoreError when it is not running.
    """
    if trial.outcome == Outcome.RUNNING or (trial.number, trial.config) != (key.number, key.config):
        raise ValueError(f"trial {key.number} cannot end as {trial}")
    if trial.source_hash not in (None, key.source_hash):
        raise ValueError(f"trial {key.number} was begun with source {key.source_hash}, not {trial.source_hash}")
    what = f"trial {trial.number} ({one_line(str(trial.config))})"
    timing = None if trial.timing is None else timing_values(trial.timing, what)
    values = outcome_values(trial)
    own_us = values.pop("ranked_us")
    changed = _run(connection, _END, {**values, "trial_id": key.id, "own_us": own_us, "ended_at": now})
    if changed.rowcount != 1:
        raise StoreError(f"trial {key.number} has ended already; is another run tuning this study into the same file?")
    if timing is not None:
        insert(connection, measurements, {"trial_id": key.id, **timing})
    if parts is not None:
        insert(connection, spans, {"trial_id": key.id, **span_values(parts, what)})


def add_profiles(
    connection: Connection, trial_id: int, run_id: int, records: Sequence[KernelProfile], now: str
) -> None:
    """Insert what a profiler saw of a trial's launches."""
    for record in records:
        ids: Values = {"trial_id": trial_id, "run_id": run_id, "profiled_at": now}
        insert(connection, profiles, {**ids, **profile_values(record)})


def add_finals(connection: Connection, scope: Scope, record: Finals, now: str) -> None:
    """Insert finals with their measurements and verdicts. Raises StoreError for a number that the scope lacks."""
    finals_id = insert(
        connection,
        finals,
        {
            "study_id": scope.study.id,
            "subject_id": scope.subject_id,
            "device_id": scope.device_id,
            "environment_id": scope.environment_id,
            "policy": scope.policy,
            "winner_trial_id": _correct_trial(connection, scope, record.winner),
            "ended_at": now,
        },
    )
    winner = update(trials).where(trials.c.id == _correct_trial(connection, scope, record.winner))
    connection.execute(winner.values(ranked_us=func.coalesce(trials.c.ranked_us, trials.c.median_us)))
    for number, timing in record.timings:
        trial_id = _correct_trial(connection, scope, number)
        values = timing_values(timing, f"trial {number} in the finals of {scope.name}")
        insert(connection, measurements, {"trial_id": trial_id, "finals_id": finals_id, **values})
        connection.execute(update(trials).where(trials.c.id == trial_id).values(ranked_us=timing.median_us))
    for verdict in record.verdicts:
        number_against = verdict.against_number
        insert(
            connection,
            verdicts,
            {
                "finals_id": finals_id,
                "against": verdict.against,
                "against_trial_id": None
                if number_against is None
                else _correct_trial(connection, scope, number_against),
                "verdict": verdict.verdict,
                "median_us": verdict.median_us,
                "against_us": verdict.against_us,
                "against_accuracy": verdict.against_accuracy,
            },
        )


def add_retime(
    connection: Connection,
    row: TrialRow,
    run_id: int,
    label: str,
    timing: Timing | None,
    message: str,
    now: str,
) -> float:
    """Insert a retime with its measurement and rank the trial by it; the median that the trial had.

    Of one kernel on one device only the trial that was measured last ranks. Finals that a retime puts in doubt decide
    no more. Raises StoreError for a trial without a time.
    """
    what = f"retime of trial {row.trial.number} of {row.name}"
    if label not in RETIME_LABELS or (label == "failed") != (timing is None):
        raise ValueError(f"{what}: label {label} with timing {timing}")
    stored = connection.execute(select(trials).where(trials.c.id == row.id)).mappings().one_or_none()
    if stored is None or stored[trials.c.median_us] is None:
        raise StoreError(f"{what}: it is not a correct trial of this database")
    ranked_us, after_us = stored[trials.c.ranked_us], None if timing is None else timing.median_us
    before_us = stored[trials.c.median_us] if ranked_us is None else ranked_us
    result: Values = {"before_us": before_us, "after_us": after_us, "label": label, "message": message}
    retime_id = insert(connection, retimes, {"trial_id": row.id, "run_id": run_id, **result, "ended_at": now})
    if timing is not None:
        values = timing_values(timing, what)
        insert(connection, measurements, {"trial_id": row.id, "retime_id": retime_id, **values})
    if stored[trials.c.source_id] is not None:
        same_kernel = [trials.c[name] == stored[trials.c[name]] for name in ("source_id", "device_id", "policy")]
        connection.execute(update(trials).where(*same_kernel).values(ranked_us=None))
    connection.execute(update(trials).where(trials.c.id == row.id).values(ranked_us=after_us))
    if (label != "confirmed") if ranked_us is not None else (label != "failed"):
        supersede_finals(connection, stored, now)
    return float(before_us)


def supersede_finals(connection: Connection, stored: RowMapping, now: str) -> None:
    """Let the finals that compared kernels like this trial's decide no more."""
    same_key = [finals.c[name] == stored[trials.c[name]] for name in ("subject_id", "device_id", "policy")]
    same_class = [trials.c[name] == stored[trials.c[name]] for name in ("accuracy", "deterministic")]
    won = exists().where(trials.c.id == finals.c.winner_trial_id, *same_class)
    connection.execute(update(finals).where(*same_key, finals.c.superseded_at.is_(None), won).values(superseded_at=now))


def _correct_trial(connection: Connection, scope: Scope, number: int) -> int:
    correct = and_(within(scope), trials.c.number == number, trials.c.median_us.is_not(None))
    trial_id = connection.execute(select(trials.c.id).where(correct)).scalar_one_or_none()
    if trial_id is None:
        raise StoreError(f"{scope.name}: finals name trial {number}, which is not a correct trial of this layer")
    return int(trial_id)


def within(scope: SubjectScope) -> ColumnElement[bool]:
    """The trials of a scope."""
    return and_(
        trials.c.study_id == scope.study.id,
        trials.c.subject_id == scope.subject_id,
        trials.c.device_id == scope.device_id,
        trials.c.environment_id == scope.environment_id,
        trials.c.policy == scope.policy,
    )
