"""The tables, their columns and their constraints. A column's comment says what it means; `.schema` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, cast

from sqlalchemy import (
    INTEGER,
    REAL,
    CheckConstraint,
    Constraint,
    ForeignKey,
    Index,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from autotune.store.schema.types import Date, Flag, Numbers, Object, Text, Words
from autotune.trial import ACCURACY_CLASSES, LEAST, MOST, Outcome

RETIME_LABELS = ("confirmed", "moved", "regressed", "failed", "remeasured")
"""What became of a stored trial's time when it was measured again."""
VERDICTS = ("win", "tie", "loss")

Id = Annotated[int, mapped_column(primary_key=True)]


class Base(MappedAsDataclass, DeclarativeBase):
    """A row. `type_annotation_map` says how SQLite stores a Python type."""

    type_annotation_map: ClassVar[Mapping[Any, Any]] = {
        int: INTEGER,
        float: REAL,
        bool: Flag,
        str: Text,
        datetime: Date,
        tuple[float, ...]: Numbers,
        tuple[int, ...]: Numbers,
        tuple[str, ...]: Words,
        Mapping[str, Any]: Object,
    }


def _table(*constraints: Constraint | Index, comment: str, rowid: bool = True) -> tuple[Any, ...]:
    return (*constraints, {"comment": comment, "sqlite_strict": True, "sqlite_with_rowid": rowid})


def _is_one_of(column: str, words: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(str(word)) for word in words)})")


def _is_json(column: str, kind: str = "object") -> CheckConstraint:
    return CheckConstraint(f"{column} IS NULL OR json_valid({column}) AND json_type({column}) = '{kind}'")


def _is_date(*columns: str) -> CheckConstraint:
    dated = "({0} IS NULL OR julianday({0}) IS NOT NULL AND {0} LIKE '____-__-__T%Z')"
    return CheckConstraint(" AND ".join(map(dated.format, columns)))


def _is_measured(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} BETWEEN {LEAST} AND {MOST}")


_CLASSES = ("", *ACCURACY_CLASSES)
_ORIGIN = "measured here, or imported by a merge: unverified until re-timed here"


class SchemaVersion(Base):
    __tablename__ = "schema_versions"
    __table_args__ = _table(comment="Which autotune brought this file to which schema.")
    version: Mapped[Id]
    autotune_version: Mapped[str]
    applied_at: Mapped[datetime] = mapped_column(comment="every date is ISO 8601, UTC")


class Layer(Base):
    __tablename__ = "layers"
    __table_args__ = _table(
        UniqueConstraint("operation", "problem"),
        _is_json("problem"),
        comment="The shape of a problem of an operation. Another run-time size, such as conv2d's n, is another row.",
    )
    id: Mapped[Id]
    n: Mapped[int | None] = mapped_column(
        comment="conv2d's sizes and words, for SQL; NULL where another operation has no such name"
    )
    c: Mapped[int | None]
    h: Mapped[int | None]
    w: Mapped[int | None]
    k: Mapped[int | None]
    r: Mapped[int | None]
    s: Mapped[int | None]
    stride_h: Mapped[int | None]
    stride_w: Mapped[int | None]
    pad_h: Mapped[int | None]
    pad_w: Mapped[int | None]
    dilation_h: Mapped[int | None]
    dilation_w: Mapped[int | None]
    groups: Mapped[int | None]
    dtype: Mapped[str | None]
    layout: Mapped[str | None]
    epilogue: Mapped[str | None]
    p: Mapped[int | None] = mapped_column(comment="output height")
    q: Mapped[int | None] = mapped_column(comment="output width")
    flops: Mapped[int] = mapped_column(comment="of the direct algorithm, a multiply-add counted as two")
    minimal_bytes: Mapped[int] = mapped_column(comment="inputs read once, outputs written once")
    operation: Mapped[str]
    problem: Mapped[str] = mapped_column(comment="JSON object of every size and word, keys sorted")
    declaration: Mapped[str | None] = mapped_column(
        comment="operation.toml of an operation that autotune does not ship, else NULL"
    )


class TuningTarget(Base):
    __tablename__ = "tuning_targets"
    __table_args__ = _table(
        UniqueConstraint("name", "params"),
        _is_one_of("kind", ("layer", "layers", "space")),
        CheckConstraint("(kind = 'layer') = (layer_id IS NOT NULL)"),
        CheckConstraint("(kind = 'space') = (name IS NOT NULL)"),
        CheckConstraint("(kind = 'space') = (params IS NOT NULL)"),
        _is_json("params"),
        comment="What a trial tunes: a layer, a set of layers (a dispatcher), or a search space imported from a file.",
    )
    id: Mapped[Id]
    kind: Mapped[str]
    layer_id: Mapped[int | None] = mapped_column(ForeignKey("layers.id"), comment="of a layer, else NULL", unique=True)
    name: Mapped[str | None] = mapped_column(comment="of a space, its kernel's; else NULL")
    params: Mapped[str | None] = mapped_column(
        comment="of a space, JSON object, parameter to its values in order; else NULL"
    )


class TuningTargetLayer(Base):
    __tablename__ = "tuning_target_layers"
    __table_args__ = _table(comment="The members of a set of layers.", rowid=False)
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"), primary_key=True)
    layer_id: Mapped[int] = mapped_column(ForeignKey("layers.id"), primary_key=True)


class Study(Base):
    __tablename__ = "studies"
    __table_args__ = _table(
        _is_date("created_at"),
        UniqueConstraint("name", "generation"),
        CheckConstraint("fresh IN (0, 1)"),
        comment="One start of a study; `--fresh` begins a new generation under the same name.",
    )
    id: Mapped[Id]
    name: Mapped[str]
    generation: Mapped[int]
    seed: Mapped[int]
    text: Mapped[str] = mapped_column(comment="the study file, as last read")
    fresh: Mapped[bool] = mapped_column(comment="1: nothing measured before created_at is reused")
    created_at: Mapped[datetime]
    imported_from: Mapped[str | None] = mapped_column(comment="the file that it was merged from; NULL when begun here")
    fresh_after_trial_id: Mapped[int | None] = mapped_column(
        comment="of a fresh start, the newest trial then; NULL for any other"
    )


class StudyLayer(Base):
    __tablename__ = "study_layers"
    __table_args__ = _table(
        Index("study_layers_current", "study_id", "name", unique=True, sqlite_where=text("position IS NOT NULL")),
        Index("study_layers_target", "tuning_target_id"),
        _is_json("admitted", "array"),
        comment="The name of a tuning target in a study: study.layer on the command line.",
        rowid=False,
    )
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"), primary_key=True)
    count: Mapped[int] = mapped_column(comment="how often the network runs it")
    position: Mapped[int | None] = mapped_column(comment="its place in the study file; NULL when it is no longer there")
    admitted: Mapped[tuple[str, ...]] = mapped_column(
        comment="JSON array, the accuracy classes that may win the layer in this study"
    )


class Device(Base):
    __tablename__ = "devices"
    __table_args__ = _table(
        _is_date("first_seen_at"),
        UniqueConstraint("kind", "name", "arch", "sm_count", "memory_bytes"),
        _is_json("grid_limits", "array"),
        _is_json("block_limits", "array"),
        comment="kind, name, arch, sm_count and memory_bytes identify a device, the rest are its limits.",
    )
    id: Mapped[Id]
    kind: Mapped[str] = mapped_column(comment="cuda, host or null; kinds are never compared with each other")
    name: Mapped[str]
    arch: Mapped[int] = mapped_column(comment="compute capability times ten")
    sm_count: Mapped[int]
    memory_bytes: Mapped[int]
    max_threads_per_block: Mapped[int]
    smem_per_block_bytes: Mapped[int]
    smem_per_sm_bytes: Mapped[int]
    registers_per_sm: Mapped[int]
    max_warps_per_sm: Mapped[int]
    max_blocks_per_sm: Mapped[int]
    constant_bytes: Mapped[int]
    l2_bytes: Mapped[int]
    grid_limits: Mapped[tuple[int, ...]] = mapped_column(comment="JSON array: x, y, z")
    block_limits: Mapped[tuple[int, ...]]
    first_seen_at: Mapped[datetime]


class Environment(Base):
    __tablename__ = "environments"
    __table_args__ = _table(
        _is_date("first_seen_at"),
        UniqueConstraint("driver", "toolkit", "flags"),
        comment="What a measurement depends on besides its device; a change makes results doubtful, not foreign.",
    )
    id: Mapped[Id]
    driver: Mapped[str]
    toolkit: Mapped[str] = mapped_column(comment="compiler name and version")
    flags: Mapped[str] = mapped_column(comment="compiler flags that every kernel gets")
    first_seen_at: Mapped[datetime]


class Run(Base):
    __tablename__ = "runs"
    __table_args__ = _table(
        _is_date("started_at"), _is_json("attributes"), comment="One process that tuned into this file on one device."
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    attributes: Mapped[Mapping[str, Any]] = mapped_column(
        comment="JSON object: device uuid, clocks, host name, library versions"
    )
    autotune_version: Mapped[str]
    started_at: Mapped[datetime]


class Template(Base):
    __tablename__ = "templates"
    __table_args__ = _table(
        _is_date("first_seen_at"),
        UniqueConstraint("family", "hash"),
        comment="A kernel family as it was when trials were made with it.",
    )
    id: Mapped[Id]
    family: Mapped[str]
    hash: Mapped[str] = mapped_column(comment="of its text and of what it includes")
    header: Mapped[str]
    first_seen_at: Mapped[datetime]


class Source(Base):
    __tablename__ = "sources"
    __table_args__ = _table(
        CheckConstraint("deterministic IN (0, 1)"),
        _is_one_of("accuracy", _CLASSES),
        *(_is_json(name, kind) for name, kind in (("entries", "array"), ("flags", "array"), ("launches", "object"))),
        comment="Every rendered kernel that was compiled. The view `kernels` has its text.",
    )
    id: Mapped[Id]
    hash: Mapped[str] = mapped_column(comment="its identity, of text, flags, launches and problem", unique=True)
    layer_id: Mapped[int] = mapped_column(ForeignKey("layers.id"))
    entries: Mapped[tuple[str, ...]] = mapped_column(comment="JSON array, kernel names")
    flags: Mapped[tuple[str, ...]] = mapped_column(comment="JSON array, compiler flags of its own")
    launches: Mapped[str] = mapped_column(
        comment="JSON object: prepare, stages, constants ...; {} where only the hash is kept"
    )
    accuracy: Mapped[str]
    deterministic: Mapped[bool]


class Paragraph(Base):
    __tablename__ = "paragraphs"
    __table_args__ = _table(comment="What kernels' texts are made of; kernels share most of it.")
    id: Mapped[Id] = mapped_column(comment="the first 63 bits of the text's SHA-256")
    text: Mapped[str] = mapped_column(comment="the text between two blank lines")


class SourceParagraph(Base):
    __tablename__ = "source_paragraphs"
    __table_args__ = _table(comment="A kernel's text: its paragraphs in order.", rowid=False)
    source_id: Mapped[int] = mapped_column(ForeignKey("sources.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    paragraph_id: Mapped[int] = mapped_column(ForeignKey("paragraphs.id"))


class Trial(Base):
    __tablename__ = "trials"
    __table_args__ = _table(
        _is_date("started_at", "ended_at"),
        UniqueConstraint("study_id", "tuning_target_id", "device_id", "environment_id", "measurement_mode", "number"),
        Index("trials_outcome", "study_id", "tuning_target_id", "outcome"),
        Index("trials_identity", "source_id", "device_id", "environment_id", "measurement_mode"),
        Index(
            "trials_best",
            *("tuning_target_id", "device_id", "accuracy", "deterministic", "measurement_mode", "ranking_median_us"),
            sqlite_where=text("ranking_median_us IS NOT NULL"),
        ),
        _is_json("config"),
        _is_one_of("outcome", tuple(Outcome)),
        _is_one_of("accuracy", _CLASSES),
        _is_one_of("origin", ("measured", "imported")),
        CheckConstraint("deterministic IN (0, 1)"),
        CheckConstraint("(outcome = 'running') = (ended_at IS NULL)"),
        CheckConstraint("outcome = 'correct' OR median_us IS NULL AND ranking_median_us IS NULL"),
        _is_measured("median_us"),
        _is_measured("ranking_median_us"),
        comment="One config and what became of it.",
    )
    id: Mapped[Id]
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    measurement_mode: Mapped[str] = mapped_column(comment="how it was measured: cold, hot or end_to_end")
    number: Mapped[int] = mapped_column(comment="position in its history, from 0")
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    template_id: Mapped[int] = mapped_column(ForeignKey("templates.id"))
    config: Mapped[str] = mapped_column(comment="JSON object, parameter to value")
    source_id: Mapped[int | None] = mapped_column(
        ForeignKey("sources.id"), comment="NULL when rejected before rendering"
    )
    reused_trial_id: Mapped[int | None] = mapped_column(
        ForeignKey("trials.id"), comment="the trial whose result this one took over, else NULL"
    )
    attempts: Mapped[int] = mapped_column(comment="how often it was begun")
    outcome: Mapped[str]
    reason: Mapped[str] = mapped_column(comment="a word beneath the outcome")
    message: Mapped[str] = mapped_column(comment="the compiler's, driver's or checker's own words")
    accuracy: Mapped[str] = mapped_column(
        comment="what the arithmetic promises, such as fp32; empty when rejected before rendering"
    )
    deterministic: Mapped[bool]
    registers: Mapped[int | None] = mapped_column(
        comment="a thread; this and the next three are NULL where no compiler reported them"
    )
    spill_bytes: Mapped[int | None]
    static_smem_bytes: Mapped[int | None]
    constant_bytes: Mapped[int | None]
    smem_bytes: Mapped[int] = mapped_column(comment="shared memory a block, static and dynamic")
    occupancy: Mapped[float | None] = mapped_column(comment="theoretical, 0 to 1")
    error_over_bound: Mapped[float | None] = mapped_column(
        comment="at most 1 when correct; NULL when not verified or not a number"
    )
    error_max_abs: Mapped[float | None]
    median_us: Mapped[float | None] = mapped_column(comment="of its measurement, correct trials only")
    ranking_median_us: Mapped[float | None] = mapped_column(
        comment="median of its latest measurement here, by which `best` ranks it; NULL for what does not count: "
        "imported and never re-timed, failed when re-timed, a copy, or another trial of its kernel was re-timed since"
    )
    render_us: Mapped[float] = mapped_column(comment="wall clock of its phases")
    compile_us: Mapped[float]
    load_us: Mapped[float]
    verify_us: Mapped[float]
    measure_us: Mapped[float]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(comment="NULL while running")
    origin: Mapped[str] = mapped_column(comment=_ORIGIN, server_default="measured")
    proposed_by: Mapped[str] = mapped_column(
        comment="what asked for it: search, default, warm_start ...", server_default="search"
    )


class Finals(Base):
    __tablename__ = "finals"
    __table_args__ = _table(
        _is_date("ended_at", "superseded_at"),
        Index("finals_target", "tuning_target_id", "device_id", "measurement_mode"),
        _is_one_of("origin", ("measured", "imported")),
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
    __table_args__ = _table(
        Index("verdicts_finals", "finals_id"),
        _is_one_of("verdict", VERDICTS),
        _is_measured("median_us"),
        _is_measured("against_us"),
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
    __table_args__ = _table(
        _is_date("ended_at"),
        Index("retimes_trial", "trial_id"),
        _is_one_of("label", RETIME_LABELS),
        CheckConstraint("(label = 'failed') = (after_us IS NULL)"),
        _is_measured("before_us"),
        _is_measured("after_us"),
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
    __table_args__ = _table(
        Index("measurements_trial", "trial_id"),
        Index("measurements_finals", "finals_id", "trial_id", sqlite_where=text("finals_id IS NOT NULL")),
        Index(
            *("measurements_tuning", "trial_id"),
            unique=True,
            sqlite_where=text("finals_id IS NULL AND retime_id IS NULL"),
        ),
        Index("measurements_retime", "retime_id", unique=True, sqlite_where=text("retime_id IS NOT NULL")),
        _is_one_of("launch", ("stream", "graph")),
        _is_json("samples_us", "array"),
        _is_json("sm_clocks_mhz", "array"),
        _is_measured("median_us"),
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
    __table_args__ = _table(comment="What the host-to-host time of an end_to_end trial is made of.")
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
    __table_args__ = _table(
        _is_date("profiled_at"),
        Index("profiles_trial", "trial_id"),
        _is_json("stalls"),
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


class Quarantine(Base):
    __tablename__ = "quarantine"
    __table_args__ = _table(
        _is_date("created_at"),
        UniqueConstraint("device_id", "environment_id", "source_id"),
        comment="Kernels that took down two runs, never to be launched again on this device in this environment.",
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    source_id: Mapped[int] = mapped_column(ForeignKey("sources.id"))
    reason: Mapped[str]
    message: Mapped[str]
    created_at: Mapped[datetime]


class NoiseFloor(Base):
    __tablename__ = "noise_floors"
    __table_args__ = _table(
        _is_date("measured_at"),
        Index("noise_floors_device", "device_id", "measurement_mode"),
        _is_one_of("origin", ("measured", "imported")),
        comment="The smallest difference that a device's measurements can resolve.",
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    measurement_mode: Mapped[str]
    noise_us: Mapped[float]
    noise_fraction: Mapped[float]
    measured_at: Mapped[datetime]
    origin: Mapped[str] = mapped_column(
        comment="imported ones count where there is no other", server_default="measured"
    )


class Rate(Base):
    __tablename__ = "rates"
    __table_args__ = _table(
        _is_date("measured_at"),
        Index("rates_device", "device_id", "unit"),
        _is_one_of("origin", ("measured", "imported")),
        _is_measured("per_s"),
        comment="What a device was measured to do, by `autotune devices --calibrate`.",
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    unit: Mapped[str] = mapped_column(comment="copy, fill, or an arithmetic such as fp32")
    method: Mapped[str] = mapped_column(comment="how it was measured; the best of one calibration's methods counts")
    per_s: Mapped[float] = mapped_column(comment="bytes for copy and fill, else floating-point operations")
    measured_at: Mapped[datetime]
    origin: Mapped[str] = mapped_column(
        comment="imported ones count where there is no other", server_default="measured"
    )


class Dispatcher(Base):
    __tablename__ = "dispatchers"
    __table_args__ = _table(
        _is_date("built_at"),
        Index("dispatchers_trial", "trial_id"),
        _is_json("record"),
        comment="A dispatcher as it was built. Its trial's tuning target is the set of layers that it was made from.",
    )
    id: Mapped[Id]
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    record: Mapped[str] = mapped_column(comment="JSON object: properties, kernels with their conditions, default, rule")
    built_at: Mapped[datetime]


class DispatchedLayer(Base):
    __tablename__ = "dispatched_layers"
    __table_args__ = _table(
        UniqueConstraint("dispatcher_id", "layer_id"),
        _is_one_of("role", ("tuned", "held out")),
        CheckConstraint("default_first IN (0, 1)"),
        comment="What a dispatcher does with each layer, and with those that were held out of its making.",
    )
    id: Mapped[Id]
    dispatcher_id: Mapped[int] = mapped_column(ForeignKey("dispatchers.id"))
    layer_id: Mapped[int] = mapped_column(ForeignKey("layers.id"))
    name: Mapped[str]
    count: Mapped[int] = mapped_column(comment="how often the network runs it: its weight")
    role: Mapped[str]
    kernel: Mapped[str | None] = mapped_column(
        comment="name of the kernel that serves it; NULL when none fits, it is to be tuned"
    )
    default_first: Mapped[bool] = mapped_column(
        comment="1: the rule has no answer for it, the safe default comes first"
    )
    time_us: Mapped[float | None] = mapped_column(comment="of that kernel, NULL without one")
    best_us: Mapped[float] = mapped_column(comment="of the layer's own best kernel")
    left_out_us: Mapped[float | None] = mapped_column(
        comment="of what a dispatcher made without the layer chooses; NULL: nothing fits"
    )
    default_us: Mapped[float | None] = mapped_column(comment="of the safe default, NULL when it does not fit")
    single_us: Mapped[float | None] = mapped_column(comment="of the single kernel that is best over the other layers")
    nearest_us: Mapped[float | None] = mapped_column(comment="of the best kernel of the nearest layer")


def _of(row: type[Base]) -> Table:
    return cast(Table, row.__table__)


metadata = Base.metadata
layers, tuning_targets, tuning_target_layers = _of(Layer), _of(TuningTarget), _of(TuningTargetLayer)
studies, study_layers = _of(Study), _of(StudyLayer)
devices, environments, runs = _of(Device), _of(Environment), _of(Run)
templates, sources, paragraphs, source_paragraphs = _of(Template), _of(Source), _of(Paragraph), _of(SourceParagraph)
trials, measurements, retimes, profiles = _of(Trial), _of(Measurement), _of(Retime), _of(Profile)
finals, verdicts, end_to_end_timings = _of(Finals), _of(Verdict), _of(EndToEndTiming)
quarantine, noise_floors, rates = _of(Quarantine), _of(NoiseFloor), _of(Rate)
dispatchers, dispatched_layers, schema_versions = _of(Dispatcher), _of(DispatchedLayer), _of(SchemaVersion)
