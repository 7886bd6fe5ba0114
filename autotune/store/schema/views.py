"""The views for SQL queries, which show names instead of ids."""

from __future__ import annotations

from autotune.store.schema.best_rule import BEST_NOW, KEY, best_of
from autotune.store.schema.tables import SIZES, WORDS, trials
from autotune.trial import LONG_US

_SHAPE = ", ".join((*SIZES, *WORDS))
_OF_BEST = """\
    device_kind, device,
    best_trials.accuracy AS accuracy,
    best_trials.deterministic AS deterministic,
    best_trials.measurement_mode AS measurement_mode,
    decided_by,
    measurements.median_us AS median_us,
    measurements.q1_us AS q1_us,
    measurements.q3_us AS q3_us,
    measurements.sample_count AS sample_count,
    flops / measurements.median_us / 1e3 AS gflops,
    template, config, registers, spill_bytes, smem_bytes, occupancy, error_over_bound,
    driver, toolkit, source_hash,
    best_trials.trial_id AS trial_id,
    results.ended_at AS ended_at,
    origin"""


_PLACED = {
    "id", "number", "measurement_mode", "config", "outcome",
    "reason", "message", "median_us", "accuracy", "deterministic",
    "registers", "spill_bytes", "smem_bytes", "attempts", "started_at",
    "ended_at", "origin", "proposed_by", "ranking_median_us",
}  # fmt: skip
_OTHERS = ", ".join(
    f"trials.{column.name} AS {column.name}"
    for column in trials.c
    if not column.foreign_keys and column.name not in _PLACED
)
"""Those columns of `trials` that have no fixed place in the view `results`."""


_RESULTS = f"""\
    trials.id AS trial_id,
    studies.name AS study,
    studies.generation AS generation,
    (SELECT name FROM study_layers
     WHERE study_layers.study_id = trials.study_id AND study_layers.tuning_target_id = trials.tuning_target_id
     ORDER BY position IS NULL, position LIMIT 1) AS layer,
    trials.number AS number,
    operation, problem, {_SHAPE}, p, q, flops, minimal_bytes,
    devices.kind AS device_kind,
    devices.name AS device,
    driver, toolkit, environments.flags AS flags,
    trials.measurement_mode AS measurement_mode,
    templates.family AS template,
    config, outcome, reason, message,
    trials.median_us AS median_us,
    measurements.q1_us AS q1_us,
    measurements.q3_us AS q3_us,
    measurements.sample_count AS sample_count,
    flops / trials.median_us / 1e3 AS gflops,
    trials.accuracy AS accuracy,
    trials.deterministic AS deterministic,
    registers, spill_bytes, smem_bytes, {_OTHERS},
    reused_trial_id IS NOT NULL AS reused,
    attempts,
    sources.hash AS source_hash,
    trials.started_at AS started_at,
    trials.ended_at AS ended_at,
    trials.origin AS origin,
    imported_from, proposed_by, ranking_median_us"""
"""The columns of the view `results`."""
_OF_TRIALS = """\
FROM trials
JOIN studies ON studies.id = trials.study_id
JOIN tuning_targets ON tuning_targets.id = trials.tuning_target_id
JOIN devices ON devices.id = trials.device_id
JOIN environments ON environments.id = trials.environment_id
JOIN templates ON templates.id = trials.template_id
LEFT JOIN layers ON layers.id = tuning_targets.layer_id
LEFT JOIN sources ON sources.id = trials.source_id
LEFT JOIN measurements ON measurements.trial_id = trials.id
    AND measurements.finals_id IS NULL AND measurements.retime_id IS NULL"""


VIEWS = {
    "kernels": """\
-- The text of every kernel, by its hash; NULL where only the hash is kept.
SELECT sources.id AS source_id, hash, entries, flags, launches, accuracy, deterministic,
    (SELECT group_concat(text, char(10) || char(10)) FROM (
        SELECT paragraphs.text FROM source_paragraphs JOIN paragraphs ON paragraphs.id = paragraph_id
        WHERE source_paragraphs.source_id = sources.id ORDER BY position)) AS text
FROM sources""",
    "results": f"""\
-- Every trial in one flat row, with names in place of ids. The shape is NULL if its target is not one layer.
SELECT
{_RESULTS}
{_OF_TRIALS}""",
    "best_trials": f"""\
-- The best trial of each tuning target, device, accuracy class, determinism and measurement mode: the fastest winner
-- of finals, else the smallest ranking_median_us. measurement_id is the measurement that decided. Non-deterministic
-- kernels are listed only if they beat the deterministic one.
{BEST_NOW}""",
    "best": f"""\
-- The best kernel of each layer shape, device, accuracy class and measurement mode, with names: one row each.
SELECT
    results.study AS study,
    results.layer AS layer,
    operation, problem, {_SHAPE},
{_OF_BEST}
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY tuning_target_id, device_id, accuracy, measurement_mode ORDER BY time_us, deterministic DESC
    ) AS place
    FROM (SELECT best_trials.*, measurements.median_us AS time_us
          FROM best_trials JOIN measurements ON measurements.id = measurement_id)
) AS best_trials
CROSS JOIN results ON results.trial_id = best_trials.trial_id  -- CROSS JOIN: in this order, few rows first
CROSS JOIN measurements ON measurements.id = best_trials.measurement_id
WHERE place = 1""",
    "study_best": f"""\
-- The layers of each study's newest generation, in the file's order, each with its fastest kernel of the accuracy
-- classes that the study admits, whichever study found it. sum(total_us) is the time of the network.
SELECT study, layer, position, count, count * median_us AS total_us, {_SHAPE},
    device_kind, device, accuracy, deterministic, measurement_mode, decided_by, median_us, q1_us, q3_us, gflops,
    template, config, source_hash, trial_id, ended_at, origin, found_by
FROM (
    SELECT
        studies.name AS study, study_layers.name AS layer, position, count,
        results.study AS found_by, {_SHAPE},
{_OF_BEST},
        row_number() OVER (
            PARTITION BY studies.name, study_layers.name, best_trials.device_id, best_trials.measurement_mode
            ORDER BY studies.imported_from IS NOT NULL, studies.id DESC, measurements.median_us,
                best_trials.deterministic DESC) AS place
    FROM best_trials
    JOIN study_layers ON study_layers.tuning_target_id = best_trials.tuning_target_id AND position IS NOT NULL
        AND best_trials.accuracy IN (SELECT value FROM json_each(admitted))
    JOIN studies ON studies.id = study_layers.study_id
    CROSS JOIN results ON results.trial_id = best_trials.trial_id
    CROSS JOIN measurements ON measurements.id = best_trials.measurement_id
    WHERE studies.imported_from IS NOT NULL OR studies.generation = (
        SELECT max(generation) FROM studies AS newest WHERE newest.name = studies.name AND newest.imported_from IS NULL)
)
WHERE place = 1
ORDER BY study, device, measurement_mode, position""",
}
"""Each view's name and SELECT, in the order of creation."""

_POSITION = """\
(SELECT position FROM study_layers
     WHERE study_layers.study_id = trials.study_id AND study_layers.tuning_target_id = trials.tuning_target_id
     ORDER BY position IS NULL, position LIMIT 1) AS position"""
_LISTED = f"""\
{_OF_TRIALS}
WHERE tuning_targets.kind = 'layer'
    AND (:number IS NULL OR trials.number = :number)
    AND (:outcome IS NULL OR outcome = :outcome)
    AND (:kind IS NULL OR devices.kind = :kind)
    AND (:places IS NULL OR (trials.study_id, trials.tuning_target_id) IN (
        SELECT value ->> 0, value ->> 1 FROM json_each(:places)))
ORDER BY CASE :sort WHEN 'median' THEN trials.median_us WHEN 'registers' THEN registers
        WHEN 'error' THEN error_over_bound WHEN 'started' THEN trials.id END NULLS LAST,
    trials.study_id, position, trials.device_id, number, trials.id
LIMIT :limit"""
LISTED = f"""\
SELECT
{_RESULTS},
    trials.device_id, arch, templates.hash AS template_hash, launches, declaration, samples_us,
    {_POSITION}
{_LISTED}"""
"""Trials of all layers or of `:places`, in one of the orders in `result_rows.SORTS`."""
LISTED_IDS = f"SELECT trials.id AS trial_id, {_POSITION} {_LISTED}"
"""The ids of the trials selected by LISTED."""

_PAIR = "tuning_target_id, paired_device, accuracy, deterministic, measurement_mode, twin"


def _side(side: str, rule: str) -> str:
    return f"""\
SELECT *, row_number() OVER (ORDER BY place, {", ".join(KEY)}) AS position,
    row_number() OVER (PARTITION BY {", ".join(KEY)} ORDER BY place) AS twin
FROM (
    SELECT {", ".join(f"best.{name} AS {name}" for name in KEY)}, best.trial_id AS trial_id, decided_by,
        iif(:across_devices, 0, best.device_id) AS paired_device,
        place.key AS place, coalesce(place.value ->> 1, study || '.' || coalesce(layer, '')) AS layer,
        device, template, config, measurements.median_us AS median_us, samples_us, launch,
        coalesce((
            SELECT noise_fraction FROM noise_floors
            WHERE noise_floors.device_id = best.device_id
                AND noise_floors.measurement_mode = best.measurement_mode
            ORDER BY origin = 'imported', id DESC LIMIT 1), 0) AS noise_floor
    FROM ({rule}) AS best
    CROSS JOIN results ON results.trial_id = best.trial_id
    CROSS JOIN measurements ON measurements.id = best.measurement_id
    LEFT JOIN json_each(:places{side}) AS place ON place.value ->> 0 = best.tuning_target_id
    WHERE (:places{side} IS NULL OR place.key IS NOT NULL)
        AND (:device_id{side} IS NULL OR best.device_id = :device_id{side})
)"""


def diff(kind: str) -> str:
    """Return the SQL that pairs the best kernels of two sides by layer, accuracy class and measurement mode.

    Layers with the same shape are twins. A side of kind `device` has the kernels that are now the best on
    `:device_id_a` or `:device_id_b`. A side of kind `study` has the best kernels of the study: `:study_id_a` and
    `:targets_a` are the parameters of `best_of`. `:places_a` is a JSON array of tuning
    targets with names; NULL keeps the name of each tuning target.
    """
    rules = {side: BEST_NOW if kind == "device" else best_of(side) for side in ("_a", "_b")}
    return f"""\
WITH
a AS MATERIALIZED (
{_side("_a", rules["_a"])}
),
b AS MATERIALIZED (
{_side("_b", rules["_b"])}
),
pairs AS (SELECT {_PAIR} FROM a UNION SELECT {_PAIR} FROM b)
SELECT
    a.layer AS layer_a, b.layer AS layer_b, operation, problem, declaration,
    a.device AS device_a, b.device AS device_b,
    accuracy, deterministic, measurement_mode,
    a.median_us AS a_us, b.median_us AS b_us,
    iif(a.launch = b.launch OR min(a.median_us, b.median_us) >= {LONG_US}, b.median_us / a.median_us, NULL) AS b_over_a,
    max(a.noise_floor, b.noise_floor) AS noise_floor, a.samples_us AS a_samples_us, b.samples_us AS b_samples_us,
    a.template AS template_a, b.template AS template_b, a.config AS config_a, b.config AS config_b
FROM pairs LEFT JOIN a USING ({_PAIR}) LEFT JOIN b USING ({_PAIR})
JOIN tuning_targets ON tuning_targets.id = tuning_target_id
JOIN layers ON layers.id = layer_id
ORDER BY a.position IS NULL, a.position, b.position"""


_CLASS = "tuning_target_id, device_id, accuracy, measurement_mode"
_BEFORE = "ORDER BY sequence, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_TUNING = "tuning.finals_id IS NULL AND tuning.retime_id IS NULL"

HISTORY = f"""\
WITH
timed AS (
    -- trials as they were timed while tuning, with the fastest before them
    SELECT *, min(median_us) OVER (PARTITION BY {_CLASS}, deterministic {_BEFORE}) AS fastest_us,
        min(iif(deterministic, median_us, NULL)) OVER (PARTITION BY {_CLASS} {_BEFORE}) AS deterministic_us
    FROM (
        SELECT trials.*, tuning.id AS sequence, launch
        FROM trials JOIN measurements AS tuning ON tuning.trial_id = trials.id AND {_TUNING}
        WHERE tuning_target_id IN (SELECT value ->> 0 FROM json_each(:places)) AND trials.median_us IS NOT NULL
            AND reused_trial_id IS NULL AND origin = 'measured' AND measurement_mode <> 'end_to_end')
),
improvements AS (
    SELECT *, lag(median_us) OVER earlier AS before_us, lag(launch) OVER earlier AS before_launch
    FROM timed
    WHERE (fastest_us IS NULL OR median_us < fastest_us)
        AND (deterministic OR deterministic_us IS NULL OR median_us < deterministic_us)
    WINDOW earlier AS (PARTITION BY {_CLASS}, deterministic ORDER BY sequence, id)
),
events AS (
    SELECT 'improvement' AS event, id, id AS trial_id, environment_id, coalesce(ended_at, started_at) AS date,
        sequence, median_us AS time_us,
        iif(launch <> before_launch AND min(median_us, before_us) < {LONG_US}, NULL, median_us / before_us)
            AS over_before,
        launch, NULL AS note, NULL AS verdicts, 0 AS imported, NULL AS superseded_at
    FROM improvements
    UNION ALL
    SELECT 'finals', finals.id, winner_trial_id, finals.environment_id, finals.ended_at,
        coalesce((SELECT max(id) FROM measurements WHERE finals_id = finals.id), tuning.id, 0), held.median_us,
        iif(held.launch <> tuning.launch AND min(held.median_us, tuning.median_us) < {LONG_US}, NULL,
            held.median_us / tuning.median_us),
        held.launch, NULL,
        (SELECT json_group_array(json_object(
            'against', against, 'verdict', verdict, 'median_us', median_us, 'against_us', against_us,
            'against_accuracy', against_accuracy))
         FROM (SELECT * FROM verdicts WHERE finals_id = finals.id ORDER BY id)),
        origin = 'imported', superseded_at
    FROM finals
    LEFT JOIN measurements AS held ON held.finals_id = finals.id AND held.trial_id = winner_trial_id
    LEFT JOIN measurements AS tuning ON tuning.trial_id = winner_trial_id AND {_TUNING}
    WHERE tuning_target_id IN (SELECT value ->> 0 FROM json_each(:places))
    UNION ALL
    SELECT 'retime', retimes.id, retimes.trial_id, runs.environment_id, retimes.ended_at,
        -- of a failure, the last measurement before it
        coalesce(
            (SELECT id FROM measurements WHERE retime_id = retimes.id),
            (SELECT max(id) FROM measurements
             WHERE retime_id < retimes.id OR (measurements.trial_id = retimes.trial_id AND retime_id IS NULL)), 0),
        after_us, iif(label = 'remeasured', NULL, after_us / before_us), NULL,
        label || iif(retimes.message = '', '', ': ' || retimes.message), NULL, 0, NULL
    FROM retimes
    JOIN runs ON runs.id = retimes.run_id
    JOIN trials ON trials.id = retimes.trial_id
    WHERE tuning_target_id IN (SELECT value ->> 0 FROM json_each(:places))
)
SELECT events.*, study, generation, layer, results.number AS number, device,
    results.accuracy AS accuracy, results.deterministic AS deterministic, results.measurement_mode AS measurement_mode,
    template, results.config AS config, environments.driver AS driver, environments.toolkit AS toolkit,
    coalesce(
        (SELECT value ->> 1 FROM json_each(:places) WHERE value ->> 0 = trials.tuning_target_id LIMIT 1),
        study || '.' || coalesce(layer, '')) AS asked_as
FROM events
CROSS JOIN trials ON trials.id = events.trial_id
CROSS JOIN results ON results.trial_id = events.trial_id
CROSS JOIN environments ON environments.id = events.environment_id
WHERE :device_id IS NULL OR trials.device_id = :device_id
ORDER BY sequence, event = 'retime', event = 'finals', events.id"""
"""How the best times of `:places` improved: trials that were the fastest so far, finals and retimes, oldest first.

`:places` is NULL or a JSON array of tuning targets, with the names that the caller used.
"""
