"""Summaries of long series of metrics. Reports that are stored already are summarised when they are first read.

A migration is never changed after its release, so it names its columns itself instead of importing table.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "metric_blocks",
        sa.Column("trial_id", sa.Text, primary_key=True),
        sa.Column("metric_group", sa.Text, primary_key=True),
        sa.Column("metric", sa.Text, primary_key=True),
        sa.Column("last_id", sa.BigInteger, primary_key=True),
        sa.Column("first_id", sa.BigInteger, nullable=False),
        sa.Column("summary", sa.LargeBinary, nullable=False),
        sa.Column("spans", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "metric_block_cursors",
        sa.Column("trial_id", sa.Text, primary_key=True),
        sa.Column("metric_group", sa.Text, primary_key=True),
        sa.Column("last_id", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("metric_block_cursors")
    op.drop_table("metric_blocks")
