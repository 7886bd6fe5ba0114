"""`spans` is named `end_to_end_timings`, after what it holds."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Name the table anew, and say so in the view that speaks of it."""
    connection = op.get_bind()
    connection.exec_driver_sql("ALTER TABLE spans RENAME TO end_to_end_timings")
    view = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'best_trials'").scalar_one()
    connection.exec_driver_sql("DROP VIEW best_trials")
    connection.exec_driver_sql(view.replace("`spans`", "`end_to_end_timings`"))


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
