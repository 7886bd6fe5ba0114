"""Kernel Tuner's cache files (https://github.com/KernelTuner/kernel_tuner, 1.0), which order parameters' values."""

from __future__ import annotations

from collections.abc import Sequence
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
from autotune.toml_table import Table

_US_PER_MS = 1e3


def read_cache(path: Path, document: Table) -> Recording:
    """The space of a cache file. Raises StudyError where it is none."""
    names = [str(name) for name in document.array("tune_params_keys")]
    if len(set(names)) < len(names):
        raise document.error("tune_params_keys", f"names a parameter twice: {', '.join(names)}")
    declared = document.entry("tune_params", document.get("tune_params"))
    params = [(name, cast("Sequence[Json]", declared.array(name))) for name in names]
    objective = str(document.get("objective") or "time")
    if objective != "time":
        raise StudyError(f"{path}: objective = {quoted(objective)}: only recordings of `time` can be replayed")
    records = []
    for key, entry in document.entry("cache", document.get("cache")).content.items():
        record = document.entry(f"cache[{key!r}]", entry)
        values = {name: value_of(cast("Json", record.get(name))) for name in names if name in record}
        time = record.get("time")
        if isinstance(time, bool) or not isinstance(time, int | float | str):
            raise document.error(record.key, f"`time` is {time!r}: expected milliseconds or a failure's name")
        if isinstance(time, str):
            records.append(Record(values, None, FAILURES.get(time, OTHER_FAILURE)))
        else:
            records.append(timed(values, time, _US_PER_MS))
    template = str(document.get("kernel_name") or path.name)
    return recording_of(str(path), template, str(document.get("device_name") or "unknown"), params, records)
