"""Recorded search spaces of other kernels, brought in from files: kept and listed, never best.

Such a space is a subject of its own kind, with its kernel's name and parameters instead of a layer. Its study is named
after the file, its device has the kind `recorded`, and its trials are imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, Select, and_, insert, or_, select

from autotune.devices.device import DeviceInfo, Environment
from autotune.interchange.recorded_space import Recording
from autotune.store import recording
from autotune.store.columns import Values, date_of, date_text
from autotune.store.records import Imported, SpaceTrial, TemplateRecord
from autotune.store.rows import device_of, outcome_values, timing_values, trial_of
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, utc_now
from autotune.store.sqlite.opening import open_for_writing
from autotune.store.tables import devices, measurements, sources, studies, study_layers, subjects, templates, trials

KIND = "recorded"
"""of the devices of imported spaces: a name is all that is known of them"""
UNKNOWN = Environment("", "", "")
CHUNK = 1000
"""trials written at once"""


def import_recording(found: Recording, url: str | Path, *, clock: Clock = utc_now) -> Imported:
    """Store a recorded space as a study named after its file; nothing when it is stored already.

    A file of the same name with another content is a further generation.
    """
    now = date_text(clock())
    file = Path(found.name).name
    study = file.split(".", 1)[0] or file
    text = f"# the recorded space of {found.template} on {found.device_name} in {file}, content {_fingerprint(found)}\n"
    with (
        closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as database,
        database.write() as connection,
    ):
        same = select(studies.c.generation).where(studies.c.name == study, studies.c.text == text)
        generation = connection.execute(same).scalar()
        if generation is not None:
            return Imported(study, generation, trials=0, known=len(found.rows))
        generation = recording.next_generation(connection, study)
        identity: Values = {"name": study, "generation": generation, "seed": 0, "text": text, "fresh": False}
        study_id = recording.insert(connection, studies, {**identity, "created_at": now, "imported_from": file})
        shared = _shared(connection, found, study_id, now)
        next_trial = recording.next_id(connection, trials)
        rows = _trial_rows(found, shared, next_trial)
        while chunk := list(islice(rows, CHUNK)):
            connection.execute(insert(trials), [trial for trial, _ in chunk])
            timings = [timing for _, timing in chunk if timing]
            if timings:
                connection.execute(insert(measurements), timings)
    return Imported(study, generation, trials=len(found.rows), known=0)


def _fingerprint(found: Recording) -> str:
    """A hash of what was recorded, whichever way the file writes it."""
    params = [[param.name, list(param.values)] for param in found.params]
    words = json.dumps([found.template, found.device_name, params, found.failures])
    return hashlib.sha256(words.encode() + found.rows.tobytes() + found.times_us.tobytes()).hexdigest()


def _shared(connection: Connection, found: Recording, study_id: int, now: str) -> Values:
    """The columns that all trials of a recording share."""
    params = json.dumps({param.name: param.values for param in found.params})
    space: Values = {"kind": "space", "name": found.template, "params": params}
    subject_id = recording.identify(connection, subjects, space, {})
    place: Values = {"study_id": study_id, "name": found.template, "subject_id": subject_id, "count": 1, "position": 0}
    connection.execute(insert(study_layers), place)
    device_id = recording.device(connection, DeviceInfo(KIND, found.device_name, 0, 0, 0), now)
    environment_id = recording.environment(connection, UNKNOWN, now)
    return {
        "study_id": study_id,
        "subject_id": subject_id,
        "device_id": device_id,
        "environment_id": environment_id,
        "policy": KIND,
        "run_id": recording.run(connection, device_id, environment_id, UNKNOWN, now),
        "template_id": recording.template(connection, TemplateRecord(found.template, "", ""), now),
        "attempts": 1,
        "started_at": now,
        "ended_at": now,
        "origin": "imported",
        "proposed_by": "import",
    }


def _trial_rows(found: Recording, shared: Values, first_id: int) -> Iterator[tuple[Values, Values]]:
    """Each trial with its measurement, which is empty for a failure."""
    for number in range(len(found.rows)):
        config = found.config(number)
        trial = found.trial(number, config)
        values = {**shared, **outcome_values(trial), "ranked_us": None}
        values |= {"id": first_id + number, "number": number, "config": config.to_json()}
        timing = {} if trial.timing is None else timing_values(trial.timing, f"config {number}")
        yield values, {"trial_id": first_id + number, **timing} if timing else {}


def named(connection: Connection, what: str) -> bool:
    """Whether an imported space has this name."""
    return connection.execute(_select().where(_called(what)).limit(1)).first() is not None


def names(connection: Connection) -> tuple[str, ...]:
    """The studies that imported spaces are."""
    spaces = select(study_layers.c.study_id).join(subjects).where(subjects.c.kind == "space")
    statement = select(studies.c.name).where(studies.c.id.in_(spaces)).distinct()
    return tuple(connection.execute(statement).scalars())


def list_space_trials(
    connection: Connection, what: str | None, *, outcome: str | None, sort: str, limit: int | None
) -> tuple[SpaceTrial, ...]:
    """The trials of imported spaces by a study's name, `study.kernel` or a kernel's name; none where there is none."""
    statement = _select()
    if what is not None:
        statement = statement.where(_called(what))
    if outcome is not None:
        statement = statement.where(trials.c.outcome == outcome)
    if sort == "median":
        statement = statement.order_by(trials.c.median_us.is_(None), trials.c.median_us)
    statement = statement.order_by(trials.c.study_id, trials.c.subject_id, trials.c.device_id, trials.c.number)
    return tuple(
        SpaceTrial(
            id=row[trials.c.id],
            study=row[studies.c.name],
            generation=row[studies.c.generation],
            space=row[study_layers.c.name],
            device=device_of(row),
            trial=trial_of(row),
            ended_at=date_of(row[trials.c.ended_at]),
        )
        for row in connection.execute(statement.limit(limit)).mappings()
    )


def _called(what: str) -> ColumnElement[bool]:
    full_name = studies.c.name + "." + study_layers.c.name
    return or_(studies.c.name == what, full_name == what, study_layers.c.name == what)


def _select() -> Select[*tuple[object, ...]]:
    """Everything that a SpaceTrial needs."""
    place = and_(study_layers.c.study_id == trials.c.study_id, study_layers.c.subject_id == trials.c.subject_id)
    return (
        select(trials, studies, subjects, devices, templates, sources.c.hash, study_layers, measurements)
        .join(studies, studies.c.id == trials.c.study_id)
        .join(subjects, and_(subjects.c.id == trials.c.subject_id, subjects.c.kind == "space"))
        .join(study_layers, place)
        .join(devices, devices.c.id == trials.c.device_id)
        .join(templates, templates.c.id == trials.c.template_id)
        .outerjoin(sources, sources.c.id == trials.c.source_id)
        .outerjoin(measurements, measurements.c.trial_id == trials.c.id)
    )
