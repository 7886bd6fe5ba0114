"""T4 result files (https://github.com/odgaard/TuningSchema, 1.0.0), read and written.

A file holds one search space: the configs of one kernel, on one device. T4 does not say in which order a parameter's
values stand, so they are taken in ascending order. What is written is in microseconds, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from autotune import __version__
from autotune.errors import StoreError, StudyError, not_written, quoted
from autotune.interchange.recorded_space import (
    FAILURES,
    OTHER_FAILURE,
    Json,
    Record,
    Recording,
    recording_of,
    timed,
    value_of,
)
from autotune.renamed import current
from autotune.table import Table
from autotune.trial import Outcome, Trial, Value
from autotune.writing import write_whole

US_PER_UNIT = {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "miliseconds": 1e3, "seconds": 1e6}
"""Microseconds in a T4 file's `timeunit`; Kernel Tuner writes `miliseconds`."""

T4_VERSION = "1.0.0"
"""of the T4 schema that is read and written; a file that does not say counts as this one"""


def read_t4(path: Path, document: Table) -> Recording:
    """The space of a T4 file, each parameter's values ascending. Raises StudyError where it is none."""
    version = document.get("schema_version", T4_VERSION)
    if version != T4_VERSION:
        raise StudyError(f"{path}: schema_version = {quoted(version)}: this autotune reads T4 {T4_VERSION}")
    metadata = document.entry("metadata", document.get("metadata") or {})
    unit = str(metadata.get("timeunit") or "milliseconds")
    if unit not in US_PER_UNIT:
        raise StudyError(f"{path}: metadata.timeunit = {quoted(unit)}: expected one of {', '.join(US_PER_UNIT)}")
    template = str(metadata.get("kernel_name") or path.name.split(".", 1)[0] or path.name)
    own = str(metadata.get("written_by", "")).startswith("autotune ")
    records = []
    written: dict[str, list[Json]] = {}
    for i, entry in enumerate(document.array("results")):
        result = document.entry(f"results[{i}]", entry)
        config = cast("Mapping[str, Json]", result.entry("configuration", result.get("configuration")).content)
        if own:
            config = current(template, config)
        values = {name: value_of(value) for name, value in config.items()}
        for name, value in config.items():
            written.setdefault(name, []).append(value)
        invalidity = str(result.get("invalidity", "correct"))
        failed = invalidity != "correct"
        time = None if failed else _measured_time(result)
        if time is None:
            records.append(Record(values, None, FAILURES.get(invalidity, OTHER_FAILURE)))
        else:
            records.append(timed(values, time, US_PER_UNIT[unit]))
    params = [(name, sorted(values, key=lambda value: _ascending(value_of(value)))) for name, values in written.items()]
    return recording_of(str(path), template, str(metadata.get("device_name") or "unknown"), params, records)


def _measured_time(result: Table) -> float | None:
    """The `time` among a T4 result's measurements, None when it names a failure instead."""
    for entry in result.array("measurements"):
        measurement = result.entry("measurements", entry)
        if measurement.get("name") == "time":
            value = measurement.get("value")
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    raise result.error("measurements", "no measurement named `time`")


def _ascending(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then texts: as numbers where they read as one, then by letters."""
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, str(value))


@dataclass(frozen=True, slots=True)
class T4Space:
    """Trials that share a search space, to be written."""

    kernel: str
    device: str
    study: str
    """where they come from"""
    trials: Sequence[tuple[Trial, str]]
    """each with the date on which it ended"""
    notes: Mapping[str, str] = field(default_factory=dict)
    """what else they share"""


def write_t4(spaces: Sequence[tuple[str, T4Space]], folder: Path) -> list[Path]:
    """Write each space into a folder, in a file of its stem; the files. Raises StoreError where that cannot be."""
    written: list[Path] = []
    for stem, space in spaces:
        path = _free(folder, stem, written)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(not_written(folder, error, "give another --out")) from None
        write_whole(path, f"{json.dumps(t4_document(space), indent=1)}\n".encode(), "--out")
        written.append(path)
    return written


def t4_document(space: T4Space) -> Mapping[str, Json]:
    """The trials of one space as the T4 schema has them."""
    return {
        "schema_version": T4_VERSION,
        "metadata": {
            "timeunit": "microseconds",
            "kernel_name": space.kernel,
            "device_name": space.device,
            "study": space.study,
            **space.notes,
            "written_by": f"autotune {__version__}",
        },
        "results": [_result(trial, date) for trial, date in space.trials],
    }


def _result(trial: Trial, date: str) -> Mapping[str, Json]:
    correct = trial.outcome == Outcome.CORRECT
    phases, timing = trial.phases, trial.timing
    return {
        "timestamp": date,
        "configuration": trial.config.values(),
        "times": {
            "compilation_time": phases.compile_us,
            "runtimes": list(timing.samples_us) if timing else [],
            "framework": phases.render_us + phases.load_us,
            "validation": phases.verify_us,
        },
        "invalidity": _invalidity(trial),
        "correctness": float(correct),
        "measurements": [{"name": "time", "value": timing.median_us, "unit": "microseconds"}]
        if correct and timing
        else [],
        "objectives": ["time"],
    }


_WORDS = {Outcome.INVALID_CONFIG: "constraints", Outcome.WRONG_RESULT: "correctness"}


def _invalidity(trial: Trial) -> str:
    """T4's word; what broke a limit of the device only when launched counts as a broken constraint there."""
    return "constraints" if trial.reason == "resource_limit" else _WORDS.get(trial.outcome, str(trial.outcome))


def _free(folder: Path, name: str, taken: Sequence[Path]) -> Path:
    """A path that no other space of this export has."""
    path, number = folder / f"{name}.t4.json", 2
    while path in taken:
        path, number = folder / f"{name}.{number}.t4.json", number + 1
    return path
