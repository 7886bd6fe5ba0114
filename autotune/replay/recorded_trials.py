"""Read a results database as recordings, one for each layer, device, environment and measurement mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.errors import StudyError
from autotune.interchange.files import read_recording
from autotune.interchange.recorded_space import JointRecording, Record, Recording, recording_of
from autotune.problem import Problem
from autotune.store import Store, TrialRow, is_sqlite
from autotune.trial import END_TO_END, Config, Outcome, Trial, Value

REPLAYED = "replay"
"""The kind of device of trials that were themselves read from a recording."""

Measured = tuple[Problem, tuple[str, str, int, int, int], tuple[str, str, str], str]
"""The fields that trials must share to be compared: layer, device, environment and measurement mode."""


def read_recordings(path: Path) -> tuple[Recording | JointRecording, ...]:
    """Every recording in a file: one in a cache or T4 file, one for each layer and device in a results database.

    Raises StudyError or StoreError with the path when the file cannot be read or records no correct config.
    """
    return recorded_layers(path) if is_database(path) else (read_recording(path),)


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database. Raises StudyError when it cannot be read."""
    try:
        return is_sqlite(path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror}") from None


def recorded_layers(path: Path) -> tuple[JointRecording, ...]:
    """The layers of a results database: the evaluated configs of each family are its feasible space.

    Raises StudyError if the database has no correct trial.
    """
    with Store(path, create=False) as store:
        recordings = tuple(
            replace(recording, name=f"{path}#{recording.name}") for recording in stored_recordings(store).values()
        )
    if not recordings:
        raise StudyError(f"{path}: records no correct trial")
    return recordings


def stored_recordings(store: Store, problems: Sequence[Problem] | None = None) -> dict[Measured, JointRecording]:
    """The recordings of some problems or of all, named `study.layer on DEVICE`; each has a correct trial."""
    groups = measured_rows(store, problems)
    recordings = {}
    for measured, rows in groups.items():
        name = _name(measured, rows[0], groups)
        families = dict.fromkeys(row.trial.config.template for row in rows)
        spaces = [_recording(store, name, [row for row in rows if row.trial.config.template == f]) for f in families]
        found = tuple(space for space in spaces if space is not None)
        if found:
            recordings[measured] = JointRecording(name, rows[0].device.name, found)
    return recordings


def measured_rows(store: Store, problems: Sequence[Problem] | None = None) -> dict[Measured, tuple[TrialRow, ...]]:
    """The evaluated configs of some problems or of all, oldest first, grouped into comparable ones.

    If a config was evaluated several times, the latest trial counts.
    """
    found: dict[Measured, dict[tuple[str, str], TrialRow]] = {}
    if problems is None:
        rows = store.trials.list(generations="all")
    else:
        rows = tuple(row for problem in problems for row in store.trials.list(problem))
    for row in sorted(rows, key=lambda row: row.id):
        evaluated = row.trial.compiled and row.ended_at is not None
        if evaluated and row.measurement_mode != END_TO_END and row.device.kind != REPLAYED:
            environment = (row.environment.driver, row.environment.toolkit, row.environment.flags)
            key = (row.problem, row.device.identity, environment, row.measurement_mode)
            config = row.trial.config
            found.setdefault(key, {})[config.template, config.to_json()] = row
    return {key: tuple(latest.values()) for key, latest in found.items()}


def _recording(store: Store, name: str, rows: Sequence[TrialRow]) -> Recording | None:
    """One family's trials, oldest first, that its newest header allows; None if none has a time."""
    newest = rows[-1]
    declared = store.templates.params(newest.trial.config.template, newest.template_hash)
    params = [(param, declared.get(param, ())) for param in newest.trial.config.params]
    records = [_record(row.trial) for row in rows if _fits(row.trial.config, params)]
    if not any(record.time_us is not None for record in records):
        return None
    return recording_of(name, newest.trial.config.template, newest.device.name, params, records)


def _fits(config: Config, params: Sequence[tuple[str, Sequence[Value]]]) -> bool:
    values = config.params
    return len(values) == len(params) and all(values.get(name) in declared for name, declared in params)


def _record(trial: Trial) -> Record:
    if trial.outcome == Outcome.CORRECT:
        return Record(trial.config.params, trial.median_us, None)
    return Record(trial.config.params, None, (trial.outcome, trial.reason))


def _name(measured: Measured, row: TrialRow, groups: Mapping[Measured, object]) -> str:
    """`study.layer on DEVICE`, with measurement mode and driver where the file has several."""
    problem, device, environment, measurement_mode = measured
    alike = [key for key in groups if key[:2] == (problem, device)]
    name = f"{row.name} on {row.device.name}"
    if len({key[3] for key in alike}) > 1:
        name += f", {measurement_mode}"
    if len({key[2] for key in alike}) > 1:
        name += f", driver {' '.join(environment)}"
    return name
