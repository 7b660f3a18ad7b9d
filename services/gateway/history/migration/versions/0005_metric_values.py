"""Metrics that are no numbers. Reports that were stored before have none.

A column without a default is added in constant time on both databases, however many reports there are.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("metrics", sa.Column("values_json", sa.Text))


def downgrade() -> None:
    op.drop_column("metrics", "values_json")
