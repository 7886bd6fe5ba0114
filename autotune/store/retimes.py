"""Retimes: new measurements of stored trials in a later run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, select, update

from autotune.devices.device import DeviceInfo, Environment
from autotune.store.devices import Runs, environment_of
from autotune.store.finals import supersede_finals
from autotune.store.rows import among, insert, record_of, rows_of
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import environments, measurements, retimes, runs, trials
from autotune.store.sqlite.database import Database
from autotune.store.studies import find, target_ids
from autotune.store.trials import TrialRow, timing_of, timing_values, with_trials
from autotune.trial import Timing


@dataclass(frozen=True, slots=True)
class RetimeRow:
    """A retime: a later measurement of a stored trial."""

    row: TrialRow
    """the trial's current row"""
    environment: Environment
    """the environment of the new measurement"""
    label: str
    """one of RETIME_LABELS"""
    before_us: float
    """the median before the retime"""
    timing: Timing | None
    """the new measurement; None if the retime failed"""
    message: str
    """the reason why the retime failed; empty if it did not fail"""
    ended_at: datetime

    @property
    def after_us(self) -> float | None:
        """The new median; None if the retime failed."""
        return None if self.timing is None else self.timing.median_us

    @property
    def ratio(self) -> float | None:
        """The new median divided by the old one.

        None if the retime failed or if the two medians were measured in different ways.
        """
        after_us = None if self.label == "remeasured" else self.after_us
        return None if after_us is None else after_us / self.before_us


def _insert(
    connection: Connection,
    row: TrialRow,
    run_id: int,
    label: str,
    timing: Timing | None,
    message: str,
    now: datetime,
) -> int:
    """Store a retime and its measurement, which now ranks the trial, and return the retime's id.

    Among one kernel's trials on one device, only the last one measured is ranked. Finals that the retime contradicts
    are superseded.
    """
    trial = next(rows_of(connection, select(trials).where(trials.c.id == row.id)))
    ranking_median_us = trial[trials.c.ranking_median_us]
    before_us = trial[trials.c.median_us] if ranking_median_us is None else ranking_median_us
    after_us = None if timing is None else timing.median_us
    result: Values = {"before_us": before_us, "after_us": after_us, "label": label, "message": message}
    retime_id = insert(connection, retimes, {"trial_id": row.id, "run_id": run_id, **result, "ended_at": now})
    if timing is not None:
        insert(connection, measurements, {"trial_id": row.id, "retime_id": retime_id, **timing_values(timing)})
    if trial[trials.c.source_id] is not None:
        same_kernel = [
            trials.c[name] == trial[trials.c[name]] for name in ("source_id", "device_id", "measurement_mode")
        ]
        connection.execute(update(trials).where(*same_kernel).values(ranking_median_us=None))
    connection.execute(update(trials).where(trials.c.id == row.id).values(ranking_median_us=after_us))
    if (label != "confirmed") if ranking_median_us is not None else (label != "failed"):
        supersede_finals(connection, trial, now)
    return retime_id


@dataclass(frozen=True, slots=True)
class RetimeStore:
    """Stores and lists retimes."""

    database: Database
    runs: Runs

    def add(
        self,
        row: TrialRow,
        device: DeviceInfo,
        environment: Environment,
        label: str,
        timing: Timing | None,
        message: str = "",
    ) -> RetimeRow:
        """Store a retime's result: a label from RETIME_LABELS and, unless the retime failed, the timing.

        From now on, `best` ranks the trial by the new median, even if the trial was imported. If the new median
        contradicts finals for the same layer, device and accuracy class, these are superseded.
        """
        with self.runs.write(device, environment) as run:
            retime_id = _insert(run.connection, row, run.id, label, timing, message, run.now)
            return _rows(run.connection, retimes.c.id == retime_id)[0]

    def latest_timings(self, trial_ids: Sequence[int]) -> Mapping[int, Timing]:
        """Return each trial's latest measurement, made while tuning, in finals or in a retime."""
        statement = select(measurements).where(among(measurements.c.trial_id, trial_ids)).order_by(measurements.c.id)
        with self.database.read() as connection:
            return {row[measurements.c.trial_id]: timing_of(row) for row in rows_of(connection, statement)}

    def list(self, what: str | None = None) -> tuple[RetimeRow, ...]:
        """List the retimes for layers with these shapes in any study, oldest first."""
        with self.database.read() as connection:
            tuning_targets = target_ids(find(connection, what, self.database.shown))
            return _rows(connection, trials.c.tuning_target_id.in_(tuning_targets))


def _rows(connection: Connection, which: ColumnElement[bool]) -> tuple[RetimeRow, ...]:
    statement = (
        select(retimes, runs, environments, measurements)
        .join(trials, trials.c.id == retimes.c.trial_id)
        .join(runs, runs.c.id == retimes.c.run_id)
        .join(environments, environments.c.id == runs.c.environment_id)
        .outerjoin(measurements, measurements.c.retime_id == retimes.c.id)
        .where(which)
        .order_by(retimes.c.id)
    )
    return tuple(_row(row, trial) for row, trial in with_trials(connection, statement, retimes.c.trial_id))


def _row(row: RowMapping, trial: TrialRow) -> RetimeRow:
    return record_of(
        *(RetimeRow, row, retimes),
        row=trial,
        environment=environment_of(row),
        timing=None if row[measurements.c.id] is None else timing_of(row),
    )
