"""The tables as SQLAlchemy sees them. The migrations create them and say what each column means; a test compares."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Integer, LargeBinary, Table, UniqueConstraint

from autotune.store.columns import Text, flag, integer, metadata, real, reference, row_id, text, views

PROBLEM_COLUMNS = (
    *("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
    *("groups", "dtype", "layout", "epilogue"),
)
"""Conv2dProblem's fields, in its order."""

layers = Table(
    "layers",
    metadata,
    row_id(),
    *(integer(name) for name in PROBLEM_COLUMNS[:14]),
    *(text(name) for name in PROBLEM_COLUMNS[14:]),
    *(integer(name) for name in ("p", "q", "flops", "minimal_bytes")),
    UniqueConstraint(*PROBLEM_COLUMNS),
)

subjects = Table(
    "subjects",
    metadata,
    row_id(),
    text("kind"),
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
    row_id(),
    text("name"),
    integer("generation"),
    integer("seed"),
    text("text"),
    flag("fresh"),
    text("created_at"),
    Column("imported_from", Text),
    UniqueConstraint("name", "generation"),
)

study_layers = Table(
    "study_layers",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("subject_id", ForeignKey("subjects.id"), primary_key=True),
    integer("count"),
    Column("position", Integer),
)

devices = Table(
    "devices",
    metadata,
    row_id(),
    text("kind"),
    text("name"),
    *(integer(name) for name in ("arch", "sm_count", "memory_bytes")),
    *(integer(name) for name in ("max_threads_per_block", "smem_per_block_bytes", "smem_per_sm_bytes")),
    *(integer(name) for name in ("registers_per_sm", "max_warps_per_sm", "max_blocks_per_sm")),
    *(integer(name) for name in ("constant_bytes", "l2_bytes")),
    *(integer(f"grid_limit_{axis}") for axis in "xyz"),
    *(integer(f"block_limit_{axis}") for axis in "xyz"),
    text("first_seen_at"),
    UniqueConstraint("kind", "name", "arch", "sm_count", "memory_bytes"),
)

environments = Table(
    "environments",
    metadata,
    row_id(),
    text("driver"),
    text("toolkit"),
    text("flags"),
    text("first_seen_at"),
    UniqueConstraint("driver", "toolkit", "flags"),
)

runs = Table(
    "runs",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("attributes"),
    text("autotune_version"),
    text("started_at"),
)

templates = Table(
    "templates",
    metadata,
    row_id(),
    text("family"),
    text("hash"),
    text("header"),
    text("first_seen_at"),
    UniqueConstraint("family", "hash"),
)

sources = Table(
    "sources",
    metadata,
    row_id(),
    Column("hash", Text, nullable=False, unique=True),
    reference("layer_id", "layers.id"),
    Column("text_zlib", LargeBinary, nullable=False),
    integer("text_bytes"),
    text("entries"),
    text("flags"),
    text("launches"),
    text("accuracy"),
    flag("deterministic"),
)

trials = Table(
    "trials",
    metadata,
    row_id(),
    reference("study_id", "studies.id"),
    reference("subject_id", "subjects.id"),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("policy"),
    integer("number"),
    reference("run_id", "runs.id"),
    reference("template_id", "templates.id"),
    text("config"),
    Column("source_id", ForeignKey("sources.id")),
    Column("reused_trial_id", ForeignKey("trials.id")),
    integer("attempts"),
    text("outcome"),
    text("reason"),
    text("message"),
    text("accuracy"),
    flag("deterministic"),
    *(Column(name, Integer) for name in ("registers", "spill_bytes", "static_smem_bytes", "constant_bytes")),
    integer("smem_bytes"),
    *(Column(name, Float) for name in ("occupancy", "error_over_bound", "error_max_abs", "median_us")),
    *(real(name) for name in ("render_us", "compile_us", "load_us", "verify_us", "measure_us")),
    text("started_at"),
    Column("ended_at", Text),
    *(text(name) for name in ("origin", "proposed_by")),
    Column("ranked_us", Float),
    UniqueConstraint("study_id", "subject_id", "device_id", "environment_id", "policy", "number"),
)

finals = Table(
    "finals",
    metadata,
    row_id(),
    reference("study_id", "studies.id"),
    reference("subject_id", "subjects.id"),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("policy"),
    reference("winner_trial_id", "trials.id"),
    text("ended_at"),
    text("origin"),
    Column("superseded_at", Text),
)

retimes = Table(
    "retimes",
    metadata,
    row_id(),
    reference("trial_id", "trials.id"),
    reference("run_id", "runs.id"),
    real("before_us"),
    Column("after_us", Float),
    *(text(name) for name in ("label", "message", "ended_at")),
)

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

spans = Table(
    "spans",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    *(real(name) for name in ("copy_in_us", "kernel_us", "copy_out_us")),
    Column("hidden_fraction", Float),
    real("allocate_us"),
    *(integer(name) for name in ("host_bytes", "distinct_segments")),
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

verdicts = Table(
    "verdicts",
    metadata,
    row_id(),
    reference("finals_id", "finals.id"),
    text("against"),
    Column("against_trial_id", ForeignKey("trials.id")),
    text("verdict"),
    real("median_us"),
    real("against_us"),
    Column("against_accuracy", Text),
)

quarantine = Table(
    "quarantine",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    reference("source_id", "sources.id"),
    text("reason"),
    text("message"),
    text("created_at"),
    UniqueConstraint("device_id", "environment_id", "source_id"),
)

noise_floors = Table(
    "noise_floors",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("policy"),
    real("noise_us"),
    real("noise_fraction"),
    text("measured_at"),
    text("origin"),
)

rates = Table(
    "rates",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("name"),
    real("per_s"),
    text("measured_at"),
    text("origin"),
    text("method"),
)

dispatchers = Table(
    "dispatchers",
    metadata,
    row_id(),
    reference("trial_id", "trials.id"),
    text("record"),
    text("built_at"),
)

dispatched_layers = Table(
    "dispatched_layers",
    metadata,
    Column("dispatcher_id", ForeignKey("dispatchers.id"), primary_key=True),
    Column("layer_id", ForeignKey("layers.id"), primary_key=True),
    text("name"),
    integer("count"),
    text("role"),
    Column("kernel", Text),
    flag("unsure"),
    Column("time_us", Float),
    real("best_us"),
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
