"""Where trials come from, kernels measured again later, clocks of a measurement, spaces imported from files.

`subjects` is made anew for a further kind: SQLite cannot change a CHECK. Migrations run without foreign keys and are
checked before they are committed.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SUBJECTS = (
    """CREATE TABLE subjects_new (
    -- What a trial tunes: a layer, a set of layers (a dispatcher), or a kernel's search space imported from a file.
    id INTEGER NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('layer', 'layers', 'space')),
    layer_id INTEGER UNIQUE REFERENCES layers (id),  -- NULL for the other two
    name TEXT,  -- of a space, its kernel's; else NULL
    params TEXT,  -- of a space, JSON object, parameter to its values in order; else NULL
    UNIQUE (name, params),
    CHECK ((kind = 'layer') = (layer_id IS NOT NULL)),
    CHECK ((kind = 'space') = (name IS NOT NULL)),
    CHECK ((kind = 'space') = (params IS NOT NULL))
)""",
    "INSERT INTO subjects_new (id, kind, layer_id) SELECT id, kind, layer_id FROM subjects",
    "DROP TABLE subjects",
    "ALTER TABLE subjects_new RENAME TO subjects",
)

RETIMES = """CREATE TABLE retimes (
    -- A stored trial measured again in a later run, and what became of its time.
    id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id),
    run_id INTEGER NOT NULL REFERENCES runs (id),  -- device, driver and toolkit of the new measurement
    before_us REAL NOT NULL,  -- the median it had
    after_us REAL,  -- the new median, NULL when it failed
    label TEXT NOT NULL CHECK (label IN ('confirmed', 'moved', 'regressed', 'failed')),
    message TEXT NOT NULL,  -- why it failed, else empty
    ended_at TEXT NOT NULL,
    CHECK ((label = 'failed') = (after_us IS NULL))
)"""

# Comments stand within the definitions: SQLite keeps them there, and `.schema` shows them.
COLUMNS = (
    ("studies", "imported_from TEXT /* name of the file that it was imported from, NULL when begun here */"),
    (
        "trials",
        "origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) "
        "/* imported: measured elsewhere, unverified until re-timed here */",
    ),
    ("trials", "proposed_by TEXT NOT NULL DEFAULT 'search' /* what asked for it: search, default, warm_start, ... */"),
    (
        "trials",
        "ranked_us REAL CHECK (ranked_us IS NULL OR outcome = 'correct') "
        "/* median of its latest measurement here, by which `best` ranks it; NULL for what does not count: imported "
        "and never re-timed, failed when re-timed, a copy, or another trial of its kernel was re-timed since */",
    ),
    ("measurements", "retime_id INTEGER REFERENCES retimes (id) /* NULL unless made by a retime */"),
    ("measurements", "sm_clocks_mhz TEXT /* JSON array, one for each sample; NULL where unknown */"),
    (
        "measurements",
        "discarded_count INTEGER /* samples at a throttled clock that were taken again; NULL where unknown */",
    ),
    (
        "measurements",
        "throttled_count INTEGER /* samples at a throttled clock that had to be kept; NULL where unknown */",
    ),
    ("measurements", "pass_count INTEGER /* forward passes that one sample is the mean of; NULL stands for 1 */"),
    ("measurements", "power_w REAL /* of the device after the last sample, NULL where unknown */"),
    ("measurements", "temperature_c REAL /* of the device after the last sample, NULL where unknown */"),
    (
        "finals",
        "origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) "
        "/* imported ones decide nothing here */",
    ),
    ("finals", "superseded_at TEXT /* when a later retime put them in doubt; NULL while they decide */"),
    (
        "noise_floors",
        "origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) "
        "/* imported ones count where there is no other */",
    ),
    (
        "rates",
        "origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) "
        "/* imported ones count where there is no other */",
    ),
)

# What a file of the older schemas holds was all measured here; the latest measurement is the one with the largest id.
# A copy ranks only where it was measured itself, in finals: the trial it was copied from has the same key.
RANKS = """UPDATE trials SET ranked_us = (
    SELECT measurements.median_us FROM measurements WHERE measurements.trial_id = trials.id ORDER BY id DESC LIMIT 1
) WHERE median_us IS NOT NULL AND (
    reused_trial_id IS NULL
    OR id IN (SELECT trial_id FROM measurements WHERE finals_id IS NOT NULL)
    OR id IN (SELECT winner_trial_id FROM finals)
)"""

INDEXES = (
    "DROP INDEX trials_best",
    "CREATE INDEX trials_best ON trials (subject_id, device_id, accuracy, deterministic, policy, ranked_us)"
    " WHERE ranked_us IS NOT NULL",
    "DROP INDEX measurements_tuning",
    "CREATE UNIQUE INDEX measurements_tuning ON measurements (trial_id) WHERE finals_id IS NULL AND retime_id IS NULL",
    "CREATE UNIQUE INDEX measurements_retime ON measurements (retime_id) WHERE retime_id IS NOT NULL",
    "CREATE INDEX retimes_trial ON retimes (trial_id, ended_at)",
    "CREATE INDEX IF NOT EXISTS trials_outcome ON trials (study_id, subject_id, outcome)",  # the first 0001 lacked it
)

VIEWS = (
    """CREATE VIEW results AS
-- Every trial with its names, one flat row each. The shape is NULL for what is not one layer.
SELECT
    trials.id AS trial_id,
    studies.name AS study,
    studies.generation AS generation,
    (SELECT name FROM study_layers
     WHERE study_layers.study_id = trials.study_id AND study_layers.subject_id = trials.subject_id
     ORDER BY position IS NULL, position LIMIT 1) AS layer,
    trials.number AS number,
    n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, dtype, layout, epilogue,
    p, q, flops, minimal_bytes,
    devices.kind AS device_kind,
    devices.name AS device,
    driver, toolkit, environments.flags AS flags,
    trials.policy AS policy,
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
    imported_from, proposed_by, ranked_us
FROM trials
JOIN studies ON studies.id = trials.study_id
JOIN subjects ON subjects.id = trials.subject_id
JOIN devices ON devices.id = trials.device_id
JOIN environments ON environments.id = trials.environment_id
JOIN templates ON templates.id = trials.template_id
LEFT JOIN layers ON layers.id = subjects.layer_id
LEFT JOIN sources ON sources.id = trials.source_id
LEFT JOIN measurements ON measurements.trial_id = trials.id
    AND measurements.finals_id IS NULL AND measurements.retime_id IS NULL""",
    """CREATE VIEW best_trials AS
-- The best trial of each subject, device, accuracy class, determinism and policy: the latest finals' winner, else the
-- smallest ranked_us. measurement_id is the measurement that decided. An imported trial counts once it was re-timed
-- here. End-to-end trials time copies and one kernel that was chosen before; they are in `results` and `spans`.
WITH
keys AS (
    SELECT DISTINCT subject_id, device_id, accuracy, deterministic, policy FROM trials
    WHERE ranked_us IS NOT NULL AND policy <> 'end_to_end'
),
chosen AS (
    SELECT
        keys.*,
        (SELECT finals.id FROM finals JOIN trials ON trials.id = finals.winner_trial_id
         WHERE finals.subject_id = keys.subject_id AND finals.device_id = keys.device_id
           AND finals.policy = keys.policy AND trials.accuracy = keys.accuracy
           AND trials.deterministic = keys.deterministic AND trials.ranked_us IS NOT NULL
           AND finals.origin = 'measured' AND finals.superseded_at IS NULL
         ORDER BY finals.ended_at DESC, finals.id DESC LIMIT 1) AS finals_id,
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
LEFT JOIN measurements ON measurements.id = decided.measurement_id""",
    """CREATE VIEW best AS
-- best_trials with names: a row per layer shape, device, accuracy class, determinism and policy.
SELECT
    results.study AS study,
    results.layer AS layer,
    n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, dtype, layout, epilogue,
    device_kind, device,
    best_trials.accuracy AS accuracy,
    best_trials.deterministic AS deterministic,
    best_trials.policy AS policy,
    basis,
    measurements.median_us AS median_us,
    measurements.q1_us AS q1_us,
    measurements.q3_us AS q3_us,
    measurements.sample_count AS sample_count,
    flops / measurements.median_us / 1e3 AS gflops,
    template, config, registers, spill_bytes, smem_bytes, occupancy, error_over_bound,
    driver, toolkit, source_hash,
    best_trials.trial_id AS trial_id,
    results.ended_at AS ended_at,
    origin
FROM best_trials  -- CROSS JOIN: read in this order, few rows first
CROSS JOIN results ON results.trial_id = best_trials.trial_id
CROSS JOIN measurements ON measurements.id = best_trials.measurement_id""",
)


def upgrade() -> None:
    """Add the columns and `retimes`, make `subjects` and the views anew."""
    connection = op.get_bind()
    for view in ("best", "best_trials", "results"):
        connection.exec_driver_sql(f"DROP VIEW {view}")
    for statement in (*SUBJECTS, RETIMES):
        connection.exec_driver_sql(statement)
    for table, column in COLUMNS:
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column}")
    connection.exec_driver_sql("CREATE INDEX measurements_trial ON measurements (trial_id)")
    for statement in (RANKS, *INDEXES, *VIEWS):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
