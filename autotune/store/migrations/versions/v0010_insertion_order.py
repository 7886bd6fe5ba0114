"""What came later is what was inserted later: a clock that was set back decides nothing.

The view `best_trials` takes the newest finals by their id, and a study that was begun fresh knows the newest trial of
that moment instead of the date.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BY_DATE = "ORDER BY finals.ended_at DESC, finals.id DESC LIMIT 1"
BY_ID = "ORDER BY finals.id DESC LIMIT 1"

STATEMENTS = (
    "ALTER TABLE studies ADD COLUMN fresh_after_trial_id INTEGER "
    "/* of a fresh start, the newest trial then: nothing up to it is reused; NULL for any other */",
    """UPDATE studies SET fresh_after_trial_id = coalesce(
        (SELECT min(id) - 1 FROM trials WHERE study_id = studies.id), (SELECT max(id) FROM trials), 0) WHERE fresh""",
    # An index ends with the row's id, which is the order within it.
    "DROP INDEX finals_subject",
    "CREATE INDEX finals_subject ON finals (subject_id, device_id, policy)",
    "DROP INDEX noise_floors_device",
    "CREATE INDEX noise_floors_device ON noise_floors (device_id, policy)",
    "DROP INDEX rates_device",
    "CREATE INDEX rates_device ON rates (device_id, name)",
    "DROP INDEX profiles_trial",
    "CREATE INDEX profiles_trial ON profiles (trial_id)",
    "DROP INDEX dispatchers_trial",
    "CREATE INDEX dispatchers_trial ON dispatchers (trial_id)",
    "DROP INDEX retimes_trial",
    "CREATE INDEX retimes_trial ON retimes (trial_id)",
)


def upgrade() -> None:
    """Order by id in the view, and mark fresh starts by a trial."""
    connection = op.get_bind()
    view = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'best_trials'").scalar_one()
    if BY_DATE not in view:
        raise ValueError("the view best_trials is not autotune's")
    connection.exec_driver_sql("DROP VIEW best_trials")
    connection.exec_driver_sql(view.replace(BY_DATE, BY_ID))
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
