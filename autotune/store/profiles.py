"""Profiles: the counters of kernels under a profiler."""

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


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The counters of one launch; None if the device has no such counter. Fractions are 0 to 1."""

    tool: str
    """name and version of the profiler"""
    position: int
    """position of the launch in one forward pass"""
    entry: str
    time_us: float | None = None
    achieved_occupancy: float | None = None
    """mean resident warps divided by the maximum"""
    load_sectors_per_request: float | None = None
    """32-byte sectors that a warp's global load touches; 4 is a full row of floats"""
    store_sectors_per_request: float | None = None
    load_efficiency_fraction: float | None = None
    """bytes used divided by the bytes of the sectors touched"""
    store_efficiency_fraction: float | None = None
    shared_efficiency_fraction: float | None = None
    shared_load_conflicts: float | None = None
    """additional passes because of bank conflicts"""
    shared_store_conflicts: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    l2_bytes: float | None = None
    fma_utilisation_fraction: float | None = None
    """relative to the peak of the pipe while a multiprocessor is active"""
    tensor_utilisation_fraction: float | None = None
    l1_hit_fraction: float | None = None
    """of the sectors that global accesses request from the L1 cache"""
    l2_hit_fraction: float | None = None
    sm_throughput_fraction: float | None = None
    """of the peak of the SM's busiest unit, over the whole launch"""
    memory_throughput_fraction: float | None = None
    """of the peak of the busiest of L1, L2 and device memory"""
    issue_fraction: float | None = None
    """cycles of a scheduler in which it issues an instruction"""
    active_threads: float | None = None
    """per executed warp instruction; 32 without divergence"""
    shared_load_wavefronts: float | None = None
    """passes of shared-memory loads, of at most 128 bytes each"""
    stalls: tuple[tuple[str, float], ...] = ()
    """reason to the average number of warps stalled for it, per issued instruction; largest first"""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A stored profile of a trial's kernel."""

    row: TrialRow
    profile: KernelProfile
    profiled_at: datetime


@dataclass(frozen=True, slots=True)
class ProfileStore:
    """Profiles of the kernels of trials."""

    database: Database
    runs: Runs

    def add(
        self, row: TrialRow, device: DeviceInfo, environment: Environment, records: Sequence[KernelProfile]
    ) -> tuple[ProfileRow, ...]:
        """Store the profile of a trial's launches on a device; return the stored rows."""
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
        """The profiles of the layers' kernels, oldest first."""
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
