"""Timings: of tuning, of finals and of retimes."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Column, Float, ForeignKey, Integer, RowMapping, Table, select

from autotune.errors import StoreError, shortened
from autotune.store.column_types import Text, Values, finite, integer, metadata, real, reference, row_id, text
from autotune.store.sqlite.database import Database
from autotune.store.statements import chunks, rows_of
from autotune.store.unreadable import reading
from autotune.trial import LEAST, MOST, Timing, is_measured

measurements = Table(
    "measurements",
    metadata,
    row_id(),
    reference("trial_id", "trials.id"),
    Column("finals_id", ForeignKey("finals.id")),
    text("cache"),
    integer("sample_count"),
    text("samples_us"),
    *(real(name) for name in ("median_us", "q1_us", "q3_us")),
    *(Column(name, Float) for name in ("sm_clock_mhz", "memory_clock_mhz")),
    Column("retime_id", ForeignKey("retimes.id")),
    Column("sm_clocks_mhz", Text),
    *(Column(name, Integer) for name in ("discarded_count", "throttled_count", "pass_count")),
    *(Column(name, Float) for name in ("power_w", "temperature_c")),
    text("launch"),
)


TIMING_COLUMNS = tuple(
    measurements.c[name]
    for name in (
        *("samples_us", "median_us", "q1_us", "q3_us", "cache", "sm_clocks_mhz", "discarded_count"),
        *("throttled_count", "pass_count", "launch", "power_w", "temperature_c"),
    )
)
"""What `timing_from` takes, in this order."""


def timing_values(timing: Timing, what: str) -> Values:
    """The columns of a measurement. Raises StoreError when a time is none."""
    for value in (*timing.samples_us, timing.median_us, timing.q1_us, timing.q3_us, *timing.sm_clocks_mhz):
        if not math.isfinite(value):
            raise StoreError(f"{what}: a time of {value} us was measured; only finite times are stored")
    if not is_measured(timing.median_us):
        raise StoreError(f"{what}: a time of {timing.median_us} us was measured; expected {LEAST} to {MOST}")
    return {
        "cache": timing.cache,
        "sample_count": len(timing.samples_us),
        "samples_us": json.dumps(timing.samples_us, separators=(",", ":")),
        "median_us": timing.median_us,
        "q1_us": timing.q1_us,
        "q3_us": timing.q3_us,
        "sm_clock_mhz": statistics.median(timing.sm_clocks_mhz) if timing.sm_clocks_mhz else None,
        "sm_clocks_mhz": json.dumps(timing.sm_clocks_mhz, separators=(",", ":")) if timing.sm_clocks_mhz else None,
        "discarded_count": timing.discarded,
        "throttled_count": timing.throttled,
        "pass_count": timing.passes,
        "launch": timing.launch,
        "power_w": finite(timing.power_w),
        "temperature_c": finite(timing.temperature_c),
    }


def timing_of(row: RowMapping) -> Timing:
    """The timing of a row that has the columns of `measurements`."""
    return timing_from([row[column] for column in TIMING_COLUMNS])


def timing_from(values: Sequence[Any]) -> Timing:
    """The timing of what `TIMING_COLUMNS` say. Raises ValueError or TypeError for what is none."""
    samples, median_us, q1_us, q3_us, cache, clocks, discarded, throttled, passes, launch, power, temperature = values
    if not is_measured(median_us):
        raise ValueError(f"median_us = {median_us} is no time")
    return Timing(
        samples_us=_numbers(samples),
        median_us=median_us,
        q1_us=q1_us,
        q3_us=q3_us,
        cache=cache,
        sm_clocks_mhz=() if clocks is None else _numbers(clocks),
        discarded=discarded or 0,
        throttled=throttled or 0,
        passes=passes or 1,
        launch="graph" if launch == "graph" else "stream",
        power_w=power,
        temperature_c=temperature,
    )


def _numbers(text: str) -> tuple[float, ...]:
    """The numbers of a JSON array. Raises ValueError or TypeError for anything else."""
    return tuple(check_numbers(text))


def check_numbers(text: str) -> list[float]:
    """The same as a list."""
    numbers = orjson.loads(text)
    if not isinstance(numbers, list) or not (math.isfinite(sum(numbers)) or math.isfinite(math.fsum(numbers))):
        raise ValueError(f"{shortened(text)} is not an array of finite numbers")
    return numbers


@dataclass(frozen=True, slots=True)
class MeasurementStore:
    """Every timing of every trial."""

    database: Database

    @reading
    def latest(self, trial_ids: Sequence[int]) -> Mapping[int, Timing]:
        """The latest measurement of each trial that has one, be it of tuning, of finals or of a retime."""
        found = {}
        with self.database.read() as connection:
            for chunk in chunks(trial_ids):
                statement = select(measurements).where(measurements.c.trial_id.in_(chunk)).order_by(measurements.c.id)
                for row in rows_of(connection, statement):
                    found[row[measurements.c.trial_id]] = timing_of(row)
        return found
