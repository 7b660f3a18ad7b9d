"""The trial runner's own /metrics: training speed, delivery of records, duration of the start.

Owns the metrics of this process, and nothing else. A runner serves one trial, so its ids are labels of one info metric.
All other labels come from small closed sets.
"""

from __future__ import annotations

import socket

from prometheus_client import Counter, Gauge, Histogram, Info

from services.common import telemetry
from services.common.address import join_address, split_address

# In seconds for each batch.
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

allocation_info = Info("gangline_trial_runner_allocation", "What this runner runs")
step_seconds = Histogram("gangline_trial_runner_step_seconds", "Seconds a batch", buckets=_STEP_BUCKETS)
samples_per_second = Gauge("gangline_trial_runner_samples_per_second", "Over all ranks, since the last report")
batches = Counter("gangline_trial_runner_batches", "Batches completed by this attempt")
batches_completed = Gauge("gangline_trial_runner_batches_completed", "Batches behind the trial, over all attempts")
loss = Gauge("gangline_trial_runner_loss", "The newest value of the metric named loss", ["group"])
ranks = Gauge("gangline_trial_runner_ranks", "Rank processes that live on this machine")
spool_waiting = Gauge("gangline_trial_runner_spool_records", "Records that the gateway has not acknowledged")
attempt_renewals = Counter("gangline_trial_runner_attempt_renewals", "Times the leader renewed this attempt's lease")
records_dropped = Counter("gangline_trial_runner_records_dropped", "Records lost: spool full, disk refused, damaged")
start_phase_seconds = Gauge(
    "gangline_trial_runner_start_phase_seconds", "Seconds of each phase of the start", ["phase"]
)


def serve(scheduler_address: str, **ids: str) -> str:
    """Serves /metrics on a free port of the interface that leads to the scheduler. Returns its "host:port".

    ids: labels of the info metric.
    """
    allocation_info.info(ids)
    return telemetry.serve_metrics(join_address(find_own_address(scheduler_address), 0))


def find_own_address(peer: str) -> str:
    """Returns this machine's address on the route to the peer ("host:port"). Connecting a UDP socket sends nothing."""
    try:
        host, port = split_address(peer)
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"


def observe_progress(completed: int, before: int, seconds_per_batch: float, rate: float) -> None:
    """Updates the training metrics.

    before: the count of the previous progress message. The histogram gets one entry for each batch since then, at most
    1000.
    """
    fresh = max(0, completed - before)
    batches.inc(fresh)
    batches_completed.set(completed)
    samples_per_second.set(rate)
    if seconds_per_batch > 0:
        for _ in range(min(fresh, 1000)):
            step_seconds.observe(seconds_per_batch)


def observe_phases(started_at: float, **ended_at: float) -> None:
    """Sets the duration of each phase. The phases follow one another in the order of the arguments; 0 means that a
    phase has not ended."""
    before = started_at
    for phase, at in ended_at.items():
        if at:
            start_phase_seconds.labels(phase=phase).set(max(0.0, at - before))
            before = at
