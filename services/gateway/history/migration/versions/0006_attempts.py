"""The attempt of each report of metrics. Reports and summaries that were stored before have none, which counts as an
attempt older than all others.

Columns without a default are added in constant time on both databases, however many reports there are.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ATTEMPT = ("metrics", "newest_metrics", "progress")
_OF_BLOCKS = ("least_attempt", "greatest_attempt", "least_batches", "greatest_batches")


def upgrade() -> None:
    for name in _ATTEMPT:
        op.add_column(name, sa.Column("attempt", sa.Integer))
    for name in _OF_BLOCKS:
        op.add_column("metric_blocks", sa.Column(name, sa.BigInteger))
    op.create_table(
        "metric_attempts",
        sa.Column("trial_id", sa.Text, primary_key=True),
        sa.Column("metric_group", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("first_batches", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("metric_attempts")
    for name in _OF_BLOCKS:
        op.drop_column("metric_blocks", name)
    for name in _ATTEMPT:
        op.drop_column(name, "attempt")
