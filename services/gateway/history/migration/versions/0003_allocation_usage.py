"""The slots that ended allocations have held.

A migration is never changed after its release, so it names its columns itself instead of importing table.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "allocation_usage",
        sa.Column("allocation_id", sa.Text, primary_key=True),
        sa.Column("experiment_id", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("cpu_slots", sa.BigInteger, nullable=False),
        sa.Column("gpu_slots", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
    )
    op.create_index("allocation_usage_by_end", "allocation_usage", ["ended_at"])


def downgrade() -> None:
    op.drop_table("allocation_usage")
