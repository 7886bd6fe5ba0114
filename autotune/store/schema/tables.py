"""The tables, each declared once. The file's schema, its constraints and all statements are derived from them."""

from sqlalchemy import CheckConstraint, Index, UniqueConstraint
from sqlalchemy import text as sql

from autotune.devices.device import DeviceInfo, Environment, Rate
from autotune.operation.registry import CONV2D, operation
from autotune.store.schema.best_rule import KEY
from autotune.store.schema.column_kinds import (
    array,
    columns_of,
    date,
    flag,
    integer,
    json_object,
    key,
    mapping,
    measured,
    metadata,
    origin,
    real,
    reference,
    table,
    text,
    word,
)
from autotune.trial import ACCURACY_CLASSES, EndToEndParts, KernelProfile, Outcome, Phases, Resources, Timing, Trial

__all__ = ["metadata"]

RETIME_LABELS = ("confirmed", "moved", "regressed", "failed", "remeasured")
"""A retime's labels, which say how the new time compares with the stored one."""
DEVICE_IDENTITY = ("kind", "name", "arch", "sm_count", "memory_bytes")
"""The columns that identify a device."""
SIZES, WORDS = tuple(size.name for size in operation(CONV2D).sizes), tuple(operation(CONV2D).words)
"""Names of the sizes and words of conv2d, which are columns of `layers`."""
CLASSES = ("", *ACCURACY_CLASSES)
"""The accuracy classes, and "" for configs that were never rendered."""

DECLARED = ("number", "reason", "message", "source_hash", "accuracy", "deterministic", "smem_bytes", "occupancy")
"""Fields of a trial whose columns are declared separately, because they need a comment, a constraint or a reference."""

schema_versions = table(
    "schema_versions",
    "The versions of autotune that brought this file to a schema.",
    key("version"),
    text("autotune_version"),
    date("applied_at", "every date is ISO 8601, UTC"),
)

layers = table(
    "layers",
    "The shape of a problem of an operation. Another run-time size, such as conv2d's n, is another row. The sizes and "
    "words of conv2d have columns, for SQL; they are NULL where another operation has no such name.",
    key(),
    *(integer(name, null=True) for name in SIZES),
    *(text(name, null=True) for name in WORDS),
    integer("p", "output height", null=True),
    integer("q", "output width", null=True),
    integer("flops", "of the direct algorithm, a multiply-add counted as two"),
    integer("minimal_bytes", "inputs read once, outputs written once"),
    text("operation"),
    json_object("problem", "JSON object of every size and word, keys sorted"),
    text("declaration", "operation.toml of an operation that autotune does not ship, else NULL", null=True),
    UniqueConstraint("operation", "problem"),
)

tuning_targets = table(
    "tuning_targets",
    "The target of a trial: a layer or a set of layers (a dispatcher).",
    key(),
    word("kind", ("layer", "layers")),
    reference("layer_id", "layers", "of a layer, else NULL", null=True, unique=True),
    CheckConstraint("(kind = 'layer') = (layer_id IS NOT NULL)"),
)

tuning_target_layers = table(
    "tuning_target_layers",
    "The members of a set of layers.",
    reference("tuning_target_id", "tuning_targets", primary_key=True),
    reference("layer_id", "layers", primary_key=True),
    rowid=False,
)

studies = table(
    "studies",
    "One start of a study; `--fresh` begins a new generation under the same name.",
    key(),
    text("name"),
    integer("generation"),
    integer("seed"),
    text("text", "the study file, as last read"),
    flag("fresh", "1: nothing measured before created_at is reused"),
    date("created_at"),
    text("imported_from", "the file that it was merged from; NULL when begun here", null=True),
    integer("fresh_after_trial_id", "of a fresh start, the newest trial then; NULL for any other", null=True),
    UniqueConstraint("name", "generation"),
)

study_layers = table(
    "study_layers",
    "The name of a tuning target in a study: study.layer on the command line.",
    reference("study_id", "studies", primary_key=True),
    text("name", primary_key=True),
    reference("tuning_target_id", "tuning_targets", primary_key=True),
    integer("count", "how often the network runs it"),
    integer("position", "its place in the study file; NULL when it is no longer there", null=True),
    array("admitted", "JSON array, the accuracy classes that may win the layer in this study"),
    Index("study_layers_current", "study_id", "name", unique=True, sqlite_where=sql("position IS NOT NULL")),
    Index("study_layers_target", "tuning_target_id"),
    rowid=False,
)

devices = table(
    "devices",
    "kind, name, arch, sm_count and memory_bytes identify a device, the rest are its limits.",
    key(),
    *columns_of(DeviceInfo, besides=("grid_limits", "block_limits")),
    array("grid_limits", "JSON array: x, y, z"),
    array("block_limits"),
    date("first_seen_at"),
    UniqueConstraint(*DEVICE_IDENTITY),
)

environments = table(
    "environments",
    "The versions and flags that a measurement depends on, next to its device. A change puts results in doubt.",
    key(),
    *columns_of(Environment, besides=("attributes",)),
    date("first_seen_at"),
    UniqueConstraint("driver", "toolkit", "flags"),
)

runs = table(
    "runs",
    "One process that tuned into this file on one device.",
    key(),
    reference("device_id", "devices"),
    reference("environment_id", "environments"),
    mapping("attributes", "JSON object: device uuid, clocks, host name, library versions"),
    text("autotune_version"),
    date("started_at"),
)

noise_floors = table(
    "noise_floors",
    "The smallest difference that a device's measurements can resolve.",
    key(),
    reference("device_id", "devices"),
    reference("environment_id", "environments"),
    text("measurement_mode"),
    real("noise_us"),
    real("noise_fraction"),
    date("measured_at"),
    origin("an imported one counts only if there is no other"),
    Index("noise_floors_device", "device_id", "measurement_mode"),
)

rates = table(
    "rates",
    "The rates of a device, as `autotune devices --calibrate` measured them.",
    key(),
    reference("device_id", "devices"),
    reference("environment_id", "environments"),
    *columns_of(Rate, besides=("per_s",)),
    measured("per_s", "bytes for copy and fill, else floating-point operations"),
    date("measured_at"),
    origin("an imported one counts only if there is no other"),
    Index("rates_device", "device_id", "unit"),
)

templates = table(
    "templates",
    "A kernel family as it was when trials used it.",
    key(),
    text("family"),
    text("hash", "of its text and the files that it includes"),
    text("header"),
    date("first_seen_at"),
    UniqueConstraint("family", "hash"),
)

sources = table(
    "sources",
    "Every rendered kernel that was compiled. The view `kernels` has its text.",
    key(),
    text("hash", "its identity: the hash of its text, flags, launches and problem", unique=True),
    reference("layer_id", "layers"),
    array("entries", "JSON array, kernel names"),
    array("flags", "JSON array, compiler flags of its own"),
    json_object("launches", "JSON object: prepare, stages, constants ...; {} if only the hash is kept"),
    word("accuracy", CLASSES),
    flag("deterministic"),
)

paragraphs = table(
    "paragraphs",
    "The paragraphs of kernels' texts; kernels share most of them.",
    key("id", "the first 63 bits of the text's SHA-256"),
    text("text", "the text between two blank lines"),
)

source_paragraphs = table(
    "source_paragraphs",
    "A kernel's text: its paragraphs in order.",
    reference("source_id", "sources", primary_key=True),
    integer("position", primary_key=True),
    reference("paragraph_id", "paragraphs"),
    rowid=False,
)

trials = table(
    "trials",
    "One config and its result.",
    key(),
    reference("study_id", "studies"),
    reference("tuning_target_id", "tuning_targets"),
    reference("device_id", "devices"),
    reference("environment_id", "environments"),
    text("measurement_mode", "how it was measured: cold, hot or end_to_end"),
    integer("number", "position in its history, from 0"),
    reference("run_id", "runs"),
    reference("template_id", "templates"),
    json_object("config", "JSON object, parameter to value"),
    reference("source_id", "sources", "NULL when rejected before rendering", null=True),
    reference("reused_trial_id", "trials", "the trial whose result this one reuses, else NULL", null=True),
    integer("attempts", "how often it was started"),
    word("outcome", tuple(Outcome)),
    text("reason", "a word that refines the outcome"),
    text("message", "the message of the compiler, driver or checker"),
    word("accuracy", CLASSES, "accuracy class of the arithmetic, such as fp32; empty when rejected before rendering"),
    flag("deterministic"),
    *columns_of(Resources, "per thread; it and the other resources are NULL if no compiler reported them", null=True),
    integer("smem_bytes", "shared memory per block, static and dynamic"),
    real("occupancy", "theoretical, 0 to 1", null=True),
    real("error_over_bound", "at most 1 when correct; NULL when not verified or not a number", null=True),
    real("error_max_abs", null=True),
    measured("median_us", "of its measurement, correct trials only", null=True),
    measured(
        "ranking_median_us",
        "median of its latest measurement here, by which `best` ranks it; NULL for a trial that is not ranked: "
        "imported and never re-timed, failed when re-timed, a copy, or another trial of its kernel was re-timed since",
        null=True,
    ),
    *columns_of(Phases),
    date("started_at"),
    date("ended_at", "NULL while running", null=True),
    origin("measured here, or imported by a merge: unverified until re-timed here"),
    text("proposed_by", "the source of the config: search, default, warm_start ...", server_default="search"),
    *columns_of(Trial, besides=DECLARED),
    UniqueConstraint("study_id", "tuning_target_id", "device_id", "environment_id", "measurement_mode", "number"),
    Index("trials_outcome", "study_id", "tuning_target_id", "outcome"),
    Index("trials_identity", "source_id", "device_id", "environment_id", "measurement_mode"),
    Index("trials_best", *KEY, "ranking_median_us", sqlite_where=sql("ranking_median_us IS NOT NULL")),
    CheckConstraint("(outcome = 'running') = (ended_at IS NULL)"),
    CheckConstraint("outcome = 'correct' OR median_us IS NULL AND ranking_median_us IS NULL"),
)

quarantine = table(
    "quarantine",
    "Kernels that took down two runs. They are not launched again on this device in this environment.",
    key(),
    reference("device_id", "devices"),
    reference("environment_id", "environments"),
    reference("source_id", "sources"),
    text("reason"),
    text("message"),
    date("created_at"),
    UniqueConstraint("device_id", "environment_id", "source_id"),
)

finals = table(
    "finals",
    "The best trials of a layer measured again, interleaved.",
    key(),
    reference("study_id", "studies"),
    reference("tuning_target_id", "tuning_targets"),
    reference("device_id", "devices"),
    reference("environment_id", "environments"),
    text("measurement_mode"),
    reference("winner_trial_id", "trials"),
    date("ended_at"),
    origin("imported finals decide nothing here"),
    date("superseded_at", "when a later retime put them in doubt; NULL while they decide", null=True),
    Index("finals_target", "tuning_target_id", "device_id", "measurement_mode"),
)

verdicts = table(
    "verdicts",
    "Comparisons of the finals' winner with the default, the previous best, cuDNN ...",
    key(),
    reference("finals_id", "finals"),
    text("against"),
    reference("against_trial_id", "trials", null=True),
    word("verdict", ("win", "tie", "loss")),
    measured("median_us"),
    measured("against_us"),
    text("against_accuracy", "accuracy class of the kernel that the winner was compared with", null=True),
    Index("verdicts_finals", "finals_id"),
)

retimes = table(
    "retimes",
    "A stored trial that a later run measured again, with its old and new time.",
    key(),
    reference("trial_id", "trials"),
    reference("run_id", "runs", "device, driver and toolkit of the new measurement"),
    measured("before_us", "the median before"),
    measured("after_us", "the new median, NULL when it failed", null=True),
    word("label", RETIME_LABELS, "remeasured: the old median was measured in another way, so the two are not compared"),
    text("message", "why it failed, else empty"),
    date("ended_at"),
    Index("retimes_trial", "trial_id"),
    CheckConstraint("(label = 'failed') = (after_us IS NULL)"),
)

measurements = table(
    "measurements",
    "The samples of one kernel's forward pass.",
    key(),
    reference("trial_id", "trials"),
    reference("finals_id", "finals", "NULL for the one made while tuning, and for a retime's", null=True),
    reference("retime_id", "retimes", "NULL unless made by a retime", null=True),
    integer("sample_count"),
    array("samples_us", "JSON array, in the order measured, with the timer's seven digits"),
    measured("median_us"),
    real("sm_clock_mhz", "median over the samples, NULL where unknown", null=True),
    array("sm_clocks_mhz", "JSON array, one for each sample; NULL where unknown", null=True),
    *columns_of(Timing, besides=("samples_us", "median_us", "sm_clocks_mhz")),
    word(
        "launch",
        ("stream", "graph"),
        "graph: passes are replayed from a CUDA graph, without launch gaps; stream: launched one by one. "
        "Below 200 us times of the two are not compared",
    ),
    Index("measurements_trial", "trial_id"),
    Index("measurements_finals", "finals_id", "trial_id", sqlite_where=sql("finals_id IS NOT NULL")),
    Index("measurements_tuning", "trial_id", unique=True, sqlite_where=sql("finals_id IS NULL AND retime_id IS NULL")),
    Index("measurements_retime", "retime_id", unique=True, sqlite_where=sql("retime_id IS NOT NULL")),
)

end_to_end_timings = table(
    "end_to_end_timings",
    "The parts of the host-to-host time of an end_to_end trial.",
    reference("trial_id", "trials", primary_key=True),
    *columns_of(EndToEndParts),
)

profiles = table(
    "profiles",
    "A profiler's counters of one launch of a trial's kernel; NULL if the device has no such counter.",
    key(),
    reference("trial_id", "trials"),
    reference("run_id", "runs", "device, driver and date of the profile, not of the trial"),
    *columns_of(KernelProfile),
    mapping("stalls", "JSON object, reason to the mean number of waiting warps"),
    date("profiled_at"),
    Index("profiles_trial", "trial_id"),
)

dispatchers = table(
    "dispatchers",
    "A dispatcher as it was built. The tuning target of its trial is the set of layers that it was built from.",
    key(),
    reference("trial_id", "trials"),
    json_object("record", "JSON object: properties, kernels with their conditions, default, rule"),
    date("built_at"),
    Index("dispatchers_trial", "trial_id"),
)

dispatched_layers = table(
    "dispatched_layers",
    "The kernel that a dispatcher chooses for each layer, including layers that were held out when it was built.",
    key(),
    reference("dispatcher_id", "dispatchers"),
    reference("layer_id", "layers"),
    text("name"),
    integer("count", "how often the network runs it: its weight"),
    word("role", ("tuned", "held out")),
    text("kernel", "name of the chosen kernel; NULL when no kernel supports the layer", null=True),
    flag("default_first", "1: no threshold of the rule applies to it, so the safe default comes first"),
    real("time_us", "of the chosen kernel; NULL without one", null=True),
    real("best_us", "of the layer's own best kernel"),
    real("left_out_us", "of the choice of a dispatcher built without the layer; NULL without one", null=True),
    real("default_us", "of the safe default; NULL when it does not support the layer", null=True),
    real("single_us", "of the single kernel that is best on the other layers", null=True),
    real("nearest_us", "of the best kernel of the most similar layer", null=True),
    UniqueConstraint("dispatcher_id", "layer_id"),
)
