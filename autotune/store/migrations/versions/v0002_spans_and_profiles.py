"""Host-to-host times taken apart, and what a profiler saw of the best kernels."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = (
    """CREATE TABLE spans (
    -- What the host-to-host time of an end_to_end trial is made of; the trial's config says how the batch was cut.
    trial_id INTEGER NOT NULL PRIMARY KEY REFERENCES trials (id),
    copy_in_us REAL NOT NULL,  -- every segment's input to the device, nothing beside it
    kernel_us REAL NOT NULL,  -- every segment's kernels, nothing beside them
    copy_out_us REAL NOT NULL,  -- every segment's output to the host, nothing beside it
    hidden_fraction REAL,  -- share of the copy time that the total does not show; NULL where noise exceeds the copies
    allocate_us REAL NOT NULL,  -- allocating the host memory and touching it once; not in the trial's time
    host_bytes INTEGER NOT NULL,
    distinct_segments INTEGER NOT NULL  -- segments whose test data differ from every other's
)""",
    """CREATE TABLE profiles (
    -- What a profiler saw of one launch of a trial's kernel. A column is NULL where the device has no such counter.
    id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id),
    run_id INTEGER NOT NULL REFERENCES runs (id),  -- device, driver and date of the profile, not of the trial
    tool TEXT NOT NULL,  -- name and version
    position INTEGER NOT NULL,  -- of the launch in one round of the forward pass, from 0
    entry TEXT NOT NULL,  -- the kernel's name
    time_us REAL,
    achieved_occupancy REAL,  -- mean resident warps over the most, 0 to 1; so are all fractions
    load_sectors_per_request REAL,  -- 32-byte sectors that one warp's global load touches; 4 is a full row of floats
    store_sectors_per_request REAL,
    load_efficiency_fraction REAL,  -- bytes used of the sectors that global loads touch
    store_efficiency_fraction REAL,
    shared_efficiency_fraction REAL,  -- bytes used of what shared-memory accesses could carry
    shared_load_conflicts REAL,  -- further passes that bank conflicts cost
    shared_store_conflicts REAL,
    dram_read_bytes REAL,
    dram_written_bytes REAL,
    l2_bytes REAL,
    fma_utilisation_fraction REAL,  -- of the pipe's most instructions while a multiprocessor is active
    tensor_utilisation_fraction REAL,
    stalls TEXT NOT NULL,  -- JSON object, reason to the warps that wait for it on average, most first
    profiled_at TEXT NOT NULL
)""",
    "CREATE INDEX profiles_trial ON profiles (trial_id, profiled_at)",
    "DROP VIEW best_trials",
    """CREATE VIEW best_trials AS
-- The best trial of each subject, device, accuracy class, determinism and policy: the latest finals' winner,
-- else the smallest median of a correct trial. measurement_id is the measurement that decided. End-to-end trials
-- time copies and one kernel that was chosen before; they are in `results` and `spans`.
WITH
keys AS (
    SELECT DISTINCT subject_id, device_id, accuracy, deterministic, policy FROM trials
    WHERE median_us IS NOT NULL AND policy <> 'end_to_end'
),
chosen AS (
    SELECT
        keys.*,
        (SELECT finals.id FROM finals JOIN trials ON trials.id = finals.winner_trial_id
         WHERE finals.subject_id = keys.subject_id AND finals.device_id = keys.device_id
           AND finals.policy = keys.policy AND trials.accuracy = keys.accuracy
           AND trials.deterministic = keys.deterministic AND trials.median_us IS NOT NULL
         ORDER BY finals.ended_at DESC, finals.id DESC LIMIT 1) AS finals_id,
        (SELECT trials.id FROM trials
         WHERE trials.subject_id = keys.subject_id AND trials.device_id = keys.device_id
           AND trials.accuracy = keys.accuracy AND trials.deterministic = keys.deterministic
           AND trials.policy = keys.policy AND trials.median_us IS NOT NULL
         ORDER BY trials.median_us, trials.id LIMIT 1) AS fastest_trial_id
    FROM keys
)
SELECT
    subjects.layer_id AS layer_id,
    chosen.subject_id AS subject_id,
    chosen.device_id AS device_id,
    chosen.accuracy AS accuracy,
    chosen.deterministic AS deterministic,
    chosen.policy AS policy,
    CASE WHEN finals.id IS NULL THEN 'median' ELSE 'finals' END AS basis,
    coalesce(finals.winner_trial_id, chosen.fastest_trial_id) AS trial_id,
    coalesce(
        (SELECT measurements.id FROM measurements
         WHERE measurements.finals_id = finals.id AND measurements.trial_id = finals.winner_trial_id),
        (SELECT measurements.id FROM measurements
         WHERE measurements.trial_id = coalesce(finals.winner_trial_id, chosen.fastest_trial_id)
           AND measurements.finals_id IS NULL)) AS measurement_id
FROM chosen
JOIN subjects ON subjects.id = chosen.subject_id
LEFT JOIN finals ON finals.id = chosen.finals_id""",
)


def upgrade() -> None:
    """Add both tables; leave end-to-end trials out of the best kernels."""
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
