"""The views of lists that users save.

A migration is never changed after its release, so it names its columns itself instead of importing table.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "saved_views",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner_id", sa.BigInteger, nullable=False),
        sa.Column("list_name", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("content_json", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
    )
    op.create_index("saved_views_by_owner", "saved_views", ["owner_id", "list_name", "name"], unique=True)


def downgrade() -> None:
    op.drop_table("saved_views")
