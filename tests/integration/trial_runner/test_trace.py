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
SCRIPT = """
import os, time
from gangline import core
with core.init() as context:
    context.train.report_training_metrics(5, {"loss": 0.5})
    context.train.report_progress(0.5)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


async def test_an_order_reaches_the_chief(world: World) -> None:
    await world.prepare(TRAINS, (2,))
    world.scheduler.traces = [7]
    world.launch(0)
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED
    assert world.gateway.lines("stdout") == ["to trace: 7"]
    assert [found.takes_traces for found in world.scheduler.reports_of("progress")] == [True]


async def test_a_script_without_a_trainer_says_so_in_its_log(world: World) -> None:
    await world.prepare(SCRIPT, (1,))
    world.scheduler.traces = [7]
    runner = world.launch(0)
    await world.gateway.wait_line("a trace was ordered, but this script has no trainer running")
    (runner.directory / "code" / "go").touch()
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED
    assert [found.takes_traces for found in world.scheduler.reports_of("progress")] == [False]
