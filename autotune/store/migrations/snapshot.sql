CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE schema_versions (
    -- Which autotune brought this file to which schema.
    version TEXT NOT NULL PRIMARY KEY,
    autotune_version TEXT NOT NULL,
    applied_at TEXT NOT NULL  -- every date is ISO 8601, UTC
);

CREATE TABLE subject_layers (
    -- The members of a set of layers; empty for a subject that is one layer.
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    layer_id INTEGER NOT NULL REFERENCES layers (id),
    PRIMARY KEY (subject_id, layer_id)
);

CREATE TABLE studies (
    -- One start of a study; starting it afresh is a new generation under the same name.
    id INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    text TEXT NOT NULL,  -- the study file, as last read
    fresh INTEGER NOT NULL CHECK (fresh IN (0, 1)),  -- 1 when nothing measured before created_at is reused
    created_at TEXT NOT NULL, imported_from TEXT /* name of the file that it was imported from, NULL when begun here */, fresh_after_trial_id INTEGER /* of a fresh start, the newest trial then: nothing up to it is reused; NULL for any other */,
    UNIQUE (name, generation)
);

CREATE TABLE study_layers (
    -- The name of a subject in a study; study.layer on the command line.
    study_id INTEGER NOT NULL REFERENCES studies (id),
    name TEXT NOT NULL,
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    count INTEGER NOT NULL,  -- how often the network runs it
    position INTEGER,  -- its place in the study file, NULL when no longer in it
    PRIMARY KEY (study_id, name, subject_id)
);

CREATE TABLE devices (
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
);

CREATE TABLE environments (
    -- What a measurement depends on besides its device; a change makes results doubtful, not foreign.
    id INTEGER NOT NULL PRIMARY KEY,
    driver TEXT NOT NULL,
    toolkit TEXT NOT NULL,  -- compiler name and version
    flags TEXT NOT NULL,  -- compiler flags that every kernel gets
    first_seen_at TEXT NOT NULL,
    UNIQUE (driver, toolkit, flags)
);

CREATE TABLE runs (
    -- One process that tuned into this file on one device; what is recorded about it and not matched.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    attributes TEXT NOT NULL,  -- JSON object, device uuid, clocks, host name, library versions
    autotune_version TEXT NOT NULL,
    started_at TEXT NOT NULL
);

CREATE TABLE templates (
    -- A kernel family as it was when trials were made with it.
    id INTEGER NOT NULL PRIMARY KEY,
    family TEXT NOT NULL,
    hash TEXT NOT NULL,  -- of its text and of what it includes
    header TEXT NOT NULL,
    first_seen_at TEXT NOT NULL,
    UNIQUE (family, hash)
);

CREATE TABLE sources (
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
);

CREATE TABLE trials (
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
    ended_at TEXT, origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) /* imported: measured elsewhere, unverified until re-timed here */, proposed_by TEXT NOT NULL DEFAULT 'search' /* what asked for it: search, default, warm_start, ... */, ranked_us REAL CHECK (ranked_us IS NULL OR outcome = 'correct') /* median of its latest measurement here, by which `best` ranks it; NULL for what does not count: imported and never re-timed, failed when re-timed, a copy, or another trial of its kernel was re-timed since */,  -- NULL while running
    UNIQUE (study_id, subject_id, device_id, environment_id, policy, number),
    CHECK ((outcome = 'running') = (ended_at IS NULL)),
    CHECK (median_us IS NULL OR outcome = 'correct')
);

CREATE TABLE finals (
    -- The best trials of a scope measured again, in turn.
    id INTEGER NOT NULL PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id),
    subject_id INTEGER NOT NULL REFERENCES subjects (id),
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    policy TEXT NOT NULL,
    winner_trial_id INTEGER NOT NULL REFERENCES trials (id),
    ended_at TEXT NOT NULL
, origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) /* imported ones decide nothing here */, superseded_at TEXT /* when a later retime put them in doubt; NULL while they decide */);

CREATE TABLE measurements (
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
, retime_id INTEGER REFERENCES retimes (id) /* NULL unless made by a retime */, sm_clocks_mhz TEXT /* JSON array, one for each sample; NULL where unknown */, discarded_count INTEGER /* samples at a throttled clock that were taken again; NULL where unknown */, throttled_count INTEGER /* samples at a throttled clock that had to be kept; NULL where unknown */, pass_count INTEGER /* forward passes that one sample is the mean of; NULL stands for 1 */, power_w REAL /* of the device after the last sample, NULL where unknown */, temperature_c REAL /* of the device after the last sample, NULL where unknown */, launch TEXT NOT NULL DEFAULT 'stream' CHECK (launch IN ('stream', 'graph')) /* graph: passes are replayed from a CUDA graph, without launch gaps. stream: launched one by one; below 200 us, such a time and one from a graph are not compared */);

CREATE TABLE verdicts (
    -- The finals' winner against the default, the previous best, cuDNN, ...
    id INTEGER NOT NULL PRIMARY KEY,
    finals_id INTEGER NOT NULL REFERENCES finals (id),
    against TEXT NOT NULL,
    against_trial_id INTEGER REFERENCES trials (id),
    verdict TEXT NOT NULL CHECK (verdict IN ('win', 'tie', 'loss')),
    median_us REAL NOT NULL,
    against_us REAL NOT NULL
, against_accuracy TEXT /* accuracy class of what the winner was compared with, NULL where unknown */);

CREATE TABLE quarantine (
    -- Kernels never to be launched again on this device in this environment.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    source_id INTEGER NOT NULL REFERENCES sources (id),
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    created_at TEXT NOT NULL,
    UNIQUE (device_id, environment_id, source_id)
);

CREATE TABLE noise_floors (
    -- The smallest difference that a device's measurements can tell.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    policy TEXT NOT NULL,
    noise_us REAL NOT NULL,
    noise_fraction REAL NOT NULL,
    measured_at TEXT NOT NULL
, origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) /* imported ones count where there is no other */);

CREATE TABLE rates (
    -- What a device was measured to do, by `autotune devices --calibrate`.
    id INTEGER NOT NULL PRIMARY KEY,
    device_id INTEGER NOT NULL REFERENCES devices (id),
    environment_id INTEGER NOT NULL REFERENCES environments (id),
    name TEXT NOT NULL,  -- copy, fill, or an arithmetic such as fp32
    per_s REAL NOT NULL,  -- bytes for copy and fill, else floating-point operations
    measured_at TEXT NOT NULL
, origin TEXT NOT NULL DEFAULT 'measured' CHECK (origin IN ('measured', 'imported')) /* imported ones count where there is no other */, method TEXT NOT NULL DEFAULT 'unknown' /* how it was measured; of the methods of one calibration the best bounds */);

CREATE UNIQUE INDEX study_layers_current ON study_layers (study_id, name) WHERE position IS NOT NULL;

CREATE INDEX study_layers_subject ON study_layers (subject_id);

CREATE INDEX trials_outcome ON trials (study_id, subject_id, outcome);

CREATE INDEX trials_identity ON trials (source_id, device_id, environment_id, policy);

CREATE INDEX measurements_finals ON measurements (finals_id, trial_id) WHERE finals_id IS NOT NULL;

CREATE INDEX verdicts_finals ON verdicts (finals_id);

CREATE TABLE "end_to_end_timings" (
    -- What the host-to-host time of an end_to_end trial is made of; the trial's config says how the batch was cut.
    trial_id INTEGER NOT NULL PRIMARY KEY REFERENCES trials (id),
    copy_in_us REAL NOT NULL,  -- every segment's input to the device, nothing beside it
    kernel_us REAL NOT NULL,  -- every segment's kernels, nothing beside them
    copy_out_us REAL NOT NULL,  -- every segment's output to the host, nothing beside it
    hidden_fraction REAL,  -- share of the copy time that the total does not show; NULL where noise exceeds the copies
    allocate_us REAL NOT NULL,  -- allocating the host memory and touching it once; not in the trial's time
    host_bytes INTEGER NOT NULL,
    distinct_segments INTEGER NOT NULL  -- segments whose test data differ from every other's
);

CREATE TABLE profiles (
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
, l1_hit_fraction REAL /* of the sectors that global accesses ask the L1 cache for */, l2_hit_fraction REAL, sm_throughput_fraction REAL /* of the peak of the SM's busiest unit, over the whole launch */, memory_throughput_fraction REAL /* of the peak of the busiest of L1, L2 and device memory */, issue_fraction REAL /* cycles of a scheduler in which it issues */, active_threads REAL /* per executed warp instruction; 32 without divergence */, shared_load_wavefronts REAL /* passes of shared-memory loads, of at most 128 bytes each */);

CREATE TABLE "subjects" (
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
);

CREATE INDEX measurements_trial ON measurements (trial_id);

CREATE INDEX trials_best ON trials (subject_id, device_id, accuracy, deterministic, policy, ranked_us) WHERE ranked_us IS NOT NULL;

CREATE UNIQUE INDEX measurements_tuning ON measurements (trial_id) WHERE finals_id IS NULL AND retime_id IS NULL;

CREATE UNIQUE INDEX measurements_retime ON measurements (retime_id) WHERE retime_id IS NOT NULL;

CREATE VIEW best AS
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
CROSS JOIN measurements ON measurements.id = best_trials.measurement_id;

CREATE TABLE dispatchers (
    -- A dispatcher as it was built: which kernel serves which problem. Its trial's subject is the set of layers that it
    -- was made from, its trial's config the same rule as parameters.
    id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id),
    record TEXT NOT NULL,  -- JSON object, properties, kernels with their conditions, default, rule
    built_at TEXT NOT NULL
);

CREATE TABLE dispatched_layers (
    -- What a dispatcher does with each layer, and with those that were held out of its making.
    dispatcher_id INTEGER NOT NULL REFERENCES dispatchers (id),
    layer_id INTEGER NOT NULL REFERENCES layers (id),
    name TEXT NOT NULL,
    count INTEGER NOT NULL,  -- how often the network runs it: its weight
    role TEXT NOT NULL CHECK (role IN ('tuned', 'held out')),
    kernel TEXT,  -- name of the kernel that serves it, NULL when none fits: it is to be tuned
    default_first INTEGER NOT NULL CHECK (default_first IN (0, 1)),  -- 1: the rule says nothing of it, the safe default comes first
    time_us REAL,  -- of that kernel, NULL without one
    best_us REAL NOT NULL,  -- of the layer's own best kernel
    left_out_us REAL,  -- of what a dispatcher made without the layer chooses; NULL when nothing fits
    default_us REAL,  -- of the safe default, NULL when it does not fit
    single_us REAL,  -- of the single kernel that is best over the other layers, the default where it does not fit
    nearest_us REAL,  -- of the best kernel of the layer most like it, of the next one's where that does not fit
    PRIMARY KEY (dispatcher_id, layer_id)
);

CREATE TABLE "retimes" (
    -- A stored trial measured again in a later run, and what became of its time.
    id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id),
    run_id INTEGER NOT NULL REFERENCES runs (id),  -- device, driver and toolkit of the new measurement
    before_us REAL NOT NULL,  -- the median it had
    after_us REAL,  -- the new median, NULL when it failed
    label TEXT NOT NULL CHECK (label IN ('confirmed', 'moved', 'regressed', 'failed', 'remeasured')),
    -- remeasured: the median it had was taken in another way, with which this one is not compared
    message TEXT NOT NULL,  -- why it failed, else empty
    ended_at TEXT NOT NULL,
    CHECK ((label = 'failed') = (after_us IS NULL))
);

CREATE INDEX finals_subject ON finals (subject_id, device_id, policy);

CREATE INDEX noise_floors_device ON noise_floors (device_id, policy);

CREATE INDEX rates_device ON rates (device_id, name);

CREATE INDEX profiles_trial ON profiles (trial_id);

CREATE INDEX dispatchers_trial ON dispatchers (trial_id);

CREATE INDEX retimes_trial ON retimes (trial_id);

CREATE TABLE "layers" (
    -- The shape of a problem of an operation. Another run-time size, such as conv2d's n, is another row.
    id INTEGER NOT NULL PRIMARY KEY,
    -- For SQL, what conv2d has; NULL where another operation has no such size or word.
    n INTEGER,
    c INTEGER,
    h INTEGER,
    w INTEGER,
    k INTEGER,
    r INTEGER,
    s INTEGER,
    stride_h INTEGER,
    stride_w INTEGER,
    pad_h INTEGER,
    pad_w INTEGER,
    dilation_h INTEGER,
    dilation_w INTEGER,
    groups INTEGER,
    dtype TEXT,
    layout TEXT,
    epilogue TEXT,
    p INTEGER,  -- output height
    q INTEGER,  -- output width
    flops INTEGER NOT NULL,  -- of the direct algorithm, a multiply-add counted as two
    minimal_bytes INTEGER NOT NULL,  -- inputs read once, outputs written once
    operation TEXT NOT NULL,
    problem TEXT NOT NULL,  -- JSON object of every size and word, keys sorted
    declaration TEXT,  -- operation.toml of an operation that does not come along with autotune, else NULL
    UNIQUE (operation, problem)
);

CREATE VIEW results AS
-- Every trial with its names, one flat row each. The shape is NULL for what is not one layer.
SELECT
    trials.id AS trial_id,
    studies.name AS study,
    studies.generation AS generation,
    (SELECT name FROM study_layers
     WHERE study_layers.study_id = trials.study_id AND study_layers.subject_id = trials.subject_id
     ORDER BY position IS NULL, position LIMIT 1) AS layer,
    trials.number AS number,
    operation, problem,
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
    AND measurements.finals_id IS NULL AND measurements.retime_id IS NULL;

CREATE VIEW best_trials AS
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
LEFT JOIN measurements ON measurements.id = decided.measurement_id;

INSERT INTO alembic_version VALUES ('0012');
