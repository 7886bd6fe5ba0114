"""What was measured of trials: samples, finals, retimes, profiles."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from autotune.store.schema.base import Base, Id, is_date, is_json, is_measured, is_one_of, table

RETIME_LABELS = ("confirmed", "moved", "regressed", "failed", "remeasured")
"""What became of a stored trial's time when it was measured again."""
VERDICTS = ("win", "tie", "loss")


class Finals(Base):
    __tablename__ = "finals"
    __table_args__ = table(
        is_date("ended_at", "superseded_at"),
        Index("finals_target", "tuning_target_id", "device_id", "measurement_mode"),
        is_one_of("origin", ("measured", "imported")),
        comment="The best trials of a layer measured again, interleaved.",
    )
    id: Mapped[Id]
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    measurement_mode: Mapped[str]
    winner_trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    ended_at: Mapped[datetime]
    origin: Mapped[str] = mapped_column(comment="imported finals decide nothing here", server_default="measured")
    superseded_at: Mapped[datetime | None] = mapped_column(
        comment="when a later retime put them in doubt; NULL while they decide"
    )


class Verdict(Base):
    __tablename__ = "verdicts"
    __table_args__ = table(
        Index("verdicts_finals", "finals_id"),
        is_one_of("verdict", VERDICTS),
        is_measured("median_us"),
        is_measured("against_us"),
        comment="The finals' winner against the default, the previous best, cuDNN ...",
    )
    id: Mapped[Id]
    finals_id: Mapped[int] = mapped_column(ForeignKey("finals.id"))
    against: Mapped[str]
    against_trial_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id"))
    verdict: Mapped[str]
    median_us: Mapped[float]
    against_us: Mapped[float]
    against_accuracy: Mapped[str | None] = mapped_column(comment="accuracy class of what the winner was compared with")


class Retime(Base):
    __tablename__ = "retimes"
    __table_args__ = table(
        is_date("ended_at"),
        Index("retimes_trial", "trial_id"),
        is_one_of("label", RETIME_LABELS),
        CheckConstraint("(label = 'failed') = (after_us IS NULL)"),
        is_measured("before_us"),
        is_measured("after_us"),
        comment="A stored trial measured again in a later run, and what became of its time.",
    )
    id: Mapped[Id]
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id"), comment="device, driver and toolkit of the new measurement"
    )
    before_us: Mapped[float] = mapped_column(comment="the median it had")
    after_us: Mapped[float | None] = mapped_column(comment="the new median, NULL when it failed")
    label: Mapped[str] = mapped_column(
        comment="remeasured: the median it had was taken in another way, so the two are not compared"
    )
    message: Mapped[str] = mapped_column(comment="why it failed, else empty")
    ended_at: Mapped[datetime]


class Measurement(Base):
    __tablename__ = "measurements"
    __table_args__ = table(
        Index("measurements_trial", "trial_id"),
        Index("measurements_finals", "finals_id", "trial_id", sqlite_where=text("finals_id IS NOT NULL")),
        Index(
            *("measurements_tuning", "trial_id"),
            unique=True,
            sqlite_where=text("finals_id IS NULL AND retime_id IS NULL"),
        ),
        Index("measurements_retime", "retime_id", unique=True, sqlite_where=text("retime_id IS NOT NULL")),
        is_one_of("launch", ("stream", "graph")),
        is_json("samples_us", "array"),
        is_json("sm_clocks_mhz", "array"),
        is_measured("median_us"),
        comment="The samples of one kernel's forward pass.",
    )
    id: Mapped[Id]
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    finals_id: Mapped[int | None] = mapped_column(
        ForeignKey("finals.id"), comment="NULL for the one made while tuning, and for a retime's"
    )
    retime_id: Mapped[int | None] = mapped_column(ForeignKey("retimes.id"), comment="NULL unless made by a retime")
    cache: Mapped[str] = mapped_column(comment="cold (L2 written over before each sample) or hot")
    sample_count: Mapped[int]
    samples_us: Mapped[tuple[float, ...]] = mapped_column(
        comment="JSON array, in the order taken, seven digits as the timer has"
    )
    median_us: Mapped[float]
    q1_us: Mapped[float]
    q3_us: Mapped[float]
    sm_clock_mhz: Mapped[float | None] = mapped_column(comment="median over the samples, NULL where unknown")
    sm_clocks_mhz: Mapped[tuple[float, ...] | None] = mapped_column(
        comment="JSON array, one for each sample; NULL where unknown"
    )
    discarded: Mapped[int] = mapped_column(comment="samples at a throttled clock that were taken again")
    throttled: Mapped[int] = mapped_column(comment="samples at a throttled clock that had to be kept")
    passes: Mapped[int] = mapped_column(comment="forward passes that one sample is the mean of")
    power_w: Mapped[float | None] = mapped_column(comment="of the device after the last sample, NULL where unknown")
    temperature_c: Mapped[float | None]
    launch: Mapped[str] = mapped_column(
        comment="graph: passes are replayed from a CUDA graph, without launch gaps; stream: launched one by one. "
        "Below 200 us times of the two are not compared"
    )


class EndToEndTiming(Base):
    __tablename__ = "end_to_end_timings"
    __table_args__ = table(comment="What the host-to-host time of an end_to_end trial is made of.")
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    copy_in_us: Mapped[float] = mapped_column(comment="every segment's input to the device, with nothing else running")
    kernel_us: Mapped[float] = mapped_column(comment="every segment's kernels, with nothing else running")
    copy_out_us: Mapped[float] = mapped_column(comment="every segment's output to the host, with nothing else running")
    hidden_fraction: Mapped[float | None] = mapped_column(comment="share of the copy time that the total does not show")
    allocate_us: Mapped[float] = mapped_column(
        comment="allocating the host memory and touching it once; not in the trial's time"
    )
    host_bytes: Mapped[int]
    distinct_segments: Mapped[int] = mapped_column(comment="segments whose test data differ from every other segment's")


class Profile(Base):
    __tablename__ = "profiles"
    __table_args__ = table(
        is_date("profiled_at"),
        Index("profiles_trial", "trial_id"),
        is_json("stalls"),
        comment="What a profiler saw of one launch of a trial's kernel; NULL where the device has no such counter.",
    )
    id: Mapped[Id]
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id"), comment="device, driver and date of the profile, not of the trial"
    )
    tool: Mapped[str] = mapped_column(comment="name and version")
    position: Mapped[int] = mapped_column(comment="of the launch in one round of the forward pass, from 0")
    entry: Mapped[str] = mapped_column(comment="the kernel's name")
    time_us: Mapped[float | None]
    achieved_occupancy: Mapped[float | None] = mapped_column(
        comment="mean resident warps over the most, 0 to 1; so are all fractions"
    )
    load_sectors_per_request: Mapped[float | None] = mapped_column(
        comment="32-byte sectors a load of a warp; 4 is a row of floats"
    )
    store_sectors_per_request: Mapped[float | None]
    load_efficiency_fraction: Mapped[float | None] = mapped_column(
        comment="bytes used of the sectors that global loads touch"
    )
    store_efficiency_fraction: Mapped[float | None]
    shared_efficiency_fraction: Mapped[float | None] = mapped_column(
        comment="bytes used of what shared-memory accesses could carry"
    )
    shared_load_conflicts: Mapped[float | None] = mapped_column(comment="further passes that bank conflicts cost")
    shared_store_conflicts: Mapped[float | None]
    dram_read_bytes: Mapped[float | None]
    dram_written_bytes: Mapped[float | None]
    l2_bytes: Mapped[float | None]
    fma_utilisation_fraction: Mapped[float | None] = mapped_column(
        comment="of the pipe's most while a multiprocessor is active"
    )
    tensor_utilisation_fraction: Mapped[float | None]
    l1_hit_fraction: Mapped[float | None] = mapped_column(
        comment="of the sectors that global accesses ask the L1 cache for"
    )
    l2_hit_fraction: Mapped[float | None]
    sm_throughput_fraction: Mapped[float | None] = mapped_column(
        comment="of the peak of the SM's busiest unit, over the whole launch"
    )
    memory_throughput_fraction: Mapped[float | None] = mapped_column(
        comment="of the peak of the busiest of L1, L2 and device memory"
    )
    issue_fraction: Mapped[float | None] = mapped_column(comment="cycles of a scheduler in which it issues")
    active_threads: Mapped[float | None] = mapped_column(comment="per executed warp instruction; 32 without divergence")
    shared_load_wavefronts: Mapped[float | None] = mapped_column(
        comment="passes of shared-memory loads, of at most 128 bytes each"
    )
    stalls: Mapped[Mapping[str, Any]] = mapped_column(comment="JSON object, reason to the mean number of waiting warps")
    profiled_at: Mapped[datetime]
