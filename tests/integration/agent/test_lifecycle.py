"""The agent as a real process with real runners: start, end, stop, and what survives when either of them is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from gangline.v1 import agent_pb2, types_pb2
from services.agent.connection import heartbeat
from tests.support.agent_process import AgentProcess, is_running, make_spec, wait_until
from tests.support.stand_in_scheduler import StandInScheduler

STARTING, RUNNING, TERMINAL = types_pb2.STATE_STARTING, types_pb2.STATE_RUNNING, types_pb2.STATE_TERMINAL


async def _start(scheduler: StandInScheduler, agent: AgentProcess, plan: dict[str, object] | None = None) -> int:
    """One allocation on slot a1/0; the pid of its runner."""
    await scheduler.wait_connected()
    scheduler.start_allocation(make_spec("1.1.1", ["a1/0"], plan))
    await scheduler.wait_status("1.1.1", RUNNING)
    return await agent.runner("1.1.1")


async def test_start_to_forget(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    await _start(scheduler, agent)
    states = [status.state for status in scheduler.statuses if status.allocation_id == "1.1.1"]
    assert states[:2] == [STARTING, RUNNING]
    spec = agent.folder("1.1.1") / "spec.json"
    assert stat.S_IMODE(spec.stat().st_mode) == 0o600
    scheduler.start_allocation(make_spec("1.1.1", ["a1/0"]))
    agent.finish("1.1.1")

    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_COMPLETED
    assert status.exit.agent_id == "a1"
    assert status.undelivered[0].sequence == 3
    assert status.accepted_at > 0
    assert "the stand-in runs" in (agent.folder("1.1.1") / "runner.log").read_text()

    scheduler.forget("1.1.1")
    await wait_until(lambda: not agent.folder("1.1.1").exists())
    kept = agent.state / "ended" / "1.1.1"
    assert (kept / "record.json").exists()
    assert (kept / "spec.json").read_bytes() == b"", "the token must not stay"
    assert len(agent.starts("1.1.1")) == 1


async def test_agent_killed_finds_its_runner_again(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    pid = await _start(scheduler, agent, {"nursery": True})
    agent.end(signal.SIGKILL)
    await scheduler.wait_for(lambda: not scheduler.streams)
    assert is_running(pid)

    known = len(scheduler.hellos)
    await agent.start()
    hello = await scheduler.wait_greeted(known)
    (journaled,) = hello.allocations
    assert (journaled.allocation_id, journaled.state) == ("1.1.1", RUNNING)
    assert hello.highest_epoch == 10
    assert is_running(pid)

    agent.finish("1.1.1")
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_COMPLETED
    assert agent.starts("1.1.1") == [pid]


async def test_agent_names_only_metrics_at_which_its_runner_listens(
    scheduler: StandInScheduler, agent: AgentProcess
) -> None:
    """A rank with the runner's account listens too, and names its own port. A restarted agent checks again."""
    await agent.start()
    pid = await _start(scheduler, agent, {"metrics": True})
    named = agent.folder("1.1.1") / "metrics.address"
    own = (agent.folder("1.1.1") / "listens").read_text()
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        lie = f"127.0.0.1:{foreign.getsockname()[1]}"
        named.write_text(lie)
        await wait_until(lambda: "metrics are refused" in agent.log())
    (line,) = [json.loads(line) for line in agent.log().splitlines() if "metrics are refused" in line]
    assert (line["address"], line["pid"], line["listens"]) == (lie, pid, [own])
    named.write_text(own)
    await scheduler.wait_for(lambda: _metrics_of(scheduler.statuses))
    assert _metrics_of(scheduler.statuses) == {own}

    agent.end(signal.SIGKILL)
    await scheduler.wait_for(lambda: not scheduler.streams)
    scheduler.statuses.clear()
    await agent.start()
    await scheduler.wait_for(lambda: _metrics_of(scheduler.statuses))
    assert _metrics_of(scheduler.statuses) == {own}


def _metrics_of(statuses: Iterable[agent_pb2.AllocationStatus]) -> set[str]:
    return {status.metrics_address for status in statuses} - {""}


async def test_exit_while_the_agent_is_away(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    pid = await _start(scheduler, agent)
    agent.end(signal.SIGKILL)
    agent.finish("1.1.1")
    await wait_until(lambda: not is_running(pid))
    await agent.start()
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_COMPLETED
    assert status.undelivered[0].sequence == 3


async def test_sigterm_ends_the_agent_and_no_runner(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    pid = await _start(scheduler, agent)
    assert agent.end(signal.SIGTERM) == 0
    assert is_running(pid)


async def test_sigterm_with_kill_runners_on_exit(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start("--kill-runners-on-exit")
    pid = await _start(scheduler, agent)
    assert agent.end(signal.SIGTERM) == 0
    assert not is_running(pid)
    await agent.start()
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_PREEMPTED


async def test_second_signal_shortens_the_grace(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start("--kill-runners-on-exit", "--exit-grace-seconds", "600")
    pid = await _start(scheduler, agent, {"deaf": True})
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
    await scheduler.wait_for(lambda: not scheduler.streams)
    assert is_running(pid)
    assert agent.end(signal.SIGINT) == 0
    assert not is_running(pid)


@pytest.mark.parametrize("flags", [(), ("--no-warm",)], ids=["warm", "cold"])
async def test_runner_killed(scheduler: StandInScheduler, agent: AgentProcess, flags: tuple[str, ...]) -> None:
    await agent.start(*flags)
    pid = await _start(scheduler, agent, {"nursery": True})
    nursery, rank = (int((agent.folder("1.1.1") / name).read_text()) for name in ("nursery.pid", "ranks.pid"))
    assert is_running(nursery)
    assert is_running(rank)
    os.kill(pid, signal.SIGKILL)
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_RUNNER_LOST
    assert f"pid {pid}" in status.exit.message
    assert "runner.log" in status.exit.message
    assert status.exit.signal in {0, signal.SIGKILL}, "known where the kernel tells"
    assert not is_running(nursery)
    assert not is_running(rank), "no rank may use slots that are given back"
    warm_or_cold = "cold" if flags else "warm"
    assert f'gangline_agent_runner_starts_total{{kind="{warm_or_cold}"}} 1.0' in agent.scrape()


async def test_runner_that_ends_without_a_report(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start("--no-warm")
    await _start(scheduler, agent, {"code": 3})
    agent.finish("1.1.1")
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_RUNNER_LOST
    assert status.exit.exit_code == 3


async def test_corrupted_report(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    await _start(scheduler, agent, {"garbage": True})
    agent.finish("1.1.1")
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_RUNNER_LOST
    assert "exit.json was unreadable" in status.exit.message
    assert (agent.folder("1.1.1") / "exit.json.corrupt-1").read_text() == "no json"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (types_pb2.EXIT_KIND_PREEMPTED, types_pb2.EXIT_KIND_PREEMPTED),
        (types_pb2.EXIT_KIND_KILLED, types_pb2.EXIT_KIND_KILLED),
    ],
    ids=["preempted", "killed"],
)
async def test_stop_that_is_obeyed(
    scheduler: StandInScheduler,
    agent: AgentProcess,
    kind: types_pb2.ExitKind.ValueType,
    expected: types_pb2.ExitKind.ValueType,
) -> None:
    await agent.start()
    await _start(scheduler, agent)
    scheduler.stop_allocation("1.1.1", kind)
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == expected
    assert status.exit.message == "the stand-in ended"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (types_pb2.EXIT_KIND_PREEMPTED, types_pb2.EXIT_KIND_RUNNER_LOST),
        (types_pb2.EXIT_KIND_KILLED, types_pb2.EXIT_KIND_KILLED),
    ],
    ids=["preempted", "killed"],
)
async def test_stop_escalates_after_the_grace(
    scheduler: StandInScheduler,
    agent: AgentProcess,
    kind: types_pb2.ExitKind.ValueType,
    expected: types_pb2.ExitKind.ValueType,
) -> None:
    await agent.start()
    pid = await _start(scheduler, agent, {"deaf": True, "nursery": True})
    nursery, rank = (int((agent.folder("1.1.1") / name).read_text()) for name in ("nursery.pid", "ranks.pid"))
    scheduler.stop_allocation("1.1.1", kind, grace_seconds=0.3)
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == expected
    assert "the test says so" in status.exit.message
    assert not is_running(pid)
    assert not is_running(nursery)
    assert not is_running(rank)


async def test_stop_survives_the_agent(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    """The grace goes on while the agent is away, and the next agent keeps the promise."""
    await agent.start()
    pid = await _start(scheduler, agent, {"deaf": True})
    scheduler.stop_allocation("1.1.1", types_pb2.EXIT_KIND_KILLED, grace_seconds=1.0)
    record = agent.folder("1.1.1") / "record.json"
    await wait_until(lambda: json.loads(record.read_text())["stop"])
    agent.end(signal.SIGKILL)
    await agent.start()
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_KILLED
    assert not is_running(pid)


async def test_corrupted_record_keeps_the_trial_running(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    pid = await _start(scheduler, agent)
    agent.end(signal.SIGKILL)
    (agent.folder("1.1.1") / "record.json").write_text('{"half a rec')
    known = len(scheduler.hellos)
    await agent.start()
    hello = await scheduler.wait_greeted(known)
    assert hello.allocations[0].state == RUNNING
    assert (agent.folder("1.1.1") / "record.json.corrupt-1").read_text() == '{"half a rec'
    assert len([line for line in agent.log().splitlines() if "unreadable" in line]) == 1
    scheduler.start_allocation(make_spec("2.1.1", ["a1/0"]))
    refused = await scheduler.wait_status("2.1.1", TERMINAL)
    assert refused.exit.kind == types_pb2.EXIT_KIND_START_FAILED
    assert "a1/0 is in use by trial 1.1 (attempt 1)" in refused.exit.message
    scheduler.start_allocation(make_spec("3.1.1", ["a1/7"]))
    refused = await scheduler.wait_status("3.1.1", TERMINAL)
    assert "agent a1 has no slot a1/7" in refused.exit.message
    assert 'gangline_agent_commands_total{command="start",result="refused"} 2.0' in agent.scrape()
    agent.finish("1.1.1")
    assert (await scheduler.wait_status("1.1.1", TERMINAL)).exit.kind == types_pb2.EXIT_KIND_COMPLETED
    assert agent.starts("1.1.1") == [pid]


async def test_nothing_readable_means_nothing_runs(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    """Without record and spec the slots of a living runner are unknown, so it has to end."""
    await agent.start()
    pid = await _start(scheduler, agent)
    agent.end(signal.SIGKILL)
    for name in ("record.json", "spec.json"):
        (agent.folder("1.1.1") / name).write_bytes(b"\x00\xff")
    await agent.start()
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_RUNNER_LOST
    assert "record.json was unreadable" in status.exit.message
    assert not is_running(pid)


async def test_slots_pass_on_only_when_they_are_free(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    first = await _start(scheduler, agent, {"deaf": True})
    scheduler.stop_allocation("1.1.1", types_pb2.EXIT_KIND_KILLED, grace_seconds=0.5)
    scheduler.start_allocation(make_spec("2.1.1", ["a1/0"]))
    await scheduler.wait_status("2.1.1", STARTING)
    await scheduler.wait_status("2.1.1", RUNNING)
    assert not is_running(first)
    order = [(each.allocation_id, each.state) for each in scheduler.statuses]
    assert order.index(("1.1.1", TERMINAL)) < order.index(("2.1.1", RUNNING))


async def test_forget_of_a_living_allocation_kills_it(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    pid = await _start(scheduler, agent)
    scheduler.forget("1.1.1")
    await wait_until(lambda: not agent.folder("1.1.1").exists())
    assert not is_running(pid)


async def test_commands_of_an_older_leader_are_refused(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    pid = await _start(scheduler, agent)
    scheduler.stop_allocation("1.1.1", types_pb2.EXIT_KIND_KILLED, epoch=9)
    scheduler.start_allocation(make_spec("2.1.1", ["a1/1"], epoch=9), epoch=9)
    scheduler.start_allocation(make_spec("3.1.1", ["a1/1"], epoch=11), epoch=11)
    await scheduler.wait_status("3.1.1", RUNNING)
    assert scheduler.find_status("2.1.1", STARTING) is None
    assert is_running(pid)
    assert not agent.folder("2.1.1").exists()
    agent.end(signal.SIGKILL)
    scheduler.epoch = 12
    known = len(scheduler.hellos)
    await agent.start()
    assert (await scheduler.wait_greeted(known)).highest_epoch == 11


async def test_start_on_unknown_slot(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    await scheduler.wait_connected()
    scheduler.start_allocation(make_spec("1.1.1", ["a1/7"]))
    status = await scheduler.wait_status("1.1.1", TERMINAL)
    assert status.exit.kind == types_pb2.EXIT_KIND_START_FAILED
    assert status.exit.message == "agent a1 has no slot a1/7; it has a1/0, a1/1"


async def test_fork_server_that_dies_is_replaced(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    await _start(scheduler, agent)
    before = await wait_until(lambda: _fork_servers(agent, 2))
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    scheduler.start_allocation(make_spec("2.1.1", ["a1/1"]))
    await scheduler.wait_status("2.1.1", RUNNING)
    after = await wait_until(lambda: _fork_servers(agent, 2))
    assert not after & before
    assert is_running(agent.starts("1.1.1")[0])


async def test_second_agent_in_the_same_state_directory(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start()
    await scheduler.wait_connected()
    assert agent.process is not None
    first = agent.process
    second = agent.spawn()
    assert second.wait(20) == 2
    line = next(line for line in agent.log().splitlines() if line.startswith("agent.state_dir_in_use"))
    assert f"another agent (pid {first.pid}) uses the state directory {agent.state}" in line
    first.send_signal(signal.SIGKILL)
    first.wait()


async def test_kept_folders_are_bounded(scheduler: StandInScheduler, agent: AgentProcess) -> None:
    await agent.start("--keep-ended", "2", "--slots", "4")
    await scheduler.wait_connected()
    for number in range(1, 5):
        allocation_id = f"{number}.1.1"
        scheduler.start_allocation(make_spec(allocation_id, [f"a1/{number - 1}"]))
        await scheduler.wait_status(allocation_id, RUNNING)
        agent.finish(allocation_id)
        await scheduler.wait_status(allocation_id, TERMINAL)
        scheduler.forget(allocation_id)
        await wait_until(partial(_is_gone, agent.folder(allocation_id)))
    await wait_until(lambda: len(list((agent.state / "ended").iterdir())) == 2)
    assert sorted(path.name for path in (agent.state / "ended").iterdir()) == ["3.1.1", "4.1.1"]


def _is_gone(path: Path) -> bool:
    return not path.exists()


def _fork_servers(agent: AgentProcess, number: int) -> set[int]:
    """The pids of the agent's fork servers; empty unless there are so many."""
    assert agent.process is not None
    own = agent.process.pid
    children = [int(word) for word in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    servers = {pid for pid in children if is_running(pid) and b"gangline.launch.forkserver" in _command(pid)}
    return servers if len(servers) == number else set()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def test_heartbeats_go_on_while_the_journal_waits_for_the_disk(
    scheduler: StandInScheduler, agent: AgentProcess
) -> None:
    await agent.start()
    await scheduler.wait_for(lambda: scheduler.pulses)
    assert agent.process is not None
    # A write to a pipe waits for a reader, as one to a busy disk waits for the disk.
    folder = agent.folder("1.1.1")
    folder.mkdir(parents=True)
    draft = folder / f".spec.json.{agent.process.pid}"
    os.mkfifo(draft)
    # The record cannot take the place of a folder, so the start fails once the disk answers.
    (folder / "record.json").mkdir()
    scheduler.start_allocation(make_spec("1.1.1", ["a1/0"]))
    await scheduler.wait_silent()
    seen, beats = len(scheduler.pulses), scheduler.num_heartbeats
    await scheduler.wait_for(lambda: len(scheduler.pulses) >= seen + 15)
    assert scheduler.num_heartbeats == beats, "the event loop waits for the disk"
    with draft.open("rb"):
        await scheduler.wait_status("1.1.1", types_pb2.STATE_TERMINAL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root raises a priority")
async def test_one_thread_of_the_agent_sends_heartbeats_before_the_ranks_run(
    scheduler: StandInScheduler, agent: AgentProcess
) -> None:
    await agent.start()
    await scheduler.wait_for(lambda: scheduler.pulses)
    assert agent.process is not None
    priority_by_thread = _priorities(agent.process.pid)
    # The main thread, which has the event loop, and all others are as urgent as ranks.
    assert priority_by_thread.pop(agent.process.pid) == 0
    assert sorted(priority_by_thread.values()) == [heartbeat.PRIORITY, *[0] * (len(priority_by_thread) - 1)]
    assert heartbeat.PRIORITY < 0


def _priorities(pid: int) -> dict[int, int]:
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    return {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}


# Some containers let root raise a priority, but protect nothing from the OOM killer.
PRIVILEGED = """
import contextlib, os, pathlib, sys
os.nice(-5)
with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/oom_score_adj").write_text("-100")
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root raises a priority")
async def test_trial_runners_do_not_inherit_the_priority_of_the_agent(
    scheduler: StandInScheduler, agent: AgentProcess
) -> None:
    agent.prefix = [sys.executable, "-c", PRIVILEGED]
    await agent.start()
    await scheduler.wait_connected()
    assert agent.process is not None
    assert os.getpriority(os.PRIO_PROCESS, agent.process.pid) == -5
    scheduler.start_allocation(make_spec("1.1.1", ["a1/0"]))
    runner = await agent.runner("1.1.1")
    assert os.getpriority(os.PRIO_PROCESS, runner) == 0
    assert _oom_score(runner) == 0


def _oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
