"""A runner's actions when its attempt is over, and when the lease of its attempt is not renewed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind
from gangline.launch.lease_record import boot_seconds
from gangline.v1 import runner_pb2, types_pb2
from services.scheduler.agents.lease_table import STOP_MARGIN_SECONDS
from tests.integration.trial_runner.conftest import World
from tests.integration.trial_runner.test_stop_signal import DEAF, OBEDIENT
from tests.support.runner_process import Runner, living
from tests.support.wait import until

OVER = "attempt 2 of trial 7.1 has taken the place of attempt 1"
LEASE_SECONDS = 2.0
# Prints more than a file of the spool takes, once the test says so.
PRINT_LATER = """
import os, sys, time
from gangline import core
with core.init() as context:
    if sys.argv[1:] != ["silent"]:
        print("pid", os.getpid(), flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    while True:
        print("x" * 1000, flush=True)
        time.sleep(0.001)
"""


async def _start(world: World, script: str = DEAF, lease_seconds: float = LEASE_SECONDS) -> Runner:
    await world.prepare(script, (2,))
    world.specs[0].lease_seconds = lease_seconds
    runner = world.launch(0)
    await world.wait_pids(2)
    return runner


async def _check_over(world: World, runner: Runner) -> None:
    report = await runner.wait(20)
    assert (report.kind, report.message) == (ExitKind.NETWORK, f"this attempt is over: {OVER}"), report
    assert living(world.rank_pids()) == []


async def test_ranks_end_when_a_renewal_says_that_the_attempt_is_over(world: World) -> None:
    runner = await _start(world)
    await until(lambda: world.scheduler.num_renewals[0] > 1, "two renewals")
    world.scheduler.over_reason = OVER
    await _check_over(world, runner)


async def test_ranks_end_when_the_answer_to_a_report_says_so(world: World) -> None:
    await world.prepare(DEAF, (2,))
    world.scheduler.over_reason = OVER
    await _check_over(world, world.launch(0))


async def test_ranks_end_when_the_gateway_says_so(world: World) -> None:
    await world.prepare(DEAF, (2,))
    # The answer to the first line may arrive before the second rank has printed its own, so no pids are awaited.
    world.gateway.over_reason = OVER
    await _check_over(world, world.launch(0))


async def test_stop_reaches_a_runner_without_its_agent(world: World) -> None:
    runner = await _start(world, OBEDIENT)
    world.scheduler.stop_order = runner_pb2.AttemptStop(
        kind=types_pb2.EXIT_KIND_PREEMPTED, reason="makes room for trial 8.1", grace_seconds=30
    )
    report = await runner.wait(20)
    assert (report.kind, report.message) == (ExitKind.PREEMPTED, "stopped after a checkpoint: makes room for trial 8.1")
    assert "saved" in world.gateway.lines("stdout")


async def test_ranks_end_within_the_lease_when_a_scheduler_falls_silent(world: World) -> None:
    with silent_address() as address:
        await world.prepare(DEAF, (2,))
        world.specs[0].lease_seconds = LEASE_SECONDS
        world.scheduler.other_schedulers.append(address)
        runner = world.launch(0)
        await world.wait_pids(2)
        await until(lambda: world.scheduler.num_renewals[0] > 1, "two renewals")
        await world.scheduler.stop()
        stopped_at = time.monotonic()
        await until(lambda: living(world.rank_pids()) == [], "the end of the ranks", 20)
        # Whatever the machine has to do: a lease that was renewed last before the stop is over by then.
        assert time.monotonic() - stopped_at < 2 * LEASE_SECONDS + 1
        report = await runner.wait(20)
    assert report.kind is ExitKind.NETWORK
    assert report.message == "cut off from the scheduler for 2 s, so another attempt may start elsewhere"


HOOK = "echo pid $$\nsleep 600\n"
# The last try to renew takes longer than the thread of the lease waits, from a lease of this length on.
LONG_LEASE_SECONDS = 8.0


@pytest.mark.parametrize("files", [{"startup-hook.sh": HOOK}, {}], ids=["hook", "ranks"])
async def test_processes_that_the_end_of_the_lease_kills_are_no_failure_of_their_own(
    world: World, files: dict[str, str]
) -> None:
    with silent_address() as address:
        await world.prepare(DEAF, (1,), files=files)
        world.specs[0].lease_seconds = world.scheduler.lease_seconds = LONG_LEASE_SECONDS
        world.scheduler.other_schedulers.append(address)
        runner = world.launch(0)
        pids = await world.wait_pids(1)
        await until(lambda: world.scheduler.num_renewals[0] > 0, "a renewal", 20)
        runner.kill(signal.SIGSTOP)
        await world.scheduler.stop()
        # The runner wakes up with its lease over, and its thread kills before its event loop has given up.
        await until(lambda: boot_seconds() >= lease_end(runner), "the end of the lease", 2 * LONG_LEASE_SECONDS)
        runner.kill(signal.SIGCONT)
        await until(lambda: living(pids) == [], "the end of the processes", 20)
        report = await runner.wait(40)
    assert (report.kind, report.signature) == (ExitKind.NETWORK, ""), report
    # The process that holds the ranks ends them a moment after the lease, if the runner has not.
    seconds = f"{LONG_LEASE_SECONDS:g} s"
    assert report.message.startswith((f"cut off from the scheduler for {seconds}", f"no renewal for {seconds}")), report
    assert not report.has_not_begun


@pytest.mark.parametrize("names_leader", [False, True], ids=["gone", "standing by"])
async def test_ranks_train_on_while_no_scheduler_leads(world: World, names_leader: bool) -> None:
    runner = await _start(world)
    await until(lambda: world.scheduler.num_renewals[0] > 1, "two renewals")
    if names_leader:
        # A leader that has just died: its standby does not know yet, and its port refuses.
        world.scheduler.leader_address = unused_address()
    else:
        await world.scheduler.stop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(runner.gone(60)), 3 * LEASE_SECONDS)
    assert len(living(world.rank_pids())) == 2
    renewals = world.scheduler.num_renewals[0]
    if names_leader:
        world.scheduler.leader_address = ""
    else:
        await world.scheduler.start()
    await until(lambda: world.scheduler.num_renewals[0] > renewals, "a renewal by the next leader", 20)
    world.scheduler.over_reason = OVER
    await _check_over(world, runner)


async def test_no_rank_starts_without_a_renewal_when_preparing_took_the_first_lease(world: World) -> None:
    await world.prepare(DEAF, (1, 1))
    world.specs[0].lease_seconds = LEASE_SECONDS
    world.scheduler.over_reason = OVER
    early = world.launch(0)
    await until(lambda: world.scheduler.num_joins == 1, "the first member of the gang", 20)
    # The first lease is half of the others.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(early.gone(60)), LEASE_SECONDS / 2)
    world.launch(1)
    report = await early.wait(20)
    assert (report.kind, report.message) == (ExitKind.NETWORK, f"this attempt is over: {OVER}")
    assert not (early.directory / "ranks.pid").exists()


# An interpreter that takes as long as the test says to tell its version, and then starts ranks at once.
SLOW_PYTHON = f"""#!/bin/sh
case "$*" in
    *-c*) echo waits > "$0.waits"; while [ ! -e "$0.go" ]; do sleep 0.05; done;;
esac
exec {sys.executable} "$@"
"""


def _slow_python(folder: Path) -> Path:
    path = folder / "slow-python"
    path.write_text(SLOW_PYTHON)
    path.chmod(0o755)
    return path


async def test_an_interpreter_that_takes_longer_than_the_first_lease_starts(world: World, tmp_path: Path) -> None:
    python = _slow_python(tmp_path)
    await world.prepare(DEAF, (1,), config={"environment": {"python": str(python)}})
    world.specs[0].lease_seconds = world.scheduler.lease_seconds = LEASE_SECONDS
    runner = world.launch(0)
    await until(python.with_suffix(".waits").exists, "the start of the interpreter", 20)
    # Four in a lease: more than the first lease and the wait of the process that holds the ranks are over.
    await until(lambda: world.scheduler.num_renewals[0] > 6, "renewals", 20)
    python.with_suffix(".go").touch()
    (pid,) = await world.wait_pids(1)
    assert living([pid]) == [pid]
    world.scheduler.over_reason = OVER
    await _check_over(world, runner)


async def test_a_start_that_is_cut_off_names_the_reason(world: World, tmp_path: Path) -> None:
    python = _slow_python(tmp_path)
    with silent_address() as address:
        await world.prepare(DEAF, (1,), config={"environment": {"python": str(python)}})
        world.specs[0].lease_seconds = world.scheduler.lease_seconds = LEASE_SECONDS
        world.scheduler.other_schedulers.append(address)
        runner = world.launch(0)
        await until(lambda: world.scheduler.num_renewals[0] > 1, "two renewals", 20)
        await world.scheduler.stop()
        report = await runner.wait(20)
    assert report.kind is ExitKind.NETWORK, report
    assert report.message == "cut off from the scheduler for 2 s, so another attempt may start elsewhere"
    assert not report.has_not_begun, "the interpreter is a program of the user's"


async def test_the_first_machine_waits_for_the_others_with_its_lease_after_a_short_program(world: World) -> None:
    entrypoint = "test $NODE_RANK = 0 || while [ ! -e go ]; do sleep 0.05; done"
    await world.prepare("", (1, 1), entrypoint=entrypoint, config={"entrypoint": entrypoint})
    # A quarter of it must be enough for the start on a busy machine: the first renewal follows the short program.
    world.scheduler.lease_seconds = 2 * LEASE_SECONDS
    for spec in world.specs:
        spec.lease_seconds = 2 * LEASE_SECONDS
    _, second = world.launch(0), world.launch(1)
    await until(lambda: world.scheduler.num_renewals[0] > 5, "renewals for more than a lease", 20)
    (second.directory / "code" / "go").touch()
    assert [report.kind for report in await world.wait(20)] == [ExitKind.COMPLETED] * 2


@pytest.mark.parametrize("is_silent", [True, False], ids=["first line", "later line"])
async def test_ranks_train_on_while_the_disk_of_the_runner_hangs(world: World, is_silent: bool) -> None:
    """The first line may come before the runner has begun to renew its lease."""
    entrypoint = f"python3 -m gangline.launch.torch_distributed train.py {'silent' if is_silent else ''}"
    await world.prepare(PRINT_LATER, (2,), entrypoint=entrypoint)
    # Long enough for a busy machine.
    world.specs[0].lease_seconds = world.scheduler.lease_seconds = 2 * LEASE_SECONDS
    runner = world.launch(0)
    if is_silent:
        await until(lambda: len(read_pids(runner)) == 2, "two ranks", 20)
    else:
        await world.wait_pids(2)
    spool = runner.directory.parent.parent / "spool" / "7.1.1-0"
    spool.mkdir(parents=True, exist_ok=True)
    # The runner's event loop waits in the opening of the spool's next file, for somebody who reads it.
    for number in range(1, 10 if is_silent else 3000):
        with suppress(FileExistsError):
            os.mkfifo(spool / f"{number:016d}.seg")
    (runner.directory / "code" / "go").touch()
    await until(lambda: in_open(runner.pid), "the hang", 20)
    renewals = world.scheduler.num_renewals[0]
    await until(lambda: world.scheduler.num_renewals[0] > renewals + 5, "renewals for more than a lease", 20)
    assert len(living(read_pids(runner))) == 2


@pytest.mark.parametrize("is_hooked", [False, True], ids=["ranks", "startup hook"])
async def test_ranks_end_with_the_lease_of_a_runner_that_is_stopped(world: World, is_hooked: bool) -> None:
    hook = "echo pid $$\necho pid $$\nexec sleep 600\n"
    await world.prepare(DEAF, (2,), files={"startup-hook.sh": hook} if is_hooked else {})
    world.specs[0].lease_seconds = LEASE_SECONDS
    runner = world.launch(0)
    await world.wait_pids(2)
    await until(lambda: world.scheduler.num_renewals[0] > 1, "two renewals")
    runner.kill(signal.SIGSTOP)
    stopped_at = time.monotonic()
    try:
        await until(lambda: living(world.rank_pids()) == [], "the end of the ranks", 20)
        # The leader starts the next attempt no sooner than STOP_MARGIN_SECONDS after the lease.
        assert time.monotonic() - stopped_at < LEASE_SECONDS + STOP_MARGIN_SECONDS
    finally:
        runner.kill(signal.SIGCONT)
    report = await runner.wait(20)
    assert report.kind is ExitKind.NETWORK, report
    assert report.message.startswith(("cut off", f"no renewal for {LEASE_SECONDS:g} s")), report


async def test_ranks_train_on_after_a_pause_of_all_processes(world: World) -> None:
    runner = await _start(world)
    await until(lambda: world.scheduler.num_renewals[0] > 1, "two renewals")
    paused = [runner.pid, runner.nursery_pid(), *world.rank_pids()]
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(2 * LEASE_SECONDS)
    for pid in paused:
        os.kill(pid, signal.SIGCONT)
    renewals = world.scheduler.num_renewals[0]
    await until(lambda: world.scheduler.num_renewals[0] > renewals + 4, "more renewals", 20)
    assert len(living(world.rank_pids())) == 2


def lease_end(runner: Runner) -> float:
    """As the process that holds the ranks reads it from its record."""
    for path in Path(f"/proc/{runner.nursery_pid()}/fd").iterdir():
        if path.readlink().name.startswith("memfd:gangline-lease"):
            (ends_at,) = struct.unpack("=d", path.read_bytes())
            return float(ends_at)
    raise AssertionError("the process that holds the ranks has no record of the lease")


def read_pids(runner: Runner) -> list[int]:
    """The pids of the ranks, as the runner notes them."""
    with suppress(FileNotFoundError):
        return [int(pid) for pid in (runner.directory / "ranks.pid").read_text().split()]
    return []


def in_open(pid: int) -> bool:
    """Whether the process's main thread waits in the opening of a FIFO."""
    return Path(f"/proc/{pid}/wchan").read_text() in ("wait_for_partner", "fifo_open")


def unused_address() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{unused.getsockname()[1]}"


@contextmanager
def silent_address() -> Iterator[str]:
    """An address whose host neither accepts nor refuses: the queue of a listener that accepts nothing is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
