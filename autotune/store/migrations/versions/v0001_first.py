"""The first schema: every table, index and view.

The comments stand inside the statements, so that `.schema` in the sqlite3 shell shows them.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    """CREATE TABLE schema_versions (
    -- Which autotune brought this file to which schema.
    version TEXT NOT NULL PRIMARY KEY,
    autotune_version TEXT NOT NULL,
    applied_at TEXT NOT NULL  -- every date is ISO 8601, UTC
)""",
    """CREATE TABLE layers (
    -- The shape of one conv2d forward pass. Another n is another row.
    id INTEGER NOT NULL PRIMARY KEY,
    n INTEGER NOT NULL,
    c INTEGER NOT NULL,
    h INTEGER NOT NULL,
    w INTEGER NOT NULL,
    k INTEGER NOT NULL,
    r INTEGER NOT NULL,
    s INTEGER NOT NULL,
    stride_h INTEGER NOT NULL,
    stride_w INTEGER NOT NULL,
    pad_h INTEGER NOT NULL,
    pad_w INTEGER NOT NULL,
    dilation_h INTEGER NOT NULL,
    dilation_w INTEGER NOT NULL,
    groups INTEGER NOT NULL,
    dtype TEXT NOT NULL,
    layout TEXT NOT NULL,
    epilogue TEXT NOT NULL,
    p INTEGER NOT NULL,  -- output height
    q INTEGER NOT NULL,  -- output width
    flops INTEGER NOT NULL,  -- of the direct algorithm, a multiply-add counted as two
    minimal_bytes INTEGER NOT NULL,  -- x, w and bias read once, y written once
    UNIQUE (n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups,
            dtype, layout, epilogue)
)""",
    """CREATE TABLE subjects (
    -- What a trial tunes: a layer, or a set of layers (a dispatcher).
    id INTEGER NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('layer', 'layers')),
    layer_id INTEGER UNIQUE REFERENCES layers (id),  -- NULL for a set
    CHECK ((kind = 'layer') = (layer_id IS NOT NULL))
)""",
    """CREATE TABLE subject_layers (
    -- The members of a set of layers; empty for a subject that is one layer.
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    layer_id INTEGER NOT NULL REFERENCES layers (id),
    PRIMARY KEY (subject_id, layer_id)
)""",
    """CREATE TABLE studies (
    -- One start of a study; starting it afresh is a new generation under the same name.
    id INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    text TEXT NOT NULL,  -- the study file, as last read
    fresh INTEGER NOT NULL CHECK (fresh IN (0, 1)),  -- 1 when nothing measured before created_at is reused
    created_at TEXT NOT NULL,
    UNIQUE (name, generation)
)""",
    """CREATE TABLE study_layers (
    -- The name of a subject in a study; study.layer on the command line.
    study_id INTEGER NOT NULL REFERENCES studies (id),
    name TEXT NOT NULL,
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    count INTEGER NOT NULL,  -- how often the network runs it
    position INTEGER,  -- its place in the study file, NULL when no longer in it
    PRIMARY KEY (study_id, name, subject_id)
)""",
    """CREATE TABLE devices (
    -- kind, name, arch, sm_count and memory_bytes are a device's identity, the rest are its limits.
    id INTEGER NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,  -- cuda, host, null; they are never compared with each other
    name TEXT NOT NULL,
    arch INTEGER NOT NULL,  -- compute capability times ten
    sm_count INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    max_threads_per_block INTEGER NOT NULL,
    smem_per_block_bytes INTEGER NOT NULL,
    smem_per_sm_bytes INTEGER NOT NULL,
    registers_per_sm INTEGER NOT NULL,
    max_warps_per_sm INTEGER NOT NULL,
    max_blocks_per_sm INTEGER NOT NULL,
    constant_bytes INTEGER NOT NULL,
    l2_bytes INTEGER NOT NULL,
    grid_limit_x INTEGER NOT NULL,
    grid_limit_y INTEGER NOT NULL,
    grid_limit_z INTEGER NOT NULL,
    block_limit_x INTEGER NOT NULL,
    block_limit_y INTEGER NOT NULL,
    block_limit_z INTEGER NOT NULL,
    first_seen_at TEXT NOT NULL,
    UNIQUE (kind, name, arch, sm_count, memory_bytes)
)""",
    """CREATE TABLE environments (
    -- What a measurement depends on besides its device; a change makes results doubtful, not foreign.
    id INTEGER NOT NULL PRIMARY KEY,
    driver TEXT NOT NULL,
    toolkit TEXT NOT NULL,  -- compiler name and version
    flags TEXT NOT NULL,  -- compiler flags that every kernel gets
    first_seen_at TEXT NOT NULL,
    UNIQUE (driver, toolkit, flags)
)""",
    """CREATE TABLE runs (
    -- One process that tuned into this file on one device; what is recorded about it and not matched.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    attributes TEXT NOT NULL,  -- JSON object, device uuid, clocks, host name, library versions
    autotune_version TEXT NOT NULL,
    started_at TEXT NOT NULL
)""",
    """CREATE TABLE templates (
    -- A kernel family as it was when trials were made with it.
    id INTEGER NOT NULL PRIMARY KEY,
    family TEXT NOT NULL,
    hash TEXT NOT NULL,  -- of its text and of what it includes
    header TEXT NOT NULL,
    first_seen_at TEXT NOT NULL,
    UNIQUE (family, hash)
)""",
    """CREATE TABLE sources (
    -- Every rendered kernel that was compiled, whole, so that it can be exported without its template.
    -- In the sqlite3 shell and in `autotune query`, its text is sqlar_uncompress(text_zlib, text_bytes).
    id INTEGER NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,  -- its identity, of text, flags, launches and problem
    layer_id INTEGER NOT NULL REFERENCES layers (id),
    text_zlib BLOB NOT NULL,
    text_bytes INTEGER NOT NULL,
    entries TEXT NOT NULL,  -- JSON array, kernel names
    flags TEXT NOT NULL,  -- JSON array, compiler flags of its own
    launches TEXT NOT NULL,  -- JSON object, prepare, stages, loop_count, constants, packed_w_bytes, workspace_bytes
    accuracy TEXT NOT NULL,
    deterministic INTEGER NOT NULL CHECK (deterministic IN (0, 1))
)""",
    """CREATE TABLE trials (
    -- One config and what became of it. device, environment, source and policy are its identity.
    id INTEGER NOT NULL PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id),
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    policy TEXT NOT NULL,  -- how it was measured, such as cold
    number INTEGER NOT NULL,  -- position in its history, from 0
    run_id INTEGER NOT NULL REFERENCES runs (id),
    template_id INTEGER NOT NULL REFERENCES templates (id),
    config TEXT NOT NULL,  -- JSON object, parameter to value
    source_id INTEGER REFERENCES sources (id),  -- NULL when rejected before rendering
    reused_trial_id INTEGER REFERENCES trials (id),  -- the trial whose result this one took over, else NULL
    attempts INTEGER NOT NULL,  -- how often it was begun
    outcome TEXT NOT NULL CHECK (outcome IN
        ('running', 'correct', 'constraints', 'compile', 'runtime', 'timeout', 'correctness')),
    reason TEXT NOT NULL,  -- a word beneath the outcome
    message TEXT NOT NULL,  -- the compiler's, driver's or checker's own words
    accuracy TEXT NOT NULL,  -- what the arithmetic promises, such as fp32; empty when rejected before rendering
    deterministic INTEGER NOT NULL CHECK (deterministic IN (0, 1)),
    registers INTEGER,  -- a thread; this and the next three are NULL where no compiler reported them
    spill_bytes INTEGER,
    static_smem_bytes INTEGER,
    constant_bytes INTEGER,
    smem_bytes INTEGER NOT NULL,  -- shared memory a block, static and dynamic
    occupancy REAL,  -- theoretical, 0 to 1
    error_over_bound REAL,  -- at most 1 when correct; NULL when not verified or not a number
    error_max_abs REAL,
    median_us REAL,  -- of its measurement, correct trials only
    render_us REAL NOT NULL,  -- wall clock of its phases
    compile_us REAL NOT NULL,
    load_us REAL NOT NULL,
    verify_us REAL NOT NULL,
    measure_us REAL NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT,  -- NULL while running
    UNIQUE (study_id, subject_id, device_id, environment_id, policy, number),
    CHECK ((outcome = 'running') = (ended_at IS NULL)),
    CHECK (median_us IS NULL OR outcome = 'correct')
)""",
    """CREATE TABLE finals (
    -- The best trials of a scope measured again, in turn.
    id INTEGER NOT NULL PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id),
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    policy TEXT NOT NULL,
    winner_trial_id INTEGER NOT NULL REFERENCES trials (id),
    ended_at TEXT NOT NULL
)""",
    """CREATE TABLE measurements (
    -- The samples of one kernel's forward pass.
    id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id),
    finals_id INTEGER REFERENCES finals (id),  -- NULL for the one made while tuning
    cache TEXT NOT NULL,  -- cold (L2 written over before each sample) or hot
    sample_count INTEGER NOT NULL,
    samples_us TEXT NOT NULL,  -- JSON array, in the order taken
    median_us REAL NOT NULL,
    q1_us REAL NOT NULL,
    q3_us REAL NOT NULL,
    sm_clock_mhz REAL,  -- median over the samples, NULL where unknown
    memory_clock_mhz REAL
)""",
    """CREATE TABLE verdicts (
    -- The finals' winner against the default, the previous best, cuDNN, ...
    id INTEGER NOT NULL PRIMARY KEY,
    finals_id INTEGER NOT NULL REFERENCES finals (id),
    against TEXT NOT NULL,
    against_trial_id INTEGER REFERENCES trials (id),
    verdict TEXT NOT NULL CHECK (verdict IN ('win', 'tie', 'loss')),
    median_us REAL NOT NULL,
    against_us REAL NOT NULL
)""",
    """CREATE TABLE quarantine (
    -- Kernels never to be launched again on this device in this environment.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    source_id INTEGER NOT NULL REFERENCES sources (id),
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    created_at TEXT NOT NULL,
    UNIQUE (device_id, environment_id, source_id)
)""",
    """CREATE TABLE noise_floors (
    -- The smallest difference that a device's measurements can tell.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    policy TEXT NOT NULL,
    noise_us REAL NOT NULL,
    noise_fraction REAL NOT NULL,
    measured_at TEXT NOT NULL
)""",
    """CREATE TABLE rates (
    -- What a device was measured to do, by `autotune devices --calibrate`.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    name TEXT NOT NULL,  -- copy, fill, or an arithmetic such as fp32
    per_s REAL NOT NULL,  -- bytes for copy and fill, else floating-point operations
    measured_at TEXT NOT NULL
)""",
)

INDEXES = (
    "CREATE UNIQUE INDEX study_layers_current ON study_layers (study_id, name) WHERE position IS NOT NULL",
    "CREATE INDEX study_layers_subject ON study_layers (subject_id)",
    "CREATE INDEX trials_outcome ON trials (study_id, subject_id, outcome)",
    "CREATE INDEX trials_identity ON trials (source_id, device_id, environment_id, policy)",
    "CREATE INDEX trials_best ON trials (subject_id, device_id, accuracy, deterministic, policy, median_us)"
    " WHERE median_us IS NOT NULL",
    "CREATE UNIQUE INDEX measurements_tuning ON measurements (trial_id) WHERE finals_id IS NULL",
    "CREATE INDEX measurements_finals ON measurements (finals_id, trial_id) WHERE finals_id IS NOT NULL",
    "CREATE INDEX finals_subject ON finals (subject_id, device_id, policy, ended_at)",
    "CREATE INDEX verdicts_finals ON verdicts (finals_id)",
    "CREATE INDEX noise_floors_device ON noise_floors (device_id, policy, measured_at)",
    "CREATE INDEX rates_device ON rates (device_id, name, measured_at)",
)

VIEWS = (
    """CREATE VIEW results AS
-- Every trial with its names, one flat row each.
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
    trials.ended_at AS ended_at
FROM trials
JOIN studies ON studies.id = trials.study_id
JOIN subjects ON subjects.id = trials.subject_id
JOIN layers ON layers.id = subjects.layer_id
JOIN devices ON devices.id = trials.device_id
JOIN environments ON environments.id = trials.environment_id
JOIN templates ON templates.id = trials.template_id
LEFT JOIN sources ON sources.id = trials.source_id
LEFT JOIN measurements ON measurements.trial_id = trials.id AND measurements.finals_id IS NULL""",
    """CREATE VIEW best_trials AS
-- The best trial of each subject, device, accuracy class, determinism and policy: the latest finals' winner,
-- else the smallest median of a correct trial. measurement_id is the measurement that decided.
WITH
keys AS (
    SELECT DISTINCT subject_id, device_id, accuracy, deterministic, policy FROM trials WHERE median_us IS NOT NULL
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
    results.ended_at AS ended_at
FROM best_trials  -- CROSS JOIN: read in this order, few rows first
CROSS JOIN results ON results.trial_id = best_trials.trial_id
CROSS JOIN measurements ON measurements.id = best_trials.measurement_id""",
)


def upgrade() -> None:
    """Create everything."""
    connection = op.get_bind()
    for statement in (*TABLES, *INDEXES, *VIEWS):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """There is nothing before the first schema."""
    raise NotImplementedError("the first schema has none before it")
