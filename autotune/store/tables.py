"""The tables as SQLAlchemy sees them. The migrations create them and say what each column means; a test compares."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

metadata = MetaData()
views = MetaData()
"""Views, kept apart from what a migration must create as tables."""


def escaped(text: str) -> str:
    """Text that every reader of the file can read: what UTF-8 cannot carry, and NUL, are escapes."""
    if text.isprintable() and text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class Text(TypeDecorator[str]):
    """Text, written as `escaped`."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Escape lone surrogates and NUL."""
        return None if value is None else escaped(value)


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _integer(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _real(name: str) -> Column[float]:
    return Column(name, Float, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _reference(name: str, target: str) -> Column[int]:
    return Column(name, ForeignKey(target), nullable=False)


PROBLEM_COLUMNS = (
    *("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
    *("groups", "dtype", "layout", "epilogue"),
)
"""Conv2dProblem's fields, in its order."""

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("version", Text, primary_key=True),
    _text("autotune_version"),
    _text("applied_at"),
)

layers = Table(
    "layers",
    metadata,
    _id(),
    *(_integer(name) for name in PROBLEM_COLUMNS[:14]),
    *(_text(name) for name in PROBLEM_COLUMNS[14:]),
    *(_integer(name) for name in ("p", "q", "flops", "minimal_bytes")),
    UniqueConstraint(*PROBLEM_COLUMNS),
)

subjects = Table(
    "subjects",
    metadata,
    _id(),
    _text("kind"),
    Column("layer_id", ForeignKey("layers.id"), unique=True),
    Column("name", Text),
    Column("params", Text),
    UniqueConstraint("name", "params"),
)

subject_layers = Table(
    "subject_layers",
    metadata,
    Column("subject_id", ForeignKey("subjects.id"), primary_key=True),
    Column("layer_id", ForeignKey("layers.id"), primary_key=True),
)

studies = Table(
    "studies",
    metadata,
    _id(),
    _text("name"),
    _integer("generation"),
    _integer("seed"),
    _text("text"),
    _flag("fresh"),
    _text("created_at"),
    Column("imported_from", Text),
    UniqueConstraint("name", "generation"),
)

study_layers = Table(
    "study_layers",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("subject_id", ForeignKey("subjects.id"), primary_key=True),
    _integer("count"),
    Column("position", Integer),
)

devices = Table(
    "devices",
    metadata,
    _id(),
    _text("kind"),
    _text("name"),
    *(_integer(name) for name in ("arch", "sm_count", "memory_bytes")),
    *(_integer(name) for name in ("max_threads_per_block", "smem_per_block_bytes", "smem_per_sm_bytes")),
    *(_integer(name) for name in ("registers_per_sm", "max_warps_per_sm", "max_blocks_per_sm")),
    *(_integer(name) for name in ("constant_bytes", "l2_bytes")),
    *(_integer(f"grid_limit_{axis}") for axis in "xyz"),
    *(_integer(f"block_limit_{axis}") for axis in "xyz"),
    _text("first_seen_at"),
    UniqueConstraint("kind", "name", "arch", "sm_count", "memory_bytes"),
)

environments = Table(
    "environments",
    metadata,
    _id(),
    _text("driver"),
    _text("toolkit"),
    _text("flags"),
    _text("first_seen_at"),
    UniqueConstraint("driver", "toolkit", "flags"),
)

runs = Table(
    "runs",
    metadata,
    _id(),
    _reference("device_id", "devices.id"),
    _reference("environment_id", "environments.id"),
    _text("attributes"),
    _text("autotune_version"),
    _text("started_at"),
)

templates = Table(
    "templates",
    metadata,
    _id(),
    _text("family"),
    _text("hash"),
    _text("header"),
    _text("first_seen_at"),
    UniqueConstraint("family", "hash"),
)

sources = Table(
    "sources",
    metadata,
    _id(),
    Column("hash", Text, nullable=False, unique=True),
    _reference("layer_id", "layers.id"),
    Column("text_zlib", LargeBinary, nullable=False),
    _integer("text_bytes"),
    _text("entries"),
    _text("flags"),
    _text("launches"),
    _text("accuracy"),
    _flag("deterministic"),
)

trials = Table(
    "trials",
    metadata,
    _id(),
    _reference("study_id", "studies.id"),
    _reference("subject_id", "subjects.id"),
    _reference("device_id", "devices.id"),
    _reference("environment_id", "environments.id"),
    _text("policy"),
    _integer("number"),
    _reference("run_id", "runs.id"),
    _reference("template_id", "templates.id"),
    _text("config"),
    Column("source_id", ForeignKey("sources.id")),
    Column("reused_trial_id", ForeignKey("trials.id")),
    _integer("attempts"),
    _text("outcome"),
    _text("reason"),
    _text("message"),
    _text("accuracy"),
    _flag("deterministic"),
    *(Column(name, Integer) for name in ("registers", "spill_bytes", "static_smem_bytes", "constant_bytes")),
    _integer("smem_bytes"),
    *(Column(name, Float) for name in ("occupancy", "error_over_bound", "error_max_abs", "median_us")),
    *(_real(name) for name in ("render_us", "compile_us", "load_us", "verify_us", "measure_us")),
    _text("started_at"),
    Column("ended_at", Text),
    *(_text(name) for name in ("origin", "proposed_by")),
    Column("ranked_us", Float),
    UniqueConstraint("study_id", "subject_id", "device_id", "environment_id", "policy", "number"),
)

finals = Table(
    "finals",
    metadata,
    _id(),
    _reference("study_id", "studies.id"),
    _reference("subject_id", "subjects.id"),
    _reference("device_id", "devices.id"),
    _reference("environment_id", "environments.id"),
    _text("policy"),
    _reference("winner_trial_id", "trials.id"),
    _text("ended_at"),
    _text("origin"),
    Column("superseded_at", Text),
)

retimes = Table(
    "retimes",
    metadata,
    _id(),
    _reference("trial_id", "trials.id"),
    _reference("run_id", "runs.id"),
    _real("before_us"),
    Column("after_us", Float),
    *(_text(name) for name in ("label", "message", "ended_at")),
)

measurements = Table(
    "measurements",
    metadata,
    _id(),
    _reference("trial_id", "trials.id"),
    Column("finals_id", ForeignKey("finals.id")),
    _text("cache"),
    _integer("sample_count"),
    _text("samples_us"),
    *(_real(name) for name in ("median_us", "q1_us", "q3_us")),
    *(Column(name, Float) for name in ("sm_clock_mhz", "memory_clock_mhz")),
    Column("retime_id", ForeignKey("retimes.id")),
    Column("sm_clocks_mhz", Text),
    *(Column(name, Integer) for name in ("discarded_count", "throttled_count", "pass_count")),
    *(Column(name, Float) for name in ("power_w", "temperature_c")),
    _text("launch"),
)

spans = Table(
    "spans",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    *(_real(name) for name in ("copy_in_us", "kernel_us", "copy_out_us")),
    Column("hidden_fraction", Float),
    _real("allocate_us"),
    *(_integer(name) for name in ("host_bytes", "distinct_segments")),
)

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
    _id(),
    _reference("trial_id", "trials.id"),
    _reference("run_id", "runs.id"),
    _text("tool"),
    _integer("position"),
    _text("entry"),
    *(Column(name, Float) for name in COUNTERS),
    _text("stalls"),
    _text("profiled_at"),
)

verdicts = Table(
    "verdicts",
    metadata,
    _id(),
    _reference("finals_id", "finals.id"),
    _text("against"),
    Column("against_trial_id", ForeignKey("trials.id")),
    _text("verdict"),
    _real("median_us"),
    _real("against_us"),
    Column("against_accuracy", Text),
)

quarantine = Table(
    "quarantine",
    metadata,
    _id(),
    _reference("device_id", "devices.id"),
    _reference("environment_id", "environments.id"),
    _reference("source_id", "sources.id"),
    _text("reason"),
    _text("message"),
    _text("created_at"),
    UniqueConstraint("device_id", "environment_id", "source_id"),
)

noise_floors = Table(
    "noise_floors",
    metadata,
    _id(),
    _reference("device_id", "devices.id"),
    _reference("environment_id", "environments.id"),
    _text("policy"),
    _real("noise_us"),
    _real("noise_fraction"),
    _text("measured_at"),
    _text("origin"),
)

rates = Table(
    "rates",
    metadata,
    _id(),
    _reference("device_id", "devices.id"),
    _reference("environment_id", "environments.id"),
    _text("name"),
    _real("per_s"),
    _text("measured_at"),
    _text("origin"),
    _text("method"),
)

dispatchers = Table(
    "dispatchers",
    metadata,
    _id(),
    _reference("trial_id", "trials.id"),
    _text("record"),
    _text("built_at"),
)

dispatched_layers = Table(
    "dispatched_layers",
    metadata,
    Column("dispatcher_id", ForeignKey("dispatchers.id"), primary_key=True),
    Column("layer_id", ForeignKey("layers.id"), primary_key=True),
    _text("name"),
    _integer("count"),
    _text("role"),
    Column("kernel", Text),
    _flag("unsure"),
    Column("time_us", Float),
    _real("best_us"),
    *(Column(name, Float) for name in ("left_out_us", "default_us", "single_us", "nearest_us")),
)

best_trials = Table(
    "best_trials",
    views,
    *(Column(name, Integer) for name in ("layer_id", "subject_id", "device_id")),
    Column("accuracy", Text),
    Column("deterministic", Boolean),
    Column("policy", Text),
    Column("basis", Text),
    Column("trial_id", Integer),
    Column("measurement_id", Integer),
)
