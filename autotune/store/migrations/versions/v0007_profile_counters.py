"""Further counters of a profile: cache hits, how near the SM and the memory are to their peaks, issue, divergence."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMNS = (
    "l1_hit_fraction REAL /* of the sectors that global accesses ask the L1 cache for */",
    "l2_hit_fraction REAL",
    "sm_throughput_fraction REAL /* of the peak of the SM's busiest unit, over the whole launch */",
    "memory_throughput_fraction REAL /* of the peak of the busiest of L1, L2 and device memory */",
    "issue_fraction REAL /* cycles of a scheduler in which it issues */",
    "active_threads REAL /* per executed warp instruction; 32 without divergence */",
    "shared_load_wavefronts REAL /* passes of shared-memory loads, of at most 128 bytes each */",
)
"""of profiles; a profile that was made before has NULL there"""


def upgrade() -> None:
    """Add the columns."""
    for column in COLUMNS:
        op.get_bind().exec_driver_sql(f"ALTER TABLE profiles ADD COLUMN {column}")


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
