"""Profiles: what a profiler saw of kernels."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, Float, RowMapping, Table, select

from autotune.devices.device import DeviceInfo, Environment
from autotune.store.column_types import Values, date_of, finite, integer, metadata, reference, row_id, text
from autotune.store.devices import Runs
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert
from autotune.store.studies import find, subject_ids
from autotune.store.trials import TrialRow, trials, with_trials
from autotune.store.unreadable import reading

COUNTERS = (
    *("time_us", "achieved_occupancy", "load_sectors_per_request", "store_sectors_per_request"),
    *("load_efficiency_fraction", "store_efficiency_fraction", "shared_efficiency_fraction"),
    *("shared_load_conflicts", "shared_store_conflicts", "dram_read_bytes", "dram_written_bytes", "l2_bytes"),
    *("fma_utilisation_fraction", "tensor_utilisation_fraction", "l1_hit_fraction", "l2_hit_fraction"),
    *("sm_throughput_fraction", "memory_throughput_fraction", "issue_fraction", "active_threads"),
    "shared_load_wavefronts",
)
"""KernelProfile's numbers, in its order."""

profiles = Table(
    "profiles",
    metadata,
    row_id(),
    reference("trial_id", "trials.id"),
    reference("run_id", "runs.id"),
    text("tool"),
    integer("position"),
    text("entry"),
    *(Column(name, Float) for name in COUNTERS),
    text("stalls"),
    text("profiled_at"),
)


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What a profiler saw of one launch; None where the device has no such counter. Fractions are 0 to 1."""

    tool: str
    """name and version"""
    position: int
    """of the launch in one round of the forward pass"""
    entry: str
    time_us: float | None = None
    achieved_occupancy: float | None = None
    """mean resident warps over the most"""
    load_sectors_per_request: float | None = None
    """32-byte sectors that a warp's global load touches; 4 is a full row of floats"""
    store_sectors_per_request: float | None = None
    load_efficiency_fraction: float | None = None
    """bytes used of the sectors touched"""
    store_efficiency_fraction: float | None = None
    shared_efficiency_fraction: float | None = None
    shared_load_conflicts: float | None = None
    """further passes that bank conflicts cost"""
    shared_store_conflicts: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    l2_bytes: float | None = None
    fma_utilisation_fraction: float | None = None
    """of the pipe's most while a multiprocessor is active"""
    tensor_utilisation_fraction: float | None = None
    l1_hit_fraction: float | None = None
    """of the sectors that global accesses ask the L1 cache for"""
    l2_hit_fraction: float | None = None
    sm_throughput_fraction: float | None = None
    """of the busiest unit of the SM's peak over the whole launch"""
    memory_throughput_fraction: float | None = None
    """of the busiest part of L1, L2 and device memory's peak"""
    issue_fraction: float | None = None
    """cycles of a scheduler in which it issues"""
    active_threads: float | None = None
    """per executed warp instruction; 32 without divergence"""
    shared_load_wavefronts: float | None = None
    """passes of shared-memory loads, of at most 128 bytes each"""
    stalls: tuple[tuple[str, float], ...] = ()
    """reason and the warps that wait for it on average, per issued instruction; most first"""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A stored profile of a trial's kernel."""

    row: TrialRow
    profile: KernelProfile
    profiled_at: datetime


def profile_values(profile: KernelProfile) -> Values:
    """The columns of a profile, but for its trial, run and date."""
    values: Values = {name: finite(getattr(profile, name)) for name in COUNTERS}
    stalls = {reason: warps for reason, warps in profile.stalls if math.isfinite(warps)}
    return {
        "tool": profile.tool,
        "position": profile.position,
        "entry": profile.entry,
        **values,
        "stalls": json.dumps(stalls),
    }


def profile_of(row: RowMapping) -> KernelProfile:
    """The profile of a row that has the columns of `profiles`."""
    column = profiles.c
    return KernelProfile(
        row[column.tool],
        row[column.position],
        row[column.entry],
        **{name: row[column[name]] for name in COUNTERS},
        stalls=tuple(json.loads(row[column.stalls]).items()),
    )


@dataclass(frozen=True, slots=True)
class ProfileStore:
    """What a profiler saw of trials' kernels."""

    database: Database
    runs: Runs

    def add(
        self, row: TrialRow, device: DeviceInfo, environment: Environment, records: Sequence[KernelProfile]
    ) -> tuple[ProfileRow, ...]:
        """Store what a profiler saw of a trial's launches on a device; the rows as they are stored."""
        with self.runs.write(device, environment) as run:
            ids: Values = {"trial_id": row.id, "run_id": run.id, "profiled_at": run.now}
            for record in records:
                insert(run.connection, profiles, {**ids, **profile_values(record)})
        return tuple(ProfileRow(row, record, date_of(run.now)) for record in records)

    @reading
    def list(self, what: str | None = None) -> tuple[ProfileRow, ...]:
        """What a profiler saw of the layers' kernels, oldest first."""
        with self.database.read() as connection:
            statement = (
                select(profiles)
                .join(trials, trials.c.id == profiles.c.trial_id)
                .where(trials.c.subject_id.in_(subject_ids(find(connection, what, self.database.shown))))
                .order_by(profiles.c.id)
            )
            return tuple(
                ProfileRow(trial, profile_of(row), date_of(row[profiles.c.profiled_at]))
                for row, trial in with_trials(connection, statement, profiles.c.trial_id)
            )
