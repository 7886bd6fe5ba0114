"""Read T4 result files (https://github.com/odgaard/TuningSchema, 1.0.0).

A file holds one search space: the configs of one kernel, on one device. T4 does not define the order of a parameter's
values, so they are sorted. Earlier versions of autotune wrote such files, in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from autotune.errors import StudyError, quoted
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
from autotune.legacy_names import current
from autotune.toml_table import Table
from autotune.trial import Value

US_PER_UNIT = {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "miliseconds": 1e3, "seconds": 1e6}
"""Microseconds in a T4 file's `timeunit`; Kernel Tuner writes `miliseconds`."""

T4_VERSION = "1.0.0"
"""of the T4 schema that is read; a file without a version counts as this one"""


def read_t4(path: Path, document: Table) -> Recording:
    """The space of a T4 file, each parameter's values ascending. Raises StudyError for any other file."""
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
