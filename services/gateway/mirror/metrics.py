"""The metrics of the gateway, served at /metrics of its HTTP port. Labels come from small closed sets."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

# Calls by grpc are counted by services.common.
HTTP_REQUESTS = Counter(
    "gangline_gateway_http_requests_total",
    "Answered requests, by method, route and status",
    ["method", "route", "code"],
)
HTTP_REQUEST_SECONDS = Histogram(
    "gangline_gateway_http_request_seconds",
    "Time until the answer began",
    ["method", "route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
)
INGEST_ROWS = Counter("gangline_gateway_ingest_rows_total", "Records stored, by kind", ["kind"])
INGEST_REPEATED_ROWS = Counter("gangline_gateway_ingest_repeated_rows_total", "Records that were stored before")
INGEST_FENCED_ROWS = Counter(
    "gangline_gateway_ingest_fenced_rows_total",
    "Records left out because a later attempt had begun or the experiment was deleted",
)
INGEST_IMPLAUSIBLE_VALUES = Counter(
    "gangline_gateway_ingest_implausible_values_total", "Times, counts and rates of records that were replaced"
)
INGEST_LAG_SECONDS = Histogram(
    "gangline_gateway_ingest_lag_seconds",
    "Age of the newest record of a batch when the batch was stored",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
)
INGEST_COMMIT_SECONDS = Histogram(
    "gangline_gateway_ingest_commit_seconds",
    "Time of one transaction of the history",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
INGEST_FAILURES = Counter("gangline_gateway_ingest_failures_total", "Batches that could not be stored")
CONDENSE_FAILURES = Counter(
    "gangline_gateway_condense_failures_total",
    "Times stored metrics could not be summarised",
)
INGEST_STREAMS = Gauge("gangline_gateway_ingest_streams", "Trial runners that are connected")
FOLLOWERS = Gauge("gangline_gateway_followers", "Calls that follow logs, metrics or an experiment")
MIRROR_REVISION = Gauge("gangline_gateway_mirror_revision", "The newest revision of etcd that is mirrored")
MIRROR_FAILURES = Counter("gangline_gateway_mirror_failures_total", "Times the watch of etcd had to begin anew")
# The sizes are the cluster's; every gateway measures the same ones.
DATABASE_BYTES = Gauge("gangline_gateway_database_bytes", "Size of the database of metrics and logs")
STORAGE_BYTES = Gauge(
    "gangline_gateway_storage_bytes", "Size of the file system of a storage that is a folder; else NaN"
)
STORAGE_FREE_BYTES = Gauge("gangline_gateway_storage_free_bytes", "Free bytes of that file system; else NaN")
CHECKPOINT_BYTES = Gauge(
    "gangline_gateway_checkpoint_bytes", "Size of all checkpoints in the storage, by their records"
)
DELETED_CHECKPOINTS = Counter("gangline_gateway_deleted_checkpoints_total", "Checkpoints deleted from the storage")
CLEARED_PARTIALS = Counter(
    "gangline_gateway_cleared_partials_total", "Unfinished checkpoints of ended attempts deleted from the storage"
)
HUNG_DELETIONS = Gauge(
    "gangline_gateway_hung_deletions", "Calls to the storage that clean up and have not returned in time"
)
USAGE_FAILURES = Counter("gangline_gateway_usage_failures_total", "Times ended allocations could not be stored")
RETIRED_ROWS = Counter(
    "gangline_gateway_retired_rows_total",
    "Rows of logs, metrics and the audit log that were deleted because of their age",
    ["kind"],
)
CLEANUP_FAILURES = Counter("gangline_gateway_cleanup_failures_total", "Deletions that have to be tried again")
AUDIT_RECORDS = Counter("gangline_gateway_audit_records_total", "Records of the audit log that were written")
AUDIT_DROPPED = Counter(
    "gangline_gateway_audit_dropped_total", "Records of the audit log for which there was no room, or which SQL refused"
)
AUDIT_LEFT_OUT = Counter(
    "gangline_gateway_audit_left_out_total", "Refused attempts beyond the records that a caller gets"
)
AUDIT_FAILURES = Counter("gangline_gateway_audit_failures_total", "Times the audit log could not be written")
AUDIT_WAITING = Gauge("gangline_gateway_audit_waiting", "Records of the audit log that wait for the database")
