"""Search spaces that other tools recorded, imported from files: listed, and never ranked.

Such a space is a tuning target of its own kind, with the name and parameters of its kernel in place of a layer. Its
study is named after the file, its device has the kind `recorded`, and its trials are imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from autotune.devices.device import RECORDED, DeviceInfo, Environment
from autotune.store.devices import store_device, store_environment, store_run
from autotune.store.rows import identify, insert, last_id
from autotune.store.run_context import TemplateRecord, store_templates
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import (
    measurements,
    studies,
    study_layers,
    trials,
    tuning_targets,
)
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, utc_now
from autotune.store.sqlite.open_database import open_for_writing
from autotune.store.studies import next_generation
from autotune.store.trials import outcome_values, timing_values

if TYPE_CHECKING:
    from autotune.interchange.recorded_space import Recording

UNKNOWN = Environment("", "", "")

_ENDINGS = re.compile(r"(\.t4)?(\.(json|gz))+$", re.IGNORECASE)
"""parts of a file's name that the study's name omits"""

CHUNK = 1000
"""trials written at once"""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of importing a recorded space."""

    study: str
    generation: int
    trials: int
    known: int
    """number of trials that were stored before"""


def import_recording(found: Recording, url: str | Path, *, clock: Clock = utc_now) -> Imported:
    """Store a recorded space as a study named after its file; do nothing if it is stored already, from any file.

    A file of the same name with other content becomes another generation.
    """
    now = clock()
    file = Path(found.name).name
    study = _ENDINGS.sub("", file) or file
    content = f"content {_fingerprint(found)}\n"
    text = f"# the recorded space of {found.template} on {found.device_name} in {file}, {content}"
    with (
        closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as database,
        database.write() as connection,
    ):
        same = select(studies.c.name, studies.c.generation).where(
            studies.c.imported_from.is_not(None), studies.c.text.endswith(content)
        )
        stored = connection.execute(same).first()
        if stored is not None:
            return Imported(*stored, trials=0, known=len(found.rows))
        generation = next_generation(connection, study)
        identity: Values = {"name": study, "generation": generation, "seed": 0, "text": text, "fresh": False}
        study_id = insert(connection, studies, {**identity, "created_at": now, "imported_from": file})
        shared = _shared(connection, found, study_id, now)
        next_trial = last_id(connection, trials) + 1
        rows = _trial_rows(found, shared, next_trial)
        while chunk := list(islice(rows, CHUNK)):
            connection.execute(trials.insert(), [trial for trial, _ in chunk])
            timings = [timing for _, timing in chunk if timing]
            if timings:
                connection.execute(measurements.insert(), timings)
    return Imported(study, generation, trials=len(found.rows), known=0)


def _fingerprint(found: Recording) -> str:
    """A hash of the recording that does not depend on the order or the format of the file."""
    trials_found = (found.trial(number, found.config(number)) for number in range(len(found.rows)))
    lines = sorted(f"{sorted(one.config.pairs)} {one.outcome} {one.median_us}" for one in trials_found)
    return hashlib.sha256("\n".join([found.template, found.device_name, *lines]).encode()).hexdigest()


def _shared(connection: Connection, found: Recording, study_id: int, now: datetime) -> Values:
    """The columns that all trials of a recording share."""
    params = json.dumps({param.name: param.values for param in found.params})
    space: Values = {"kind": "space", "name": found.template, "params": params}
    tuning_target_id = identify(connection, tuning_targets, space, {})
    place: Values = {
        "study_id": study_id,
        "name": found.template,
        "tuning_target_id": tuning_target_id,
        "count": 1,
        "position": 0,
    }
    place["admitted"] = ()
    connection.execute(study_layers.insert(), place)
    device_id = store_device(connection, DeviceInfo(RECORDED, found.device_name, 0, 0, 0), now)
    environment_id = store_environment(connection, UNKNOWN, now)
    return {
        "study_id": study_id,
        "tuning_target_id": tuning_target_id,
        "device_id": device_id,
        "environment_id": environment_id,
        "measurement_mode": RECORDED,
        "run_id": store_run(connection, device_id, environment_id, UNKNOWN, now),
        "template_id": store_templates(connection, [TemplateRecord(found.template, "", "")], now)[0],
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
        values = {**shared, **outcome_values(trial), "ranking_median_us": None}
        values |= {"id": first_id + number, "number": number, "config": config.to_json()}
        timing = {} if trial.timing is None else timing_values(trial.timing)
        yield values, {"trial_id": first_id + number, **timing} if timing else {}


def space_advice(what: str | None) -> str:
    """Why an answer about a layer does not cover an imported space, and the command that lists it."""
    return f"{what} was recorded by another tool; `autotune trials {what} --sort median` lists it"
