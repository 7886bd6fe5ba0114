"""How timed passes were launched, accuracy classes of what finals compared with, and times that cannot be compared.

`retimes` is made anew for a further label: SQLite cannot change a CHECK. Migrations run without foreign keys and are
checked before they are committed.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE measurements ADD COLUMN launch TEXT NOT NULL DEFAULT 'stream' CHECK (launch IN ('stream', 'graph')) "
    "/* graph: passes are replayed from a CUDA graph, without launch gaps. stream: launched one by one; below 200 us, "
    "such a time and one from a graph are not compared */",
    "ALTER TABLE verdicts ADD COLUMN against_accuracy TEXT "
    "/* accuracy class of what the winner was compared with, NULL where unknown */",
    """CREATE TABLE retimes_new (
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
)""",
    "INSERT INTO retimes_new SELECT id, trial_id, run_id, before_us, after_us, label, message, ended_at FROM retimes",
    "DROP TABLE retimes",
    "ALTER TABLE retimes_new RENAME TO retimes",
    "CREATE INDEX retimes_trial ON retimes (trial_id, ended_at)",
)


def upgrade() -> None:
    """Add the columns and make `retimes` anew."""
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
