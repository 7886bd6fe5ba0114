"""How each rate of a device was measured; one unit may have several."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE rates ADD COLUMN method TEXT NOT NULL DEFAULT 'unknown' "
    "/* how it was measured; of the methods of one calibration the best bounds */",
    # What older calibrations did; rates by other names keep 'unknown'.
    """UPDATE rates SET method = CASE name
    WHEN 'fp32' THEN 'FFMA'
    WHEN 'tf32' THEN 'mma.sync m16n8k8'
    WHEN 'fp16' THEN 'mma.sync m16n8k16'
    ELSE '16 bytes a thread'
END WHERE name IN ('copy', 'fill', 'fp32', 'tf32', 'fp16')""",
)


def upgrade() -> None:
    """Add the column and say how the rates that are there were measured."""
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
