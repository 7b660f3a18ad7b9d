"""Alembic's environment: migrates on the connection, and in the transaction, that database.py has opened."""

from __future__ import annotations

from alembic import context

from services.gateway.history.table import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite's DDL is transactional too once BEGIN was sent, so a crash leaves either the old schema or the new one.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
