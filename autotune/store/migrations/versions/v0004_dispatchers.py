"""Dispatchers: what was made of a set of layers, and what it costs each of them."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

STATEMENTS = (
    """CREATE TABLE dispatchers (
    -- A dispatcher as it was built: which kernel serves which problem. Its trial's subject is the set of layers that it
    -- was made from, its trial's config the same rule as parameters.
    id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id),
    record TEXT NOT NULL,  -- JSON object, properties, kernels with their conditions, default, rule
    built_at TEXT NOT NULL
)""",
    """CREATE TABLE dispatched_layers (
    -- What a dispatcher does with each layer, and with those that were held out of its making.
    dispatcher_id INTEGER NOT NULL REFERENCES dispatchers (id),
    layer_id INTEGER NOT NULL REFERENCES layers (id),
    name TEXT NOT NULL,
    count INTEGER NOT NULL,  -- how often the network runs it: its weight
    role TEXT NOT NULL CHECK (role IN ('tuned', 'held out')),
    kernel TEXT,  -- name of the kernel that serves it, NULL when none fits: it is to be tuned
    unsure INTEGER NOT NULL CHECK (unsure IN (0, 1)),  -- 1: the rule says nothing of it, the safe default comes first
    time_us REAL,  -- of that kernel, NULL without one
    best_us REAL NOT NULL,  -- of the layer's own best kernel
    left_out_us REAL,  -- of what a dispatcher made without the layer chooses; NULL when nothing fits
    default_us REAL,  -- of the safe default, NULL when it does not fit
    single_us REAL,  -- of the single kernel that is best over the other layers, the default where it does not fit
    nearest_us REAL,  -- of the best kernel of the layer most like it, of the next one's where that does not fit
    PRIMARY KEY (dispatcher_id, layer_id)
)""",
    "CREATE INDEX dispatchers_trial ON dispatchers (trial_id, built_at)",
)


def upgrade() -> None:
    """Add the tables."""
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
