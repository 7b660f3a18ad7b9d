"""The metrics of the etcd client.

Owns the metrics' names and buckets. Every module of this package updates them; `services.common.telemetry` serves them.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CALL_SECONDS = Histogram(
    "gangline_etcd_call_seconds",
    "Time of one call to etcd with all its tries",
    ["operation"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FAILED_TRIES = Counter("gangline_etcd_failed_tries_total", "Tries of a call that failed", ["operation", "status"])
ROTATIONS = Counter("gangline_etcd_rotations_total", "Moves to the next etcd endpoint")
WATCH_RESTARTS = Counter("gangline_etcd_watch_restarts_total", "Watches opened again after a lost stream")
RELISTS = Counter("gangline_etcd_relists_total", "Prefixes listed again because the history was compacted")
LEASE_BEAT_TIME = Gauge("gangline_etcd_lease_beat_timestamp_seconds", "When a lease was last beaten with success")
