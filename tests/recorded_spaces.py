"""Search spaces that were recorded: Kernel Tuner's cache files, T4 result files and results databases.

The configs that a file lists are the feasible space; what each took is its result.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from autotune.replay.recorded_trials import FamilyTrials, device_words, families_of, measured_rows
from autotune.store import Store
from autotune.trial import LEAST, Config, Outcome, Timing, Trial, Value

FAILURES = {
    "InvalidConfig": (Outcome.RUNTIME, "resource_limit"),
    "CompilationFailedConfig": (Outcome.COMPILE, "compile"),
    "RuntimeFailedConfig": (Outcome.RUNTIME, "runtime"),
    "constraints": (Outcome.RUNTIME, "resource_limit"),
    "compile": (Outcome.COMPILE, "compile"),
    "runtime": (Outcome.RUNTIME, "runtime"),
    "timeout": (Outcome.TIMEOUT, "hang"),
    "correctness": (Outcome.WRONG_RESULT, "wrong"),
}
"""The words of both formats for a failed config. The file lists only configs that were tried, so a config that exceeded
a limit of the device counts as a failed launch and costs an evaluation like any other failure.
"""
OTHER_FAILURE = (Outcome.RUNTIME, "other")
FAILED_TIME_MS = 1e20
"""Old Kernel Tuner cache files write this time for a failed config."""
US_PER_UNIT = {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "miliseconds": 1e3, "seconds": 1e6}
"""Microseconds in a T4 file's `timeunit`; Kernel Tuner writes `miliseconds`."""


class Recorded(Protocol):
    """A space for a search without a device: the recording of one family or of several families."""

    @property
    def name(self) -> str: ...
    @property
    def spaces(self) -> tuple[Recording, ...]: ...
    @property
    def optimum_us(self) -> float: ...
    def trial(self, number: int, config: Config, /) -> Trial: ...


@dataclass(frozen=True, slots=True)
class RecordedParam:
    """A parameter and its values in the recorded order."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The results of all configs of one kernel. It is also a search space."""

    name: str
    """the file it came from"""
    template: str
    """the kernel's name"""
    params: tuple[RecordedParam, ...]
    rows: npt.NDArray[np.int16]
    """value indices of the configs [m, len(params)], lexicographic order"""
    times_us: npt.NDArray[np.float64]
    """time of each row, infinite when it failed"""
    failures: tuple[tuple[Outcome, str] | None, ...]
    """outcome and reason of each row, None when it is correct"""
    _row_of: dict[tuple[int, ...], int] = field(repr=False)
    complete: bool = True
    default: Config | None = None
    padded_work: npt.NDArray[np.int64] | None = None

    @property
    def spaces(self) -> tuple[Recording, ...]:
        """Its only family: this recording."""
        return (self,)

    @property
    def optimum_us(self) -> float:
        """The smallest recorded time."""
        return float(self.times_us.min())

    def config(self, row: int) -> Config:
        """The config of a row."""
        items = zip(self.params, self.rows[row], strict=True)
        return Config(self.template, tuple((param.name, param.values[place]) for param, place in items))

    def row_of(self, config: Config) -> int | None:
        """The row of a config; None when it was not recorded."""
        values = config.params
        if config.template != self.template or values.keys() != {param.name for param in self.params}:
            return None
        try:
            return self._row_of.get(tuple(param.values.index(values[param.name]) for param in self.params))
        except ValueError:
            return None

    def trial(self, number: int, config: Config) -> Trial:
        """The recorded result of a config. Raises ValueError if it was not recorded."""
        row = self.row_of(config)
        if row is None:
            raise ValueError(f"{self.name}: the config {config} was not recorded")
        failure, source_hash = self.failures[row], str(config)  # there is no source
        if failure is not None:
            return Trial(number, config, failure[0], reason=failure[1], source_hash=source_hash)
        time_us = float(self.times_us[row])
        timing = Timing((time_us,), time_us, time_us, time_us, "recorded")
        return Trial(number, config, Outcome.CORRECT, source_hash=source_hash, timing=timing)


@dataclass(frozen=True, slots=True)
class JointRecording:
    """Several families recorded on one layer and device, to be searched under one budget."""

    name: str
    spaces: tuple[Recording, ...]

    @property
    def optimum_us(self) -> float:
        """The smallest recorded time of any family."""
        return min(space.optimum_us for space in self.spaces)

    def trial(self, number: int, config: Config) -> Trial:
        """The recorded result of a config."""
        (space,) = (space for space in self.spaces if space.template == config.template)
        return space.trial(number, config)


@dataclass(frozen=True, slots=True)
class Record:
    """One config as a file lists it: the parameters, and a time or the failure."""

    values: Mapping[str, Value]
    time_us: float | None
    failure: tuple[Outcome, str] | None


def recording_of(
    name: str, template: str, params: Iterable[tuple[str, Sequence[Any]]], records: Iterable[Record]
) -> Recording:
    """A recording from its records. Raises ValueError if a config has a value that its parameter lacks."""
    fields = tuple(RecordedParam(param, tuple(dict.fromkeys(map(value_of, values)))) for param, values in params)
    found = {tuple(param.values.index(record.values[param.name]) for param in fields): record for record in records}
    rows = sorted(found)
    return Recording(
        name=name,
        template=template,
        params=fields,
        rows=np.array(rows, dtype=np.int16).reshape(len(rows), len(fields)),
        times_us=np.array([math.inf if (time := found[row].time_us) is None else time for row in rows]),
        failures=tuple(found[row].failure for row in rows),
        _row_of={row: place for place, row in enumerate(rows)},
    )


def read_recordings(path: Path) -> tuple[Recorded, ...]:
    """Every recording in a file: one in a cache or T4 file, one for each layer and device in a results database."""
    with path.open("rb") as file:
        is_database = file.read(15) == b"SQLite format 3"
    return tuple(_stored(path)) if is_database else (read_recording(path),)


def read_recording(path: Path) -> Recording:
    """Read a Kernel Tuner cache file or a T4 file (https://github.com/odgaard/TuningSchema), plain or gzipped."""
    content = path.read_bytes()
    document = _parse((gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode())
    return _read_cache(path, document) if "cache" in document else _read_t4(path, document)


def _parse(text: str) -> Any:
    """The JSON document; a cache file that was never closed ends in a comma and lacks its last brackets."""
    body = text.rstrip().removesuffix(",")
    for closing in ("", "}}", "}"):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(body + closing)
    return json.loads(text)


def _read_cache(path: Path, document: Mapping[str, Any]) -> Recording:
    names = document["tune_params_keys"]
    params = [(name, document["tune_params"][name]) for name in names]
    records = []
    for entry in document["cache"].values():
        values, time = {name: value_of(entry[name]) for name in names}, entry["time"]
        records.append(_failed(values, time) if isinstance(time, str) else _timed(values, 1e3 * time))
    return recording_of(str(path), document.get("kernel_name") or path.name, params, records)


def _read_t4(path: Path, document: Mapping[str, Any]) -> Recording:
    """T4 does not define the order of a parameter's values, so they are sorted."""
    metadata = document["metadata"]
    template = metadata.get("kernel_name", path.name.partition(".")[0])
    factor = US_PER_UNIT[metadata.get("timeunit", "milliseconds")]
    records, written = [], dict[str, list[Value]]()
    for result in document["results"]:
        values = {name: value_of(value) for name, value in result["configuration"].items()}
        for name, value in values.items():
            written.setdefault(name, []).append(value)
        invalidity = result.get("invalidity", "correct")
        if invalidity == "correct":
            (time,) = (each["value"] for each in result["measurements"] if each["name"] == "time")
            records.append(_timed(values, factor * time))
        else:
            records.append(_failed(values, invalidity))
    params = ((name, sorted(values, key=_ascending)) for name, values in written.items())
    return recording_of(str(path), template, params, records)


def _timed(values: Mapping[str, Value], time_us: float) -> Record:
    """A config with its time, or a failure if it has none."""
    if LEAST <= time_us < 1e3 * FAILED_TIME_MS:
        return Record(values, time_us, None)
    return _failed(values)


def _failed(values: Mapping[str, Value], word: str = "") -> Record:
    return Record(values, None, FAILURES.get(word, OTHER_FAILURE))


def _ascending(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then texts: as numbers where they read as one, then by letters."""
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, str(value))


def value_of(value: Any) -> Value:
    """A parameter's value; a whole float counts as an int, any other type as its text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | str) else json.dumps(value)


def _stored(path: Path) -> Iterator[JointRecording]:
    """The layers of a results database: the evaluated configs of each family are its feasible space."""
    with Store(path, create=False) as store:
        groups = measured_rows(store)
        for measured, rows in groups.items():
            name = f"{path}#{rows[0].name} on {device_words(measured, groups)}"
            spaces = tuple(
                _recorded(name, one) for one in families_of(store, rows) if any(row.median_us for row in one.rows)
            )
            if spaces:
                yield JointRecording(name, spaces)


def _recorded(name: str, trials: FamilyTrials) -> Recording:
    """One family's trials."""
    records = [
        Record(row.trial.config.params, row.median_us, None if row.median_us else (row.trial.outcome, row.trial.reason))
        for row in trials.rows
    ]
    return recording_of(name, trials.family, trials.params.items(), records)
