"""The rule of `best` as SQL: which trial is the best for a tuning target, and which measurement decided.

The view `best_trials` is this SQL for the whole database. `best_of` returns the same SQL for one study.
"""

from __future__ import annotations

from string import Template

KEY = ("tuning_target_id", "device_id", "accuracy", "deterministic", "measurement_mode")
"""The columns by which trials are grouped. Each group has its own best trial."""

_RULE = Template(
    """\
WITH
ranked AS MATERIALIZED (
    -- correct trials with the time that they rank by
    SELECT $key, id AS trial_id, coalesce(reused_trial_id, id) AS original_id, time_us
    FROM (SELECT trials.*, $time_us AS time_us FROM trials
          WHERE outcome = 'correct' AND measurement_mode <> 'end_to_end' AND $which_trials)
    WHERE time_us IS NOT NULL
),
held AS MATERIALIZED (
    -- finals that count, with the winner's time in them
    SELECT
        finals.id AS finals_id, studies.name AS study, finals.tuning_target_id, finals.device_id, trials.accuracy,
        trials.deterministic, finals.measurement_mode, trials.id AS trial_id, trials.source_id,
        coalesce(measurements.median_us, trials.median_us) AS time_us, measurements.launch
    FROM finals
    JOIN trials ON trials.id = finals.winner_trial_id
    JOIN studies ON studies.id = finals.study_id
    LEFT JOIN measurements ON measurements.finals_id = finals.id AND measurements.trial_id = trials.id
    WHERE trials.outcome = 'correct' AND $which_finals
),
deciding AS MATERIALIZED (
    -- without finals that later ones replace: those of their study, or those in which their winner took part;
    -- if others were timed in CUDA graphs, times below 200 us that may contain launch gaps come last
    SELECT held.*, coalesce(launch = 'stream' AND time_us < 200 AND max(launch = 'graph') OVER (PARTITION BY $key), 0)
        AS has_gaps
    FROM held
    WHERE NOT EXISTS (
        SELECT 1 FROM held AS later
        WHERE later.finals_id > held.finals_id AND $same_key
          AND (later.study = held.study
               OR EXISTS (SELECT 1 FROM measurements JOIN trials ON trials.id = measurements.trial_id
                          WHERE measurements.finals_id = later.finals_id AND trials.source_id = held.source_id)))
),
candidates AS (
    SELECT $key, trial_id, finals_id, NULL AS original_id, has_gaps, time_us FROM deciding
    UNION ALL
    SELECT $key, trial_id, NULL, original_id, 0, time_us FROM ranked
),
first_choice AS (
    SELECT * FROM (
        SELECT *, row_number() OVER (
            PARTITION BY $key ORDER BY finals_id IS NULL, has_gaps, time_us, -finals_id, trial_id) AS place
        FROM candidates)
    WHERE place = 1
),
decided AS (
    SELECT $key, trial_id, finals_id,
        CASE WHEN finals_id IS NOT NULL THEN (
            SELECT id FROM measurements
            WHERE measurements.trial_id = first_choice.trial_id
              AND (measurements.finals_id = first_choice.finals_id
                   OR (measurements.finals_id IS NULL AND retime_id IS NULL))
            ORDER BY measurements.finals_id IS NULL LIMIT 1)
        ELSE (
            SELECT id FROM measurements
            WHERE measurements.trial_id IN (first_choice.trial_id, original_id) AND median_us = time_us
            ORDER BY id DESC LIMIT 1)
        END AS measurement_id
    FROM first_choice
),
timed AS (
    -- with the time of the deterministic kernel, which a non-deterministic one must beat
    SELECT decided.*, median_us, retime_id,
        min(iif(deterministic, median_us, NULL)) OVER (PARTITION BY $class) AS deterministic_us
    FROM decided JOIN measurements ON measurements.id = measurement_id
)
SELECT
    layer_id, tuning_target_id, device_id, accuracy, deterministic, measurement_mode,
    CASE WHEN finals_id IS NOT NULL THEN 'finals' WHEN retime_id IS NOT NULL THEN 'retime' ELSE 'median' END
        AS decided_by,
    trial_id, measurement_id
FROM timed JOIN tuning_targets ON tuning_targets.id = tuning_target_id AND layer_id IS NOT NULL
WHERE deterministic OR deterministic_us IS NULL OR median_us < deterministic_us"""
)


def _rule(time_us: str, which_trials: str, which_finals: str) -> str:
    return _RULE.substitute(
        key=", ".join(KEY),
        **{"class": ", ".join(name for name in KEY if name != "deterministic")},
        same_key=" AND ".join(f"later.{name} = held.{name}" for name in KEY),
        time_us=time_us,
        which_trials=which_trials,
        which_finals=which_finals,
    )


BEST_NOW = _rule(
    "ranking_median_us",
    "ranking_median_us IS NOT NULL",
    "trials.ranking_median_us IS NOT NULL AND finals.origin = 'measured' AND finals.superseded_at IS NULL",
)
"""The rule for the whole database. Imported trials are ranked once they have been re-timed on this machine."""


def best_of(side: str = "") -> str:
    """Return the rule for the trials and finals of the study `:study_id`, including imported ones.

    `side` is a suffix of the parameters' names, for a statement that contains the rule twice.
    """
    study_id, targets = f":study_id{side}", f":targets{side}"
    time_us = """(
    -- the latest measurement, of the original of a copy; NULL where the last retime failed
    SELECT CASE
        WHEN (SELECT after_us IS NULL FROM retimes
              WHERE retimes.trial_id = coalesce(trials.reused_trial_id, trials.id)
              ORDER BY retimes.id DESC LIMIT 1) THEN NULL
        ELSE coalesce(
            (SELECT again.median_us FROM measurements AS again
             WHERE again.trial_id = coalesce(trials.reused_trial_id, trials.id)
               AND (again.retime_id IS NOT NULL OR again.finals_id IS NOT NULL)
             ORDER BY again.id DESC LIMIT 1),
            trials.median_us)
        END)"""
    of_targets = f"tuning_target_id IN (SELECT value FROM json_each({targets}))"
    return _rule(
        time_us,
        f"study_id = {study_id} AND {of_targets}",
        f"finals.study_id = {study_id} AND finals.superseded_at IS NULL AND finals.{of_targets}",
    )
