"""How a runner is asked to end, and what cannot be prepared."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import World
from tests.integration.trial_runner.test_gang_links import JOIN, LOOP
from tests.support.runner_process import living
from tests.support.wait import until

OBEDIENT = """
import os, time
from gangline import core
print("pid", os.getpid(), flush=True)
with core.init() as context:
    while not context.preempt.should_preempt():
        time.sleep(0.01)
    print("saved", flush=True)
"""
HALF_SAVED = """
import os, signal
from gangline import core
with core.init() as context, context.checkpoint.store_path({'steps_completed': 1}) as (folder, _):
    (folder / "half").write_text("x")
    print("folder", folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
DEAF = JOIN + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n" + LOOP


async def test_an_orderly_stop_lets_the_ranks_finish(world: World) -> None:
    (runner,) = await world.start(OBEDIENT, (1,))
    await world.wait_pids(1)
    runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert report.kind is ExitKind.PREEMPTED, report
    assert report.message == "stopped after a checkpoint: asked by a signal"
    assert "saved" in world.gateway.lines("stdout")


async def test_ranks_that_do_not_stop_in_time_are_killed(world: World) -> None:
    (runner,) = await world.start(DEAF, (2,), config={"preemption_timeout": 1})
    await world.wait_pids(2)
    await world.gateway.wait_line("ready")
    asked_at = time.time()
    runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert report.kind is ExitKind.PREEMPTED
    assert report.message.startswith("had not stopped in time and was killed")
    assert 1 <= report.ended_at - asked_at < 3
    assert living(world.rank_pids()) == []


async def test_a_kill_ends_the_ranks_at_once(world: World) -> None:
    (runner,) = await world.start(DEAF, (2,))
    await world.wait_pids(2)
    runner.kill(signal.SIGQUIT)
    report = await runner.wait()
    assert report.kind is ExitKind.KILLED
    (line,) = [line for line in world.gateway.lines("runner") if line.startswith("all ranks of a1 were gone ")]
    assert line.endswith(" s after they had to end")
    assert float(line.split()[6]) < 1.0
    assert living(world.rank_pids()) == []


async def test_a_stop_before_the_ranks_run_ends_the_preparation(world: World) -> None:
    await world.prepare(JOIN, (1, 1))
    runner = world.launch(0)
    await until(lambda: world.scheduler.num_joins == 1, "the rendezvous")
    runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert report.kind is ExitKind.PREEMPTED
    assert report.message == "stopped before its ranks started: asked by a signal"


async def test_what_a_killed_rank_was_writing_goes_with_it(world: World) -> None:
    (runner,) = await world.start(HALF_SAVED, (1,))
    report = await runner.wait()
    assert report.kind is ExitKind.SIGNAL, report
    [line] = [line for line in world.gateway.lines("stdout") if line.startswith("folder ")]
    folder = Path(line.removeprefix("folder "))
    assert folder.parent == runner.directory / "ranks"
    assert not folder.parent.exists()


async def test_the_reason_and_the_time_of_a_stop_are_read_from_the_agents_record(world: World) -> None:
    (runner,) = await world.start(DEAF, (1,))
    await world.wait_pids(1)
    await world.gateway.wait_line("ready")
    deadline = time.time() + 4
    stop = {"kind": "PREEMPTED", "reason": "preempted by 9.1", "deadline_at": deadline}
    (runner.directory / "record.json").write_text(json.dumps({"stop": stop}))
    runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert "asked to stop: preempted by 9.1" in report.message
    assert report.ended_at < deadline


async def test_a_corrupted_archive_is_one_clear_line(world: World) -> None:
    await world.prepare("print('never')", (1,))
    ((sha256, content),) = world.gateway.archives.items()
    world.gateway.archives[sha256] = content[:-20] + b"x" * 20
    report = await world.launch(0).wait()
    assert report.kind is ExitKind.CONFIGURATION_ERROR
    assert report.message.startswith(f"the code archive {sha256[:12]} is corrupt: its bytes have sha256")
    assert "\n" not in report.message
    assert world.gateway.lines("runner") == [f"CONFIGURATION_ERROR: {report.message}"]


async def test_a_missing_archive_is_one_clear_line(world: World) -> None:
    await world.prepare("print('never')", (1,))
    world.gateway.archives.clear()
    report = await world.launch(0).wait()
    assert report.kind is ExitKind.START_FAILED
    assert f"no code {world.specs[0].code_sha256[:12]}" in report.message


async def test_a_spec_that_cannot_be_read_is_one_clear_line(world: World) -> None:
    directory = world.host("a1").directory("7.1.1")
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text('{"allocation": ')
    report = await world.host("a1").start_in(directory).wait()
    assert report.kind is ExitKind.START_FAILED
    assert report.message.startswith(f"cannot read {directory}/spec.json: no RunnerSpec in JSON")


async def test_a_second_runner_in_the_same_folder_gives_way(world: World) -> None:
    (runner,) = await world.start(JOIN + LOOP, (1,))
    await world.wait_pids(1)
    await world.host("a1").start_in(runner.directory).gone(10)
    assert living([runner.pid]) == [runner.pid]
    assert not (runner.directory / "exit.json").exists()
    runner.kill(signal.SIGQUIT)
    assert (await runner.wait()).kind is ExitKind.KILLED


async def test_ranks_start_cold_without_a_warm_process(world: World) -> None:
    await world.prepare(JOIN + "print('up', flush=True)", (1,))
    host = world.host("a1")
    host.rank_template = ""
    report = await host.start(world.specs[0]).wait()
    assert report.kind is ExitKind.COMPLETED, report
    assert "up" in world.gateway.lines("stdout")
