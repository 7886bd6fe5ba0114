"""A study's finals say nothing of kernels that were not in them.

The view `best_trials` took the winner of the latest finals, whichever study held them: a study of one family on a layer
made the best of all families forgotten. Of the finals that nothing later has overtaken, the fastest winner counts now.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

VIEW = """CREATE VIEW best_trials AS
-- The best trial of each subject, device, accuracy class, determinism and policy: the fastest winner of finals, else
-- the smallest ranked_us. Finals count until later ones of the same study, or later ones in which their winner took
-- part; beside CUDA graphs, times below 200 us with launch gaps come last. measurement_id is the measurement that
-- decided. An imported trial counts once it was re-timed here. End-to-end trials time copies and one kernel that was
-- chosen before; they are in `results` and `end_to_end_timings`.
WITH
keys AS (
    SELECT DISTINCT subject_id, device_id, accuracy, deterministic, policy FROM trials
    WHERE ranked_us IS NOT NULL AND policy <> 'end_to_end'
),
held AS MATERIALIZED (
    SELECT
        finals.id AS finals_id, studies.name AS study, finals.subject_id, finals.device_id, trials.accuracy,
        trials.deterministic, finals.policy, trials.id AS trial_id, trials.source_id, trials.median_us
    FROM finals
    JOIN trials ON trials.id = finals.winner_trial_id
    JOIN studies ON studies.id = finals.study_id
    WHERE trials.ranked_us IS NOT NULL AND finals.origin = 'measured' AND finals.superseded_at IS NULL
),
deciding AS MATERIALIZED (
    SELECT
        held.*, coalesce(measurements.median_us, held.median_us) AS time_us,
        measurements.launch = 'stream' AND measurements.median_us < 200 AND max(measurements.launch = 'graph') OVER (
            PARTITION BY subject_id, device_id, accuracy, deterministic, policy) AS has_gaps
    FROM held
    LEFT JOIN measurements ON measurements.finals_id = held.finals_id AND measurements.trial_id = held.trial_id
    WHERE NOT EXISTS (
        SELECT 1 FROM held AS later
        WHERE later.finals_id > held.finals_id AND later.subject_id = held.subject_id
          AND later.device_id = held.device_id AND later.accuracy = held.accuracy
          AND later.deterministic = held.deterministic AND later.policy = held.policy
          AND (later.study = held.study
               OR EXISTS (SELECT 1 FROM measurements JOIN trials ON trials.id = measurements.trial_id
                          WHERE measurements.finals_id = later.finals_id AND trials.source_id = held.source_id)))
),
chosen AS (
    SELECT
        keys.*,
        (SELECT deciding.finals_id FROM deciding
         WHERE deciding.subject_id = keys.subject_id AND deciding.device_id = keys.device_id
           AND deciding.accuracy = keys.accuracy AND deciding.deterministic = keys.deterministic
           AND deciding.policy = keys.policy
         ORDER BY has_gaps, time_us, deciding.finals_id DESC LIMIT 1) AS finals_id,
        (SELECT trials.id FROM trials
         WHERE trials.subject_id = keys.subject_id AND trials.device_id = keys.device_id
           AND trials.accuracy = keys.accuracy AND trials.deterministic = keys.deterministic
           AND trials.policy = keys.policy AND trials.ranked_us IS NOT NULL
         ORDER BY trials.ranked_us, trials.id LIMIT 1) AS fastest_trial_id
    FROM keys
),
decided AS (
    SELECT
        chosen.*,
        coalesce(finals.winner_trial_id, fastest_trial_id) AS trial_id,
        coalesce(
            (SELECT measurements.id FROM measurements
             WHERE measurements.finals_id = finals.id AND measurements.trial_id = finals.winner_trial_id),
            (SELECT measurements.id FROM measurements JOIN trials ON trials.id = measurements.trial_id
             WHERE trials.id = coalesce(finals.winner_trial_id, fastest_trial_id)
               AND measurements.median_us = trials.ranked_us
             ORDER BY measurements.id DESC LIMIT 1)) AS measurement_id
    FROM chosen
    LEFT JOIN finals ON finals.id = chosen.finals_id
)
SELECT
    subjects.layer_id AS layer_id,
    decided.subject_id AS subject_id,
    decided.device_id AS device_id,
    decided.accuracy AS accuracy,
    decided.deterministic AS deterministic,
    decided.policy AS policy,
    CASE WHEN decided.finals_id IS NOT NULL THEN 'finals'
         WHEN measurements.retime_id IS NOT NULL THEN 'retime'
         ELSE 'median' END AS basis,
    decided.trial_id AS trial_id,
    decided.measurement_id AS measurement_id
FROM decided
JOIN subjects ON subjects.id = decided.subject_id
LEFT JOIN measurements ON measurements.id = decided.measurement_id"""


def upgrade() -> None:
    """Make the view anew."""
    connection = op.get_bind()
    connection.exec_driver_sql("DROP VIEW best_trials")
    connection.exec_driver_sql(VIEW)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
