"""Rows that attack: each is what another program may write into a results database with SQLite alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path

DEEP = "[" * 100_000 + "]" * 100_000

HOSTILE: Mapping[str, str] = {
    # what to call it, and how it gets in: a copy of the newest trial that was timed, or whatever else is damaged
    "a config that is a list": "UPDATE trials SET config = '[1]' WHERE id = :trial",
    "a config that is null": "UPDATE trials SET config = 'null' WHERE id = :trial",
    "a config of deep nesting": f"UPDATE trials SET config = '{DEEP}' WHERE id = :trial",
    "a config with a list in it": """UPDATE trials SET config = '{"threads": [1]}' WHERE id = :trial""",
    "a number of 6000 digits": f"""UPDATE trials SET config = '{{"threads": {"9" * 6000}}}' WHERE id = :trial""",
    "a number beyond 64 bits": """UPDATE trials SET config = '{"threads": 99999999999999999999}' WHERE id = :trial""",
    "a bad date": "UPDATE trials SET ended_at = 'yesterday' WHERE id = :trial",
    "a day that no month has": "UPDATE trials SET ended_at = '2026-02-31T00:00:00.000000Z' WHERE id = :trial",
    "a date without a zone": "UPDATE trials SET started_at = '2026-02-03T00:00:00' WHERE id = :trial",
    "the largest number": "UPDATE trials SET number = 9223372036854775807 WHERE id = :trial",
    "a number that is text": "UPDATE trials SET number = 'seven' WHERE id = :trial",
    "a message of bytes": "UPDATE trials SET message = x'00ff' WHERE id = :trial",
    "a message that is not UTF-8": "UPDATE trials SET message = CAST(x'ff41' AS TEXT) WHERE id = :trial",
    "a letter cut in two": "UPDATE trials SET reason = CAST(x'c3' AS TEXT), message = CAST(x'a9' AS TEXT) "
    "WHERE id = :trial",
    "registers that are text": "UPDATE trials SET registers = 'many' WHERE id = :trial",
    "an endless time": "UPDATE trials SET median_us = 9e999, ranked_us = 9e999 WHERE id = :trial",
    "an outcome of its own": "UPDATE trials SET outcome = 'splendid' WHERE id = :trial",
    "an accuracy of its own": "UPDATE trials SET accuracy = 'splendid' WHERE id = :trial",
    "samples with null": "UPDATE measurements SET samples_us = '[1.5, null]' WHERE trial_id = :trial",
    "samples that are a word": """UPDATE measurements SET samples_us = '"fast"' WHERE trial_id = :trial""",
    "a time of zero": "UPDATE measurements SET median_us = 0 WHERE trial_id = :trial",
    "the least time of all": "UPDATE measurements SET median_us = 5e-324 WHERE trial_id = :trial",
    "the longest time of all": "UPDATE measurements SET median_us = 1.7976931348623157e308 WHERE trial_id = :trial",
    "launches null": "UPDATE sources SET launches = 'null' WHERE id = :source",
    "launches of another shape": """UPDATE sources SET launches = '{"stages": [7]}' WHERE id = :source""",
    "a text that is not packed": "UPDATE sources SET text_zlib = x'0102' WHERE id = :source",
    "attributes that are no JSON": "UPDATE runs SET attributes = '[' WHERE id = :run",
    "attributes that are numbers": """UPDATE runs SET attributes = '{"uuid": 7}' WHERE id = :run""",
    "a device's name of bytes": "UPDATE devices SET name = x'00' WHERE id = :device",
    "a layer that is none": "UPDATE layers SET stride_h = 0 WHERE id = :layer",
    "a header that is no TOML": "UPDATE templates SET header = '[[[' WHERE id = :template",
    "a header with other params": "UPDATE templates SET header = 'params = 7' WHERE id = :template",
    "a header whose params are a list": "UPDATE templates SET header = 'params = []' WHERE id = :template",
    "an operation that nobody has": "UPDATE layers SET operation = '</script>' WHERE id = :layer",
    "a study begun at no date": "UPDATE studies SET created_at = '' WHERE id = :study",
    "a study's name of bytes": "UPDATE studies SET name = x'ff' WHERE id = :study",
    "a trial of no study": "UPDATE trials SET study_id = 4711 WHERE id = :trial",
    "a trial of no family": "UPDATE trials SET template_id = 4711 WHERE id = :trial",
    "a trial of no device": "UPDATE trials SET device_id = 4711 WHERE id = :trial",
}
"""Statements that each damage rows of their own, which `plant` puts in first."""

APART = (":run", ":device", ":layer", ":template", ":study")


def plant(path: Path, *names: str, old: bool = False) -> None:
    """Put in, for each name, a trial that seems to be the fastest of all, and damage it or what it refers to.

    An `old` file may lack the column: then there is no such trial.
    """
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        for number, name in enumerate(names):
            apart = any(word in HOSTILE[name] for word in APART)
            with suppress(sqlite3.OperationalError) if old else nullcontext(), raw:  # no such column then
                raw.execute(HOSTILE[name], _put_in(raw, 1000 + number, apart=apart))


def _put_in(raw: sqlite3.Connection, number: int, *, apart: bool) -> dict[str, int]:
    """The ids of a copy of a trial with all that belongs to it; `apart`: of another study, on another layer."""

    def copied(table: str, row_id: int, **changed: object) -> int:
        cursor = raw.execute(f"SELECT * FROM {table} WHERE id = ?", (row_id,))
        row = dict(zip((column[0] for column in cursor.description), cursor.fetchone(), strict=True))
        row |= {"id": None, **{name: value for name, value in changed.items() if name in row}}
        if "problem" in row:  # not yet where the schema is older
            row["problem"] = json.dumps({**json.loads(row["problem"]), "n": row["n"]}, separators=(",", ":"))
        marks = ", ".join("?" * len(row))
        return raw.execute(f"INSERT INTO {table} VALUES ({marks})", tuple(row.values())).lastrowid or 0

    columns = "trials.id, study_id, subject_id, layer_id, device_id, environment_id, run_id, template_id, source_id"
    joined = "trials JOIN subjects ON subjects.id = subject_id"
    imported = any(name == "origin" for _, name, *_ in raw.execute("PRAGMA table_info(trials)"))
    named = "WHERE median_us IS NOT NULL" + (" AND origin = 'measured'" if imported else "")
    found = raw.execute(f"SELECT {columns} FROM {joined} {named} ORDER BY trials.id LIMIT 1").fetchone()
    trial, study, subject, layer, device, environment, run, template, source = found
    if apart:
        study = copied("studies", study, name=f"hurt{number}")
        layer = copied("layers", layer, n=number)
        subject = copied("subjects", subject, layer_id=layer)
        raw.execute("INSERT INTO study_layers VALUES (?, 'hurt', ?, 1, 0)", (study, subject))
        device = copied("devices", device, name=f"device {number}")
        run = copied("runs", run, device_id=device)
        template = copied("templates", template, hash=f"{number}")
    source = copied("sources", source, hash=f"{number:064}", layer_id=layer)
    scope = {"study_id": study, "subject_id": subject, "device_id": device, "environment_id": environment}
    rest = {"run_id": run, "template_id": template, "source_id": source, "number": number}
    measurement = raw.execute("SELECT id FROM measurements WHERE trial_id = ?", (trial,)).fetchone()[0]
    times = {"median_us": 0.001, "ranked_us": 0.001}
    trial = copied("trials", trial, **scope, **rest, **times)
    copied("measurements", measurement, trial_id=trial, median_us=0.001)
    return {
        "trial": trial,
        "study": study,
        "layer": layer,
        "device": device,
        "run": run,
        "template": template,
        "source": source,
    }
