"""Trials as T4 result files, for other tools (https://github.com/odgaard/TuningSchema). `autotune import` reads them.

A file holds one search space: the configs of one family, on one layer, one device and under one policy. Times are in
microseconds, which `metadata.timeunit` says; the kernel's and the device's name stand beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from autotune import __version__
from autotune.errors import StoreError
from autotune.recorded import T4_VERSION, Json
from autotune.store import SpaceTrial, TrialRow
from autotune.trial import Outcome, Trial

Row = TrialRow | SpaceTrial
NOT_IN_NAMES = re.compile(r"[^\w.+=-]+")


def export_t4(rows: Iterable[Row], folder: Path) -> list[Path]:
    """Write the trials that ended, a file for each search space, into a folder; the files.

    Raises StoreError when the folder cannot be written.
    """
    spaces: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.trial.outcome != Outcome.RUNNING:
            params = " ".join(name for name, _ in row.trial.config.items)
            key = (row.name, row.trial.config.template, row.device.kind, row.device.name, *_surroundings(row), params)
            spaces.setdefault(key, []).append(row)
    written: list[Path] = []
    for space in spaces.values():
        path = _free(folder, _file_name(space[0]), written)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(t4_document(space), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}; give another --out") from None
        written.append(path)
    return written


def t4_document(rows: Sequence[Row]) -> Mapping[str, Json]:
    """The trials of one space as the T4 schema has them."""
    first = rows[0]
    return {
        "schema_version": T4_VERSION,
        "metadata": {
            "timeunit": "microseconds",
            "kernel_name": first.trial.config.template,
            "device_name": first.device.name,
            "study": first.name,
            **(
                {"problem": str(first.problem), "driver": first.environment.driver}
                if isinstance(first, TrialRow)
                else {}
            ),
            "written_by": f"autotune {__version__}",
        },
        "results": [_result(row.trial, str(row.ended_at)) for row in rows],
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


def _invalidity(trial: Trial) -> str:
    """T4's word; what broke a limit of the device only when launched counts as a broken constraint there."""
    return "constraints" if trial.reason == "resource_limit" else str(trial.outcome)


def _surroundings(row: Row) -> tuple[str, ...]:
    """What else a file's trials share."""
    if isinstance(row, SpaceTrial):
        return (str(row.generation),)
    return (row.policy, row.origin, row.environment.driver, row.environment.toolkit, row.environment.flags)


def _file_name(row: Row) -> str:
    if isinstance(row, TrialRow):
        words = [row.name, row.trial.config.template, row.device.name, row.policy]
    else:
        words = [row.name, row.device.name]
    return ".".join(NOT_IN_NAMES.sub("_", word) for word in words)[:200]


def _free(folder: Path, name: str, taken: Sequence[Path]) -> Path:
    """A path that no other space of this export has."""
    path, number = folder / f"{name}.t4.json", 2
    while path in taken:
        path, number = folder / f"{name}.{number}.t4.json", number + 1
    return path
