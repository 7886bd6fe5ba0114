"""Profiles: counters measured by a profiler while a kernel ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from autotune.devices.device import DeviceInfo, Environment
from autotune.store.devices import Runs
from autotune.store.rows import finite, insert, record_of, values_of
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import profiles, trials
from autotune.store.sqlite.database import Database
from autotune.store.studies import find, target_ids
from autotune.store.trials import TrialRow, with_trials
from autotune.trial import KernelProfile


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A stored profile of a trial's kernel."""

    row: TrialRow
    profile: KernelProfile
    profiled_at: datetime


@dataclass(frozen=True, slots=True)
class ProfileStore:
    """Stores and lists the profiles of trials' kernels."""

    database: Database
    runs: Runs

    def add(
        self, row: TrialRow, device: DeviceInfo, environment: Environment, records: Sequence[KernelProfile]
    ) -> tuple[ProfileRow, ...]:
        """Store the profile of a trial's launches on a device, and return the stored rows."""
        with self.runs.write(device, environment) as run:
            ids: Values = {"trial_id": row.id, "run_id": run.id, "profiled_at": run.now}
            for record in records:
                values = {
                    name: finite(value) if isinstance(value, float) else value
                    for name, value in values_of(record, profiles).items()
                }
                values["stalls"] = {reason: warps for reason, warps in record.stalls if math.isfinite(warps)}
                insert(run.connection, profiles, {**ids, **values})
        return tuple(ProfileRow(row, record, run.now) for record in records)

    def list(self, what: str | None = None) -> tuple[ProfileRow, ...]:
        """List the profiles of the layers' kernels, oldest first."""
        with self.database.read() as connection:
            statement = (
                select(profiles)
                .join(trials, trials.c.id == profiles.c.trial_id)
                .where(trials.c.tuning_target_id.in_(target_ids(find(connection, what, self.database.shown))))
                .order_by(profiles.c.id)
            )
            return tuple(
                ProfileRow(
                    trial,
                    record_of(KernelProfile, row, profiles, stalls=tuple(row[profiles.c.stalls].items())),
                    row[profiles.c.profiled_at],
                )
                for row, trial in with_trials(connection, statement, profiles.c.trial_id)
            )
