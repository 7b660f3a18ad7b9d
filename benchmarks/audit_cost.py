"""Measures which part of a submit's processor time the audit log takes.

In one run, `submit_cost` gives the milliseconds of a submit over all processes of a real cluster, whose gateway records
each submit. Then this process makes the records of as many submits by the gateway's own code: the attempt around the
call, the description of the change, the buffer, and the batches in a real SQLite database. Its processor time over that
of the submits is the share. An admission passes no gateway, so the audit log costs it nothing.

The bursts have as many records as a gateway collects in the half second before it writes a batch.
Run it with `python -m benchmarks.audit_cost`; it fails above 2 %. Processor time stays the same while other programs
load the machine, but for their use of its caches.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from benchmarks.submit_cost import NAMES, measure
from gangline.domain.experiment import Experiment
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common.server import Principal
from services.gateway.audit.attempt import Changing
from services.gateway.audit.audit_log import AuditLog, Entry
from services.gateway.audit.trail import AuditTrail
from services.gateway.history.audit_rows import AuditRows
from services.gateway.history.database import open_database
from services.gateway.mirror.cluster_state import ClusterState
from services.gateway.mirror.mirror import Watched

# The audit log's part of a submit's processor time must not exceed this.
BAR = 0.02
CALLER = Principal(kind="user", name="benchmark")


@dataclass
class _Mirror:
    """The part of a mirror that the audit log reads."""

    state: ClusterState = field(default_factory=ClusterState)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=4, help="of each of two agents")
    parser.add_argument("--deep", type=int, default=1000, help="submits of a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--burst", type=int, default=100, help="records of a batch")
    arguments = parser.parse_args()
    print(describe_machine())
    submits = [sum(row[name] for name in NAMES) for row in measure(arguments.slots, arguments.deep, arguments.runs)]
    records = [asyncio.run(measure_records(arguments.deep, arguments.burst)) for _ in range(arguments.runs)]
    submit, record = summarise(submits), summarise(records)
    share = record.p50 / submit.p50
    print(f"a submit takes {submit.p50:.2f} ms of processor time ({submit.minimum:.2f} to {submit.maximum:.2f})")
    print(f"its record takes {record.p50:.3f} ms of these ({record.minimum:.3f} to {record.maximum:.3f})")
    print(f"share of the audit log: {share:.1%}, at most {BAR:.0%}")
    return 0 if share <= BAR else 1


async def measure_records(number: int, burst: int) -> float:
    """Returns the milliseconds of processor time of one record, from the call to the database."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(f"sqlite:///{Path(folder, 'audit.db')}")
        rows, num_written = AuditRows(engine), 0
        loop, has_written = asyncio.get_running_loop(), asyncio.Event()

        def store(entries: Sequence[Entry]) -> None:
            nonlocal num_written
            rows.store(entries)
            num_written += len(entries)
            loop.call_soon_threadsafe(has_written.set)

        audit_log = AuditLog(store)
        audit_log.start()
        mirror = cast(Watched, _Mirror())
        trail = AuditTrail(mirror, audit_log.add)
        calls = [_make_call(each) for each in range(number)]
        try:
            used_before = time.process_time()
            for submitted, call in enumerate(calls, 1):
                _record(trail, mirror, *call)
                if submitted % burst == 0 or submitted == number:
                    while num_written < submitted:
                        await has_written.wait()
                        has_written.clear()
            used = time.process_time() - used_before
        finally:
            await audit_log.close()
            engine.dispose()
    return used / number * 1e3


def _make_call(number: int) -> tuple[Any, Any]:
    """Returns a submit and the leader's answer."""
    request_id = f"measured-{number}"
    request = scheduler_pb2.SubmitExperimentRequest(request_id=request_id, owner=CALLER.name, code_sha256="0" * 64)
    experiment = wire.to_proto(Experiment(number, request_id, CALLER.name, "{}", "0" * 64))
    return request, scheduler_pb2.SubmitExperimentResponse(experiment=experiment)


def _record(trail: AuditTrail, mirror: Watched, request: Any, answer: Any) -> None:
    """Does what the audit log adds to a submit."""
    attempt = trail.attempt(
        "grpc", "experiment.create", CALLER, "a-token", "127.0.0.1", request_id=request.request_id, source=request
    )
    with attempt, Changing(mirror, request) as change:
        change.answer = answer


if __name__ == "__main__":
    run_benchmark(main)
