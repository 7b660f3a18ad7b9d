"""The audit log.

A migration is never changed after its release, so it names its columns itself instead of importing table.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TEXTS = (
    "actor_kind", "actor", "credential", "address", "surface", "action", "object_kind", "object_id", "workspace",
    "changes_json", "outcome", "request_id",
)  # fmt: skip
_INDEXES = {
    "time": ["at", "id"],
    "actor": ["actor", "at", "id"],
    "action": ["action", "at", "id"],
    "object": ["object_kind", "object_id", "at", "id"],
    "outcome": ["outcome", "at", "id"],
    "address": ["address", "at", "id"],
}


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("record_key", sa.Text, nullable=False),
        sa.Column("done_key", sa.Text),
        sa.Column("at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_record_key", "audit", ["record_key"], unique=True)
    op.create_index("audit_by_done_key", "audit", ["done_key"], unique=True)
    for name, columns in _INDEXES.items():
        op.create_index(f"audit_by_{name}", "audit", columns)


def downgrade() -> None:
    op.drop_table("audit")
