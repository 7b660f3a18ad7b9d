"""The level of each log line. Lines that were stored before have none.

A column without a default is added in constant time on both databases, however many lines there are.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("logs", sa.Column("level", sa.SmallInteger))


def downgrade() -> None:
    op.drop_column("logs", "level")
