"""Logs and metrics on their way to a gateway that comes and goes: nothing is lost, nothing is stored twice."""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind
from services.common.code_cache import CodeCache
from services.common.state_folder import StateFolder
from tests.integration.trial_runner.conftest import World
from tests.integration.trial_runner.test_gang_links import JOIN
from tests.support.wait import until

PRINTER = """
import time
for number in range(3000):
    print("line", number, flush=True)
    if number % 100 == 0:
        time.sleep(0.05)
"""
# One part before the gateway goes, the other while it is away.
HALVES = """
import os, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
for number in range(1500):
    if number == 400:
        wait("away")
    print("line", number, flush=True)
wait("go")
"""
# Thirty lines at a time, as the test allows them.
STEPS = """
import os, time
for number in range(150):
    while number and number % 30 == 0 and not os.path.exists(f"go{number}"):
        time.sleep(0.01)
    print("line", number, flush=True)
"""
REPORTER = """
import os, time
from gangline import core
from gangline.core.link import connect
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind
from gangline.v1 import types_pb2
link = connect()
print("pid", os.getpid(), flush=True)
link.send_first_step()
link.send_metrics(MetricsPoint("training", 10, {"loss": 0.5}))
link.send_metrics(MetricsPoint("validation", 10, {"validation_loss": 0.25}))
link.send_checkpoint(types_pb2.Checkpoint(id="c1", batches_completed=10))
link.send_progress(10, 20, 640.0, 0.01)
while not os.path.exists("go"):
    time.sleep(0.01)
link.send_checkpoint(types_pb2.Checkpoint(id="c2", batches_completed=20))
"""


async def test_nothing_is_lost_while_the_gateway_is_away(world: World) -> None:
    await world.start(PRINTER, (1,))
    await world.gateway.wait_line("line 500")
    await world.gateway.stop()
    spool = world.folder / "a1" / "spool" / "7.1.1-0"
    await until(lambda: sum(map(len, _segments(spool).values())) > 20_000, "records on disk")
    await world.gateway.start()
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED
    assert world.gateway.num_streams >= 2
    assert world.gateway.lines("stdout") == [f"line {number}" for number in range(3000)]
    assert sorted(world.gateway.records["7.1.1/0"]) == list(range(1, len(world.gateway.records["7.1.1/0"]) + 1))
    assert not spool.exists()


def _segments(spool: Path) -> dict[Path, bytes]:
    """Returns the content of each segment. The runner may delete a delivered one at any moment."""
    content_by_path = {}
    for path in spool.glob("*.seg"):
        with suppress(FileNotFoundError):
            content_by_path[path] = path.read_bytes()
    return content_by_path


def _flip(path: Path, offset: int) -> None:
    """In place: the runner appends to the file meanwhile."""
    with path.open("r+b") as file:
        file.seek(offset)
        content = file.read(4)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in content))


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_lies_around_a_damage_arrives_and_the_log_says_what_does_not(world: World, is_killed: bool) -> None:
    """Four bytes of the spool change while the gateway is away; then the runner delivers it, or the drainer."""
    (runner,) = await world.start(HALVES, (1,))
    await world.gateway.wait_line("line 399")
    await world.gateway.stop()
    (runner.directory / "code" / "away").touch()
    spool = world.folder / "a1" / "spool" / "7.1.1-0"
    await until(lambda: any(b"line 1499" in content for content in _segments(spool).values()), "the last line on disk")
    ((path, offset),) = (
        (path, content.index(b"line 1000")) for path, content in _segments(spool).items() if b"line 1000" in content
    )
    _flip(path, offset)
    if is_killed:
        runner.kill(signal.SIGKILL)
        await runner.gone()
    await world.gateway.start()
    if is_killed:
        next_spec = world.specs[0]
        next_spec.allocation.id, next_spec.code_sha256 = "7.1.2", "0" * 64
        await world.host("a1").start(next_spec).wait()
    else:
        (runner.directory / "code" / "go").touch()
        assert (await runner.wait()).kind is ExitKind.COMPLETED
    await world.gateway.wait_for(lambda: "line 1499" in world.gateway.lines("stdout"), 20, "the last line")
    assert world.gateway.lines("stdout") == [f"line {number}" for number in range(1500) if number != 1000]
    (told,) = [line for line in world.gateway.lines("runner") if "lost" in line]
    assert re.match(r"1 record of this trial's log and metrics \(numbers? \d+ of its spool, \d+ bytes\) are lost", told)
    assert told.endswith("damaged on the disk of agent a1 before a gateway had them")
    await until(lambda: not spool.exists(), "the end of the delivered spool")
    if is_killed:
        settled = [line for line in (spool.parent / "drainer.log").read_text().splitlines() if "settled" in line]
        assert any('"is_delivered": false' in line and '"num_damaged": 1' in line for line in settled)


async def test_foreign_bytes_behind_a_live_spool_cost_no_record(world: World) -> None:
    (runner,) = await world.start(STEPS, (1,))
    await world.gateway.wait_line("line 29")
    await world.gateway.stop()
    spool = world.folder / "a1" / "spool" / "7.1.1-0"
    for number in (30, 60, 90):
        (runner.directory / "code" / f"go{number}").touch()
        last = f"line {number + 29}".encode()
        await until(lambda: any(last in content for content in _segments(spool).values()), "the lines")  # noqa: B023 - awaited at once
        with max(_segments(spool)).open("ab") as file:
            file.write(b"eleven byte")
    await world.gateway.start()
    (runner.directory / "code" / "go120").touch()
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    await world.gateway.wait_for(lambda: "line 149" in world.gateway.lines("stdout"), 20, "the last line")
    assert world.gateway.lines("stdout") == [f"line {number}" for number in range(150)]
    assert not [line for line in world.gateway.lines("runner") if "lost" in line]


async def test_a_gateway_that_moves_during_the_training_is_found(world: World) -> None:
    (runner,) = await world.start(PRINTER + REPORTER, (1,))
    await world.gateway.wait_line("line 500")
    await world.gateway.stop()
    world.gateway.port = 0
    await world.gateway.start()
    world.scheduler.gateways = [world.gateway.address]
    assert world.gateway.address not in world.specs[0].gateway_addresses
    await world.gateway.wait_line("line 2999")
    (runner.directory / "code" / "go").touch()
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED
    records = world.gateway.records["7.1.1/0"]
    assert sorted(records) == list(range(1, len(records) + 1))


async def test_what_a_killed_runner_left_is_delivered_by_the_next_one(world: World) -> None:
    (runner,) = await world.start(JOIN + PRINTER + "time.sleep(600)", (1,))
    await world.wait_pids(1)
    await world.gateway.stop()
    spool = world.folder / "a1" / "spool"
    await until(
        lambda: any(b"line 2999" in content for content in _segments(spool / "7.1.1-0").values()),
        "the last line on disk",
    )
    runner.kill(signal.SIGKILL)
    await runner.gone()
    await world.gateway.start()
    next_spec = world.specs[0]
    next_spec.allocation.id = "7.1.2"
    next_spec.code_sha256 = "0" * 64
    await world.host("a1").start(next_spec).wait()
    await world.gateway.wait_for(lambda: "line 2999" in world.gateway.lines("stdout"), 20, "the last line")
    assert [line for line in world.gateway.lines("stdout") if line.startswith("line")] == [
        f"line {number}" for number in range(3000)
    ]
    await until(lambda: not list(spool.glob("7.1.1-0/*")), "the end of the drained spool")


async def test_what_a_rank_reports_goes_where_it_belongs(world: World) -> None:
    (runner,) = await world.start(REPORTER, (1,))
    await world.wait_pids(1)
    await until(lambda: bool(world.scheduler.reports_of("checkpoint")), "the checkpoint at the scheduler")
    assert world.scheduler.reports_of("running")[-1].timeline.first_step_at > 0
    assert dict(world.scheduler.reports_of("metrics")[0].metrics) == {"validation_loss": 0.25}
    checkpoint = world.scheduler.reports_of("checkpoint")[0]
    assert (checkpoint.id, checkpoint.trial_id, checkpoint.experiment_id) == ("c1", "7.1", 7)
    address = world.scheduler.reports_of("running")[0].metrics_address
    await until(lambda: "samples_per_second 640.0" in _read(f"http://{address}/metrics"), "the progress at the runner")
    page = await asyncio.to_thread(_read, f"http://{address}/metrics")
    assert re.search(r'^gangline_trial_runner_loss\{group="training"\} 0.5$', page, re.MULTILINE)
    assert re.search(r"^gangline_trial_runner_samples_per_second 640.0$", page, re.MULTILINE)
    assert re.search(r'^gangline_trial_runner_allocation_info\{.*allocation_id="7.1.1".*\} 1.0$', page, re.MULTILINE)
    (runner.directory / "code" / "go").touch()
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    # Progress comes with the next report: the metrics know no total, the progress after them does, and replaces a
    # report that was not sent yet.
    totals = [report.batches_total for report in world.scheduler.reports_of("progress")]
    assert totals in ([0, 20], [20])
    groups = [
        record.metrics.group for record in world.gateway.records["7.1.1/0"].values() if record.HasField("metrics")
    ]
    assert groups == ["training", "validation"]


async def test_a_log_policy_that_is_not_applied_is_told_once_for_the_gang(world: World) -> None:
    policies = [{"pattern": "(?<!no )error"}, {"pattern": "greeting from rank 0"}]
    await world.start(
        'print("greeting from rank", __import__("os").environ["RANK"])', (1, 1), config={"log_policies": policies}
    )
    assert [report.kind for report in await world.wait()] == [ExitKind.COMPLETED] * 2
    assert [line.partition(": ")[0] for line in world.gateway.lines("runner") if line.startswith("log policy")] == [
        "log policy '(?<!no )error' is not applied",
        "log policy 'greeting from rank 0' matches a line of rank 0",
    ]


async def test_reports_that_no_scheduler_took_are_in_the_exit_file(world: World) -> None:
    (runner,) = await world.start(REPORTER, (1,))
    await until(lambda: bool(world.scheduler.reports_of("progress")), "the progress at the scheduler")
    await world.scheduler.stop()
    (runner.directory / "code" / "go").touch()
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    undelivered = runner.status().undelivered
    assert [report.checkpoint.id for report in undelivered if report.HasField("checkpoint")][-1:] == ["c2"]
    # The answers to the last reports may have been lost with the scheduler. Then these are in the file as well.
    sequences = [report.sequence for report in undelivered]
    assert sequences == list(range(sequences[0], sequences[-1] + 1))
    assert sequences[0] <= 1 + max(world.scheduler.reports[0]) <= sequences[-1]


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


async def test_what_an_attempt_leaves_while_no_gateway_is_registered_arrives_where_one_appears(world: World) -> None:
    await world.prepare(PRINTER, (1,))
    spec, state = world.specs[0], StateFolder(world.folder / "a1")
    state.code_archives.mkdir(parents=True)
    CodeCache(state.code_archives).archive_path(spec.code_sha256).write_bytes(world.gateway.archives[spec.code_sha256])
    del spec.gateway_addresses[:]
    runner = world.launch(0)
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    assert _segments(state.spools / "7.1.1-0")
    state.write_gateways([world.gateway.address])
    await world.gateway.wait_for(lambda: "line 2999" in world.gateway.lines("stdout"), 20, "the last line")
    assert world.gateway.lines("stdout") == [f"line {number}" for number in range(3000)]
    await until(lambda: not (state.spools / "7.1.1-0").exists(), "the end of the delivered spool")
