"""The views: what people ask in SQL, with names in place of ids."""

from __future__ import annotations

from autotune.store.schema.best_rule import BEST_NOW

_SHAPE = (
    "n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, dtype, layout, epilogue"
)
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


def results(more: str = "") -> str:
    """The text of the view `results`, with further columns."""
    return f"""\
SELECT
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
    registers, spill_bytes, smem_bytes, static_smem_bytes, trials.constant_bytes AS constant_bytes, occupancy,
    error_over_bound, error_max_abs,
    render_us, compile_us, load_us, verify_us, measure_us,
    reused_trial_id IS NOT NULL AS reused,
    attempts,
    sources.hash AS source_hash,
    trials.started_at AS started_at,
    trials.ended_at AS ended_at,
    trials.origin AS origin,
    imported_from, proposed_by, ranking_median_us{more}
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
-- Every trial in one flat row, with names in place of ids. The shape is NULL for what is not one layer.
{results()}""",
    "best_trials": f"""\
-- The best trial of each tuning target, device, accuracy class, determinism and measurement mode: the fastest winner
-- of finals, else the smallest ranking_median_us. measurement_id is the measurement that decided.
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
"""Name to SELECT, in the order in which they are made."""

_MORE = """,
    trials.device_id, arch, templates.hash AS template_hash, launches, declaration, samples_us,
    (SELECT position FROM study_layers
     WHERE study_layers.study_id = trials.study_id AND study_layers.tuning_target_id = trials.tuning_target_id
     ORDER BY position IS NULL, position LIMIT 1) AS position"""

LISTED = f"""\
{results(_MORE)}
WHERE tuning_targets.kind <> 'layers'
    AND (:trial_id IS NULL OR trials.id = :trial_id)
    AND (:number IS NULL OR trials.number = :number)
    AND (:outcome IS NULL OR outcome = :outcome)
    AND (:places IS NULL OR (trials.study_id, trials.tuning_target_id) IN (
        SELECT value ->> 0, value ->> 1 FROM json_each(:places)))
ORDER BY tuning_targets.kind,
    CASE :sort WHEN 'median' THEN trials.median_us WHEN 'registers' THEN registers
        WHEN 'error' THEN error_over_bound WHEN 'started' THEN trials.id END NULLS LAST,
    trials.study_id, position, trials.device_id, number, trials.id"""
"""Trials of layers, then those of imported spaces: of all or of `:places`, in an order of `result_rows.SORTS`."""
