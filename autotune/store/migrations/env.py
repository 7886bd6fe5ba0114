"""Run by Alembic: migrations happen on the connection, and in the transaction, that the caller opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
