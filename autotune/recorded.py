"""Exhaustively recorded search spaces: Kernel Tuner cache files and T4 result files, read into a `Recording`.

The configs in a file are its feasible space. Kernel Tuner declares the order of each parameter's values; T4 does
not, so they are taken in ascending order. Several families recorded on one layer are a `JointRecording`. Formats:
https://github.com/KernelTuner/kernel_tuner (cache, 1.0) and
https://github.com/odgaard/TuningSchema (T4, 1.0.0).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from autotune.errors import StudyError
from autotune.table import Table, decoded, read_bytes
from autotune.trial import Config, Outcome, Timing, Trial, Value

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

US_PER_UNIT = {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "miliseconds": 1e3, "seconds": 1e6}
"""Microseconds in a T4 file's `timeunit`; Kernel Tuner writes `miliseconds`."""

FAILURES = {
    "InvalidConfig": (Outcome.RUNTIME, "resource_limit"),
    "CompilationFailedConfig": (Outcome.COMPILE, "compile"),
    "RuntimeFailedConfig": (Outcome.RUNTIME, "runtime"),
    "constraints": (Outcome.RUNTIME, "resource_limit"),
    "compile": (Outcome.COMPILE, "compile"),
    "runtime": (Outcome.RUNTIME, "runtime"),
    "timeout": (Outcome.TIMEOUT, "hang"),
    "correctness": (Outcome.CORRECTNESS, "wrong"),
}
"""The words of both formats for a failed config. What the file lists was tried, so a config that broke a limit of
the device counts as a failed launch and costs an evaluation like any other failure."""

MOST_VALUES = 2**15 - 1
"""Of one parameter: rows keep positions in 16 bits."""

T4_VERSION = "1.0.0"
"""of the T4 schema that is read and written; a file that does not say counts as this one"""
MOST_DIGITS = 300
"""Of a whole number, which must also be a float."""

OTHER_FAILURE = (Outcome.RUNTIME, "other")
FAILED_TIME_MS = 1e20
"""Old Kernel Tuner cache files write this time for a failed config."""


@dataclass(frozen=True, slots=True)
class RecordedParam:
    """A parameter and its values in the recorded order."""

    name: str
    values: tuple[Value, ...]
    written: tuple[Json, ...]
    """each value as the file has it; a fraction or a list stands in `values` as its text"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded search space: what each of its configs took. Usable as a search space of its own."""

    name: str
    """the file it came from"""
    template: str
    """the kernel's name"""
    device_name: str
    params: tuple[RecordedParam, ...]
    rows: npt.NDArray[np.int16]
    """value indices of the configs [m, len(params)], lexicographic order"""
    times_us: npt.NDArray[np.float64]
    """time of each row, infinite when it failed"""
    failures: tuple[tuple[Outcome, str] | None, ...]
    """outcome and reason of each row, None when it is correct"""
    _row_of: dict[tuple[int, ...], int] = field(repr=False)

    @property
    def complete(self) -> bool:
        """True: a recording lists every feasible config."""
        return True

    @property
    def default(self) -> Config | None:
        """None: a recording declares no default."""
        return None

    @property
    def spaces(self) -> tuple[Recording, ...]:
        """The one family: this recording."""
        return (self,)

    @property
    def optimum_us(self) -> float:
        """The smallest recorded time."""
        return float(self.times_us.min())

    def entry(self, config: Config) -> dict[str, Json]:
        """A config as a trace names it: `config`, its parameters with the values of the file."""
        values = config.values()
        return {"config": {param.name: param.written[param.values.index(values[param.name])] for param in self.params}}

    def config(self, row: int) -> Config:
        """The config of a row."""
        return Config(
            self.template,
            tuple((param.name, param.values[i]) for param, i in zip(self.params, self.rows[row], strict=True)),
        )

    def row_of(self, config: Config) -> int | None:
        """The row of a config, None when it was not recorded."""
        values = config.values()
        if config.template != self.template or values.keys() != {param.name for param in self.params}:
            return None
        try:
            return self._row_of.get(tuple(param.values.index(values[param.name]) for param in self.params))
        except ValueError:
            return None

    def trial(self, number: int, config: Config) -> Trial:
        """What the recording says of a config, as a trial; StudyError when it was not recorded."""
        row = self.row_of(config)
        if row is None:
            raise StudyError(f"{self.name}: the config {config} was not recorded")
        failure = self.failures[row]
        source_hash = hashlib.sha256(f"{self.template} {config.to_json()}".encode()).hexdigest()  # there is no source
        if failure is not None:
            outcome, reason = failure
            return Trial(number, config, outcome, reason=reason, message="as recorded", source_hash=source_hash)
        time_us = float(self.times_us[row])
        timing = Timing((time_us,), time_us, time_us, time_us, "recorded")
        return Trial(number, config, Outcome.CORRECT, source_hash=source_hash, timing=timing)


@dataclass(frozen=True, slots=True)
class JointRecording:
    """Several families recorded on one layer and device, to be searched under one budget."""

    name: str
    device_name: str
    spaces: tuple[Recording, ...]

    @property
    def optimum_us(self) -> float:
        """The smallest recorded time of any family."""
        return min(space.optimum_us for space in self.spaces)

    def trial(self, number: int, config: Config) -> Trial:
        """What the recording says of a config, as a trial; StudyError when it was not recorded."""
        return self._space(config).trial(number, config)

    def entry(self, config: Config) -> dict[str, Json]:
        """A config as a trace names it: `template` and `config`."""
        return {"template": config.template, **self._space(config).entry(config)}

    def _space(self, config: Config) -> Recording:
        for space in self.spaces:
            if space.template == config.template:
                return space
        raise StudyError(f"{self.name}: no config of the family {config.template!r} was recorded")


@dataclass(frozen=True, slots=True)
class Record:
    """One config as a file lists it: the parameters, and a time or the failure."""

    values: Mapping[str, Value]
    time_us: float | None
    failure: tuple[Outcome, str] | None


def read_recording(path: Path) -> Recording:
    """Read a Kernel Tuner cache file or a T4 result file, plain or gzip-compressed.

    Raises StudyError with the path when the file cannot be read, is neither format, or records no correct config.
    """
    document = Table({}, StudyError, str(path)).entry("the file", _parse(path, _text(path)))
    document = replace(document, key="")
    if "cache" in document:
        return _kernel_tuner(path, document)
    if "results" in document:
        return _t4(path, document)
    raise StudyError(
        f"{path}: neither a Kernel Tuner cache file (no key `cache`) nor a T4 result file (no key `results`)"
    )


def recording_of(
    name: str, template: str, device_name: str, params: Sequence[tuple[str, Sequence[Json]]], records: Iterable[Record]
) -> Recording:
    """A recording from its records; StudyError when one does not fit the parameters or none is correct."""
    fields = tuple(_param(f"{name}: {param}", param, values) for param, values in params)
    positions = [{value: i for i, value in enumerate(param.values)} for param in fields]
    found: dict[tuple[int, ...], Record] = {}
    for record in records:
        row = []
        for param, places in zip(fields, positions, strict=True):
            if param.name not in record.values:
                raise StudyError(f"{name}: a config lacks the parameter {param.name!r}: {dict(record.values)}")
            place = places.get(record.values[param.name])
            if place is None:
                allowed = _listed(param.values)
                raise StudyError(
                    f"{name}: {param.name} = {record.values[param.name]!r} is not one of its values ({allowed})"
                )
            row.append(place)
        found[tuple(row)] = record
    if not any(record.time_us is not None for record in found.values()):
        raise StudyError(f"{name}: records no config with a time ({len(found)} configs in the file)")
    rows = sorted(found)
    return Recording(
        name=name,
        template=template,
        device_name=device_name,
        params=fields,
        rows=np.array(rows, dtype=np.int16).reshape(len(rows), len(fields)),
        times_us=np.array([math.inf if (time := found[row].time_us) is None else time for row in rows]),
        failures=tuple(found[row].failure for row in rows),
        _row_of={row: i for i, row in enumerate(rows)},
    )


def _text(path: Path) -> str:
    content = read_bytes(path, StudyError)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from error
    return decoded(content, StudyError, str(path))


def _parse(path: Path, text: str) -> Json:
    """The JSON document; a cache file that was never closed ends in a comma and lacks its last brackets."""
    try:
        return _json(text)
    except RecursionError:
        raise StudyError(f"{path}: nested too deeply to be a recording") from None
    except _NoNumber as error:
        raise StudyError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        body = text.rstrip().removesuffix(",")
        for closing in ("}}", "}", "]}"):
            with contextlib.suppress(json.JSONDecodeError):
                return _json(body + closing)
        raise StudyError(f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from error


class _NoNumber(Exception):
    """A number in the file that cannot be one of a recording."""


def _json(text: str) -> Json:
    document: Json = json.loads(text, parse_int=_integer)
    return document


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _NoNumber(f"a number of {len(digits)} digits: {digits[:20]}...; expected at most {MOST_DIGITS}")
    return int(digits)


def _kernel_tuner(path: Path, document: Table) -> Recording:
    names = [str(name) for name in document.array("tune_params_keys")]
    if len(set(names)) < len(names):
        raise document.error("tune_params_keys", f"names a parameter twice: {', '.join(names)}")
    declared = document.entry("tune_params", document.get("tune_params"))
    params = [(name, cast("Sequence[Json]", declared.array(name))) for name in names]
    objective = str(document.get("objective") or "time")
    if objective != "time":
        raise StudyError(f"{path}: objective = {objective!r}: only recordings of `time` can be replayed")
    records = []
    for key, entry in document.entry("cache", document.get("cache")).content.items():
        record = document.entry(f"cache[{key!r}]", entry)
        values = {name: _value(cast("Json", record.get(name))) for name in names if name in record}
        time = record.get("time")
        if isinstance(time, bool) or not isinstance(time, int | float | str):
            raise document.error(record.key, f"`time` is {time!r}: expected milliseconds or a failure's name")
        if isinstance(time, str):
            records.append(Record(values, None, FAILURES.get(time, OTHER_FAILURE)))
        else:
            records.append(_timed(values, time, US_PER_UNIT["milliseconds"]))
    template = str(document.get("kernel_name") or path.name)
    return recording_of(str(path), template, str(document.get("device_name") or "unknown"), params, records)


def _t4(path: Path, document: Table) -> Recording:
    version = document.get("schema_version", T4_VERSION)
    if version != T4_VERSION:
        raise StudyError(f"{path}: schema_version = {version!r}: this autotune reads T4 {T4_VERSION}")
    metadata = document.entry("metadata", document.get("metadata") or {})
    unit = str(metadata.get("timeunit") or "milliseconds")
    if unit not in US_PER_UNIT:
        raise StudyError(f"{path}: metadata.timeunit = {unit!r}: expected one of {', '.join(US_PER_UNIT)}")
    records = []
    written: dict[str, list[Json]] = {}
    for i, entry in enumerate(document.array("results")):
        result = document.entry(f"results[{i}]", entry)
        config = cast("Mapping[str, Json]", result.entry("configuration", result.get("configuration")).content)
        values = {name: _value(value) for name, value in config.items()}
        for name, value in config.items():
            written.setdefault(name, []).append(value)
        invalidity = str(result.get("invalidity", "correct"))
        failed = invalidity != "correct"
        time = None if failed else _measured_time(result)
        if time is None:
            records.append(Record(values, None, FAILURES.get(invalidity, OTHER_FAILURE)))
        else:
            records.append(_timed(values, time, US_PER_UNIT[unit]))
    params = [(name, sorted(values, key=lambda value: _ascending(_value(value)))) for name, values in written.items()]
    template = str(metadata.get("kernel_name") or path.name.split(".", 1)[0] or path.name)
    return recording_of(str(path), template, str(metadata.get("device_name") or "unknown"), params, records)


def _measured_time(result: Table) -> float | None:
    """The `time` among a T4 result's measurements, None when it names a failure instead."""
    for entry in result.array("measurements"):
        measurement = result.entry("measurements", entry)
        if measurement.get("name") == "time":
            value = measurement.get("value")
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    raise result.error("measurements", "no measurement named `time`")


def _timed(values: Mapping[str, Value], time: float, us_per_unit: float) -> Record:
    if not math.isfinite(time) or not 0 < time < FAILED_TIME_MS:
        return Record(values, None, OTHER_FAILURE)
    return Record(values, time * us_per_unit, None)


def _listed(values: Sequence[Value]) -> str:
    """The first few values, shortened."""
    words = ", ".join(str(value)[:20] for value in values[:12])
    return f"{words}, ..." if len(values) > 12 else words


def _value(value: Json) -> Value:
    """A parameter's value; a whole float counts as an int, any other thing as its text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | str) else json.dumps(value)


def _param(where: str, name: str, values: Sequence[Json]) -> RecordedParam:
    """A parameter with each of its values once; 1, 1.0 and true are one value."""
    distinct: dict[Value, Json] = {}
    for value in values:
        distinct.setdefault(_value(value), value)
    if len(distinct) > MOST_VALUES:
        raise StudyError(f"{where}: {len(distinct)} values; a parameter has at most {MOST_VALUES}")
    return RecordedParam(name, tuple(distinct), tuple(distinct.values()))


def _ascending(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then texts: as numbers where they read as one, then by letters."""
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, str(value))
