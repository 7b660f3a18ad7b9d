"""An order to trace on its way from the scheduler's answer to the chief's training process."""

from __future__ import annotations

from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import World

TRAINS = """
import os, time
from gangline.core.link import connect
link = connect()
link.takes_traces = True
if os.environ["RANK"] == "0":
    link.send_progress(1, 10, 64.0, 0.01)
    while not (batches := link.take_trace()):
        time.sleep(0.01)
    print("to trace:", batches, flush=True)
"""
LAUNCHES = "import subprocess, sys\nsubprocess.run([sys.executable, 'worker.py'], check=True)\n"


async def test_an_order_reaches_the_chief(world: World) -> None:
    await world.prepare(TRAINS, (2,))
    world.scheduler.traces = [7]
    world.launch(0)
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED
    assert world.gateway.lines("stdout") == ["to trace: 7"]
    assert [report.takes_traces for report in world.scheduler.reports_of("progress")] == [True]


async def test_an_order_reaches_the_worker_that_trains_for_the_chief(world: World) -> None:
    """Its launcher, which has a link too, says nothing of it."""
    await world.prepare(LAUNCHES, (1,), files={"worker.py": TRAINS})
    world.scheduler.traces = [7]
    world.launch(0)
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED
    assert world.gateway.lines("stdout") == ["to trace: 7"]
    assert world.gateway.lines("stderr") == []
