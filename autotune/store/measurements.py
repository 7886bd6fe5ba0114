"""Timings: of tuning, of finals and of retimes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping, select

from autotune.store.rows import among, finite, record_of, rows_of, values_of
from autotune.store.schema.tables import measurements
from autotune.store.schema.types import Values, seven_digits
from autotune.store.sqlite.database import Database
from autotune.trial import Timing


def timing_values(timing: Timing) -> Values:
    """The columns of a measurement."""
    clocks = timing.sm_clocks_mhz
    return values_of(timing, measurements) | {
        "sample_count": len(timing.samples_us),
        "samples_us": tuple(map(seven_digits, timing.samples_us)),
        "sm_clock_mhz": statistics.median(clocks) if clocks else None,
        "sm_clocks_mhz": clocks or None,
        "power_w": finite(timing.power_w),
        "temperature_c": finite(timing.temperature_c),
    }


def timing_of(row: RowMapping) -> Timing:
    """The timing of a row that has the columns of `measurements`."""
    return record_of(Timing, row, measurements, sm_clocks_mhz=row[measurements.c.sm_clocks_mhz] or ())


@dataclass(frozen=True, slots=True)
class MeasurementStore:
    """Every timing of every trial."""

    database: Database

    def latest(self, trial_ids: Sequence[int]) -> Mapping[int, Timing]:
        """The latest measurement of each trial that has one: while tuning, in finals or in a retime."""
        statement = select(measurements).where(among(measurements.c.trial_id, trial_ids)).order_by(measurements.c.id)
        with self.database.read() as connection:
            return {row[measurements.c.trial_id]: timing_of(row) for row in rows_of(connection, statement)}
