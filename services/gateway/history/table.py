"""The tables of the history, in types that SQLite and PostgreSQL both have. A change needs a migration in `migration/`.

Owns the form in which a report of metrics is in a row. Texts from other programs have no length limit: with one, a
single row would make PostgreSQL refuse a whole batch.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from gangline.domain.history import MetricsPoint
from gangline.domain.state import LogLevel

metadata = sa.MetaData()

# SQLite numbers rows by itself only in a column of type INTEGER.
_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# Stored numbers never change their meaning; the distance between them leaves room, as in Python's logging.
LEVEL_NUMBERS = {
    LogLevel.DEBUG: 10,
    LogLevel.INFO: 20,
    LogLevel.WARNING: 30,
    LogLevel.ERROR: 40,
    LogLevel.CRITICAL: 50,
}
LEVELS = {number: level for level, number in LEVEL_NUMBERS.items()}

logs = sa.Table(
    "logs",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("experiment_id", sa.BigInteger, nullable=False),
    sa.Column("trial_id", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("rank", sa.Integer),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    # One of LEVEL_NUMBERS. NULL counts as INFO: the line is from an earlier version.
    sa.Column("level", sa.SmallInteger),
    sa.Index("logs_by_experiment", "experiment_id", "id"),
    sa.Index("logs_by_trial", "trial_id", "id"),
    sqlite_autoincrement=True,
)

metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("experiment_id", sa.BigInteger, nullable=False),
    sa.Column("trial_id", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("metric_group", sa.Text, nullable=False),
    sa.Column("batches_completed", sa.BigInteger, nullable=False),
    sa.Column("metrics_json", sa.Text, nullable=False),
    # Metrics that are no numbers. NULL without any, which is most rows.
    sa.Column("values_json", sa.Text),
    # NULL counts as 0, an attempt before all others: the row is from an earlier version.
    sa.Column("attempt", sa.Integer),
    sa.Index("metrics_by_experiment", "experiment_id", "id"),
    sa.Index("metrics_by_trial", "trial_id", "id"),
    sqlite_autoincrement=True,
)

newest_metrics = sa.Table(
    "newest_metrics",
    metadata,
    sa.Column("trial_id", sa.Text, primary_key=True),
    sa.Column("metric_group", sa.Text, primary_key=True),
    sa.Column("batches_completed", sa.BigInteger, nullable=False),
    sa.Column("metrics_json", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer),
)

# The least batch that each attempt has reported: see attempt.py.
metric_attempts = sa.Table(
    "metric_attempts",
    metadata,
    sa.Column("trial_id", sa.Text, primary_key=True),
    sa.Column("metric_group", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("first_batches", sa.BigInteger, nullable=False),
)

# Summaries of consecutive reports: see metric_block.py. The ids are those of the first and of the last report.
metric_blocks = sa.Table(
    "metric_blocks",
    metadata,
    sa.Column("trial_id", sa.Text, primary_key=True),
    sa.Column("metric_group", sa.Text, primary_key=True),
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("last_id", sa.BigInteger, primary_key=True),
    sa.Column("first_id", sa.BigInteger, nullable=False),
    sa.Column("summary", sa.LargeBinary, nullable=False),
    sa.Column("spans", sa.LargeBinary, nullable=False),
    # Of all its reports. NULL in blocks of an earlier version.
    sa.Column("least_attempt", sa.BigInteger),
    sa.Column("greatest_attempt", sa.BigInteger),
    sa.Column("least_batches", sa.BigInteger),
    sa.Column("greatest_batches", sa.BigInteger),
)

metric_block_cursors = sa.Table(
    "metric_block_cursors",
    metadata,
    sa.Column("trial_id", sa.Text, primary_key=True),
    sa.Column("metric_group", sa.Text, primary_key=True),
    sa.Column("last_id", sa.BigInteger, nullable=False),
)

progress = sa.Table(
    "progress",
    metadata,
    sa.Column("trial_id", sa.Text, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("batches_completed", sa.BigInteger, nullable=False),
    sa.Column("batches_total", sa.BigInteger, nullable=False),
    sa.Column("samples_per_second", sa.Double, nullable=False),
    sa.Column("attempt", sa.Integer),
)

ingest_cursors = sa.Table(
    "ingest_cursors",
    metadata,
    sa.Column("spool_id", sa.Text, primary_key=True),
    sa.Column("stored_sequence", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
)

allocation_usage = sa.Table(
    "allocation_usage",
    metadata,
    sa.Column("allocation_id", sa.Text, primary_key=True),
    sa.Column("experiment_id", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("cpu_slots", sa.BigInteger, nullable=False),
    sa.Column("gpu_slots", sa.BigInteger, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False),
    sa.Index("allocation_usage_by_end", "ended_at"),
)

# Users' views of lists. They are no history: nothing here is erased with an experiment, or by retention.
saved_views = sa.Table(
    "saved_views",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner_id", sa.BigInteger, nullable=False),
    sa.Column("list_name", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("content_json", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    # The ids of the request that created it, and of the one that changed it last; "" before a change.
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
    sa.Index("saved_views_by_owner", "owner_id", "list_name", "name", unique=True),
)

# What users and programs have changed or tried to change. It has no secret, and nothing here is erased with an object.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    # Random, made with the record, so that a batch that is written again adds nothing.
    sa.Column("record_key", sa.Text, nullable=False),
    # A digest of what a change has that is sent again; NULL for all but the first record of a change that was done.
    sa.Column("done_key", sa.Text),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("actor_kind", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("credential", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("surface", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("object_kind", sa.Text, nullable=False),
    sa.Column("object_id", sa.Text, nullable=False),
    sa.Column("workspace", sa.Text, nullable=False),
    sa.Column("changes_json", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Index("audit_by_record_key", "record_key", unique=True),
    sa.Index("audit_by_done_key", "done_key", unique=True),
    sa.Index("audit_by_time", "at", "id"),
    sa.Index("audit_by_actor", "actor", "at", "id"),
    sa.Index("audit_by_action", "action", "at", "id"),
    sa.Index("audit_by_object", "object_kind", "object_id", "at", "id"),
    sa.Index("audit_by_outcome", "outcome", "at", "id"),
    sa.Index("audit_by_address", "address", "at", "id"),
    sqlite_autoincrement=True,
)


def storable(text: str) -> str:
    """Returns the text as it is stored: PostgreSQL allows no NUL in a text."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def metrics_row(point: MetricsPoint) -> dict[str, Any]:
    """Returns the columns of a report that `metrics` and `newest_metrics` have."""
    return {
        "metric_group": storable(point.group),
        "batches_completed": point.batches_completed,
        "metrics_json": json.dumps({storable(name): value for name, value in point.metrics.items()}, sort_keys=True),
    }


def point_of(row: Any, values_json: str = "") -> MetricsPoint:
    """Returns the report in a row with these columns. values_json: of `metrics`, where the caller has read it."""
    return MetricsPoint(row.metric_group, row.batches_completed, json.loads(row.metrics_json), values_json)
