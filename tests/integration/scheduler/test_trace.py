"""An order to trace through a real scheduler process, and what a change of leader makes of it."""

from __future__ import annotations

import pytest

from gangline.domain.state import State
from gangline.errors import GanglineError
from gangline.v1 import runner_pb2
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import Caller, config_json
from tests.support.scripted_agent import ScriptedRunner


def _progress(batches: int) -> runner_pb2.ProgressReport:
    return runner_pb2.ProgressReport(batches_completed=batches, takes_traces=True)


async def _refusal(caller: Caller, trial_id: str) -> str:
    with pytest.raises(GanglineError) as caught:
        await caller.profile_trial(trial_id, 3)
    return caught.value.code


async def test_an_order_reaches_the_chiefs_runner_once_and_is_lost_with_its_leader(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    first, second = await bench.agent("a1"), await bench.agent("a2")
    await bench.caller.submit(config_json(slots=4))
    assert await _refusal(bench.caller, "9.1") == "trial.not_found"
    [spec], [other] = await first.started(), await second.started()
    chief, peer = sorted(
        (ScriptedRunner(runner_spec, scheduler.address) for runner_spec in (spec, other)),
        key=lambda runner: runner.spec.node_rank,
    )
    assert await _refusal(bench.caller, "1.1") == "trial.not_running"
    await chief.run()
    await peer.run()
    await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.RUNNING)
    assert await _refusal(bench.caller, "1.1") == "trace.no_batch"
    await chief.report(progress=_progress(1))

    order = await bench.caller.profile_trial("1.1", 3)
    assert (order.trial_id, order.allocation_id, order.batches) == ("1.1", "1.1.1", 3)
    assert order.tensorboard_url.endswith("/tensorboard/1.1")
    assert not (await peer.report(progress=_progress(2))).HasField("trace")
    assert (await chief.report(progress=_progress(2))).trace == order
    assert not (await chief.report(progress=_progress(3))).HasField("trace")

    await bench.caller.profile_trial("1.1", 4, "p2")
    scheduler.end()
    await scheduler.start()
    chief = ScriptedRunner(chief.spec, scheduler.address)
    assert await _refusal(bench.caller, "1.1") == "trace.no_batch"
    assert not (await chief.report(progress=_progress(4))).HasField("trace")
    await bench.caller.profile_trial("1.1", 5)
    assert (await chief.report(progress=_progress(5))).trace.batches == 5


async def test_a_runner_of_an_older_version_takes_no_order(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    await runner.report(progress=runner_pb2.ProgressReport(batches_completed=1))
    assert await _refusal(bench.caller, "1.1") == "trace.no_trainer"
