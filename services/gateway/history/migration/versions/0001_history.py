"""The first tables: logs, metrics, the newest rows of each trial, and the cursors of ingest.

A migration is never changed after its release, so it names its columns itself instead of importing table.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_points("logs", _log_columns())
    _create_points("metrics", _metrics_columns())
    op.create_table(
        "newest_metrics",
        sa.Column("trial_id", sa.Text, primary_key=True),
        sa.Column("metric_group", sa.Text, primary_key=True),
        sa.Column("batches_completed", sa.BigInteger, nullable=False),
        sa.Column("metrics_json", sa.Text, nullable=False),
    )
    op.create_table(
        "progress",
        sa.Column("trial_id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("batches_completed", sa.BigInteger, nullable=False),
        sa.Column("batches_total", sa.BigInteger, nullable=False),
        sa.Column("samples_per_second", sa.Double, nullable=False),
    )
    op.create_table(
        "ingest_cursors",
        sa.Column("spool_id", sa.Text, primary_key=True),
        sa.Column("stored_sequence", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    for name in ("ingest_cursors", "progress", "newest_metrics", "metrics", "logs"):
        op.drop_table(name)


def _create_points(name: str, columns: list[sa.Column[object]]) -> None:
    """Creates a table of numbered rows, with indexes by experiment and by trial."""
    op.create_table(
        name,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("experiment_id", sa.BigInteger, nullable=False),
        sa.Column("trial_id", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        *columns,
        sqlite_autoincrement=True,
    )
    op.create_index(f"{name}_by_experiment", name, ["experiment_id", "id"])
    op.create_index(f"{name}_by_trial", name, ["trial_id", "id"])


def _log_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("rank", sa.Integer),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    ]


def _metrics_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("metric_group", sa.Text, nullable=False),
        sa.Column("batches_completed", sa.BigInteger, nullable=False),
        sa.Column("metrics_json", sa.Text, nullable=False),
    ]
