"""A runner continues to deliver its records, whatever errors the disk returns meanwhile."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from gangline.v1 import ingest_pb2, runner_pb2, types_pb2
from services.trial_runner.delivery import drainer
from services.trial_runner.delivery.spool import Spool
from tests.support.delivery import make_delivery
from tests.support.runner_peers import GatewayPeer, SchedulerPeer
from tests.support.runner_process import TOKEN, make_spec
from tests.support.wait import until

FULL = OSError(errno.ENOSPC, "No space left on device")


def _report(batches_completed: int) -> runner_pb2.TrialReport:
    checkpoint = types_pb2.Checkpoint(id=f"c{batches_completed}", batches_completed=batches_completed)
    return runner_pb2.TrialReport(checkpoint=checkpoint)


async def test_a_full_disk_ends_neither_reports_nor_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, scheduler = GatewayPeer(TOKEN), SchedulerPeer(TOKEN, ["a1"], [])
    await gateway.start()
    await scheduler.start()
    spec = make_spec([("a1", 1)], 0, "true", code_sha256="", scheduler=[scheduler.address], gateway=["127.0.0.1:1"])
    delivery, recorder = make_delivery(spec, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise FULL

    read, failures = Spool.read, [FULL]

    def read_at_last(spool: Spool, after: int) -> list[ingest_pb2.IngestRecord]:
        if failures:
            raise failures.pop()
        return read(spool, after)

    monkeypatch.setattr(drainer, "save_target", refuse)
    monkeypatch.setattr(Spool, "read", read_at_last)
    scheduler.gateways = [gateway.address]
    for number in (1, 2):
        delivery.reporter.add(_report(number))
    recorder.note("still there")
    delivery.reporter.open()
    await until(lambda: len(scheduler.reports_of("checkpoint")) == 2, "both reports")
    await until(lambda: "still there" in gateway.lines(), "the record", 20)
    assert await delivery.close(5.0) == []
    await gateway.stop()
    await scheduler.stop()


async def test_records_that_follow_one_another_go_together(tmp_path: Path) -> None:
    gateway = GatewayPeer(TOKEN)
    await gateway.start()
    spec = make_spec([("a1", 1)], 0, "true", code_sha256="", scheduler=["127.0.0.1:1"], gateway=[gateway.address])
    delivery, recorder = make_delivery(spec, tmp_path)
    recorder.note("first")
    await until(lambda: "first" in gateway.lines(), "the first line, which does not wait", 20)
    # Ranks of other users may pass through the state directory, and the drainer's log is in this folder.
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    for number in range(50):
        recorder.note(f"line {number}")
        # As steps follow one another: slower than one request takes, far quicker than records are gathered.
        await asyncio.sleep(0.01)
    assert await delivery.close(5.0) == []
    assert gateway.lines()[-1] == "line 49"
    assert gateway.num_requests < 10
    await gateway.stop()
