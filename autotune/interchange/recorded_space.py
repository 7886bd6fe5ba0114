"""Exhaustively recorded search spaces from any kind of file: a `Recording`, which is a space to search.

Its configs are the feasible space. Several families recorded on one layer are a `JointRecording`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autotune.errors import StudyError, quoted, shortened
from autotune.trial import Config, Outcome, Timing, Trial, Value, is_measured

_SHOWN = 400  # characters of a value in a message

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

MOST_VALUES = 2**15 - 1
"""Of one parameter: rows keep positions in 16 bits."""

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


@dataclass(frozen=True, slots=True)
class RecordedParam:
    """A parameter and its values in the recorded order."""

    name: str
    values: tuple[Value, ...]
    written: tuple[Json, ...]
    """each value as in the file; `values` has a fraction or a list as text"""


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
    def padded_work(self) -> None:
        """None: nor does it say what idles."""

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
        values = config.params
        return {"config": {param.name: param.written[param.values.index(values[param.name])] for param in self.params}}

    def config(self, row: int) -> Config:
        """The config of a row."""
        return Config(
            self.template,
            tuple((param.name, param.values[i]) for param, i in zip(self.params, self.rows[row], strict=True)),
        )

    def row_of(self, config: Config) -> int | None:
        """The row of a config, None when it was not recorded."""
        values = config.params
        if config.template != self.template or values.keys() != {param.name for param in self.params}:
            return None
        try:
            return self._row_of.get(tuple(param.values.index(values[param.name]) for param in self.params))
        except ValueError:
            return None

    def trial(self, number: int, config: Config) -> Trial:
        """The recorded result of a config as a trial. Raises StudyError if it was not recorded."""
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
        """The recorded result of a config as a trial. Raises StudyError if it was not recorded."""
        return self._space(config).trial(number, config)

    def entry(self, config: Config) -> dict[str, Json]:
        """A config as a trace names it: `template` and `config`."""
        return {"template": config.template, **self._space(config).entry(config)}

    def _space(self, config: Config) -> Recording:
        for space in self.spaces:
            if space.template == config.template:
                return space
        raise StudyError(f"{self.name}: no config of the family {quoted(config.template)} was recorded")


@dataclass(frozen=True, slots=True)
class Record:
    """One config as a file lists it: the parameters, and a time or the failure."""

    values: Mapping[str, Value]
    time_us: float | None
    failure: tuple[Outcome, str] | None


def timed(values: Mapping[str, Value], time: float, us_per_unit: float) -> Record:
    """A config with its time, or a failure if it has none."""
    if not (time < FAILED_TIME_MS and is_measured(time * us_per_unit)):
        return Record(values, None, OTHER_FAILURE)
    return Record(values, time * us_per_unit, None)


def recording_of(
    name: str, template: str, device_name: str, params: Sequence[tuple[str, Sequence[Json]]], records: Iterable[Record]
) -> Recording:
    """A recording from its records. Raises StudyError if one does not match the parameters or none is correct."""
    fields = tuple(_param(f"{name}: {param}", param, values) for param, values in params)
    positions = [{value: i for i, value in enumerate(param.values)} for param in fields]
    found: dict[tuple[int, ...], Record] = {}
    for record in records:
        row = []
        for param, places in zip(fields, positions, strict=True):
            if param.name not in record.values:
                config = shortened(str(dict(record.values)), _SHOWN)
                raise StudyError(f"{name}: a config lacks the parameter {quoted(param.name)}: {config}")
            place = places.get(record.values[param.name])
            if place is None:
                allowed, value = _listed(param.values), shortened(repr(record.values[param.name]), _SHOWN)
                raise StudyError(f"{name}: {shortened(param.name)} = {value} is not one of its values ({allowed})")
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


def _listed(values: Sequence[Value]) -> str:
    """The first few values, shortened."""
    words = ", ".join(shortened(str(value), 20) for value in values[:12])
    return f"{words}, ..." if len(values) > 12 else words


def value_of(value: Json) -> Value:
    """A parameter's value; a whole float counts as an int, any other thing as its text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | str) else json.dumps(value)


def _param(where: str, name: str, values: Sequence[Json]) -> RecordedParam:
    """A parameter with each of its values once; 1, 1.0 and true are one value."""
    distinct: dict[Value, Json] = {}
    for value in values:
        distinct.setdefault(value_of(value), value)
    if len(distinct) > MOST_VALUES:
        raise StudyError(f"{where}: {len(distinct)} values; a parameter has at most {MOST_VALUES}")
    return RecordedParam(name, tuple(distinct), tuple(distinct.values()))
