"""A gang of real processes in which a rank stops moving: everybody's stacks are told, and the gang ends."""

from __future__ import annotations

import os
import signal
import time

from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import World
from tests.support.runner_process import living

WATCHED = {"hang_detection": {"enabled": True, "seconds": 1, "factor": 1}}
STAND = """
import os, threading, time, torch, torch.distributed as dist
from gangline import core

dist.init_process_group("gloo")
rank = dist.get_rank()
print("pid", os.getpid(), flush=True)

def stand_still():
    print("standing", flush=True)
    threading.Event().wait()

with core.init() as context:
    for batch in range(1, 9):
        if (rank, batch) == (2, 5):
            stand_still()
        context.preempt.should_preempt()
        if rank == 0:
            context.train.report_training_metrics(batch, {"loss": 1.0})
        dist.all_reduce(torch.zeros(1))
"""
STOPPED = """
import os, threading, time
from gangline import core

with core.init(preempt_mode=core.PreemptMode.WorkersAskMaster) as context:
    # It is watched from its first call on.
    context.preempt.should_preempt()
    print("pid", os.getpid(), flush=True)
    while True:
        context.preempt.should_preempt()
        time.sleep(0.02)
"""


async def test_a_rank_that_stands_still_is_named_and_all_stacks_are_told(world: World) -> None:
    await world.start(STAND, (2, 2), config=WATCHED)
    await world.gateway.wait_line("standing")
    first, second = await world.wait(20)
    assert (second.kind, second.rank) == (ExitKind.HANG, 2), second
    assert second.message.startswith("hung: it has stood still for ")
    assert second.signature == "HANG"
    assert any("in stand_still" in line for line in second.last_lines[-4:]), second.last_lines
    assert first.kind is ExitKind.PEER_FAILED
    assert "rank 2 on a2 failed first: hung" in first.message
    told = world.gateway.lines("runner")
    for rank, agent in enumerate(("a1", "a1", "a2", "a2")):
        assert f"the stacks of rank {rank} on {agent}:" in told
        assert any("most recent call first" in line for line in world.gateway.lines("runner", rank))
    assert any("in stand_still" in line for line in world.gateway.lines("runner", 2))
    assert any("in all_reduce" in line or "broadcast" in line for line in world.gateway.lines("runner", 0))
    assert living(world.rank_pids()) == []


async def test_a_rank_that_cannot_dump_its_stacks_holds_nobody_up(world: World) -> None:
    await world.start(STOPPED, (1,), config=WATCHED)
    (pid,) = await world.wait_pids(1)
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time.time()
    (report,) = await world.wait(20)
    assert (report.kind, report.rank) == (ExitKind.HANG, 0), report
    assert report.ended_at - stopped_at < 10
    assert (
        world.gateway.lines("runner").count(
            "no stacks of rank 0 on a1: it dumped none within 2 s: it is stopped (SIGSTOP)"
        )
        == 1
    )
    assert living([pid]) == []


async def test_a_script_that_does_not_ask_for_it_may_stand_as_long_as_it_likes(world: World) -> None:
    script = STOPPED.replace("time.sleep(0.02)", "time.sleep(4)\n        break")
    await world.start(script, (1,), config={"hang_detection": {"seconds": 0.5}})
    (report,) = await world.wait(20)
    assert report.kind is ExitKind.COMPLETED, report
