"""Urgent work takes the place of less urgent work, through a real scheduler: who is stopped checkpoints first, loses
nothing and comes back; who waited starts as soon as the slots are free."""

from __future__ import annotations

import json
from pathlib import Path

from gangline.domain.state import ExitKind, Outcome, State
from gangline.v1 import types_pb2
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent, ScriptedRunner
from tests.support.wait import until

SECONDS = 60.0


def _config(slots: int, priority: int, **fields: object) -> str:
    """The pool's settings are the defaults in all of these tests."""
    resources = fields.pop("resources", {})
    assert isinstance(resources, dict)
    return config_json(slots, **fields, resources={"slots_per_trial": slots, "priority": priority, **resources})


async def _stopped(agent: ScriptedAgent, allocation_id: str) -> None:
    await until(lambda: allocation_id in agent.stops, f"{allocation_id} being stopped", SECONDS)
    stop = agent.stops[allocation_id]
    assert stop.kind == types_pb2.EXIT_KIND_PREEMPTED


async def test_urgent_work_has_less_urgent_work_checkpoint_and_start_again_later(bench: Bench) -> None:
    scheduler = await bench.scheduler("s1")
    agent = await bench.agent("a1", obeys_stop=False)
    await bench.caller.submit(_config(2, 50, max_restarts=0, preemption_timeout=600))
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    await bench.caller.submit(_config(2, 1))
    # 1. The victim is asked, with its own timeout, and who waits says for whom.
    await _stopped(agent, "1.1.1")
    assert agent.stops["1.1.1"].reason == "makes room for trial 2.1"
    assert 590 < agent.stops["1.1.1"].grace_seconds <= 600
    [waiting] = await bench.caller.list_pending()
    assert waiting.request.trial_id == "2.1"
    assert waiting.reason.code == types_pb2.REASON_CODE_WAITING_FOR_PREEMPTION
    assert list(waiting.reason.blocking_ids) == ["1.1.1"]
    assert json.loads(waiting.reason.changes_json) == [{"kind": "end_work", "allocation_ids": ["1.1.1"]}]
    assert waiting.reason.HasField("eta_at")
    # 2. It saves what it has and ends; the urgent one starts on its slots.
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c1", batches_completed=50, url="/x/checkpoints/c1"))
    agent.finish("1.1.1", ExitKind.PREEMPTED)
    [urgent] = await agent.started()
    assert urgent.allocation.id == "2.1.1"
    trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED, SECONDS)
    assert (trial.restarts, trial.infrastructure_failures, trial.reason) == (0, 0, "makes room for trial 2.1")
    # 3. It comes back from its checkpoint, though it may not restart once.
    agent.finish("2.1.1", ExitKind.COMPLETED)
    await until(lambda: "1.1.2" in agent.specs, "the victim's second attempt", SECONDS)
    assert agent.specs["1.1.2"].latest_checkpoint.id == "c1"
    agent.finish("1.1.2", ExitKind.COMPLETED)
    ended = await bench.eventually(
        lambda: bench.experiment(1), lambda experiment: experiment.outcome is not None, SECONDS
    )
    assert ended.outcome is Outcome.COMPLETED


async def test_work_that_cannot_go_on_from_a_checkpoint_is_left_alone(bench: Bench) -> None:
    await bench.scheduler("s1")
    agent = await bench.agent("a1")
    await bench.caller.submit(_config(1, 50, resources={"preemptible": False}))
    await bench.caller.submit(_config(1, 50))
    await agent.started(2)
    await bench.caller.submit(_config(1, 1))
    await until(lambda: "3.1.1" in agent.specs, "the urgent trial's start", SECONDS)
    assert set(agent.stops) == {"2.1.1"}
    await bench.caller.submit(_config(2, 1))
    await until(lambda: "3.1.1" in agent.specs, "the urgent trial's start", SECONDS)
    waiting = {standing.request.trial_id: standing.reason for standing in await bench.caller.list_pending()}
    assert waiting["4.1"].code == types_pb2.REASON_CODE_NO_CAPACITY
    assert set(agent.stops) == {"2.1.1"}


async def test_a_gang_takes_the_place_of_several_and_starts_whole(bench: Bench) -> None:
    await bench.scheduler("s1")
    first, second = await bench.agent("a1", obeys_stop=False), await bench.agent("a2", obeys_stop=False)
    for _ in range(2):
        await bench.caller.submit(_config(2, 42))
    for agent in (first, second):
        await agent.started()
    await bench.caller.submit(_config(4, 1))
    for agent in (first, second):
        [held] = agent.journal
        await _stopped(agent, held)
    [held] = first.journal
    first.finish(held, ExitKind.PREEMPTED)
    [waiting] = [standing for standing in await bench.caller.list_pending() if standing.request.trial_id == "3.1"]
    assert waiting.reason.code == types_pb2.REASON_CODE_WAITING_FOR_PREEMPTION
    [held] = second.journal
    second.finish(held, ExitKind.PREEMPTED)
    for agent in (first, second):
        await until(lambda: "3.1.1" in agent.specs, "the gang's start", SECONDS)  # noqa: B023 - called at once


async def test_a_raised_priority_is_enough(bench: Bench) -> None:
    """Nothing else happens: the change itself wakes the planner."""
    await bench.scheduler("s1")
    agent = await bench.agent("a1")
    await bench.caller.submit(_config(2, 42))
    await agent.started()
    await bench.caller.submit(_config(2, 42))
    [waiting] = await bench.caller.list_pending()
    assert waiting.reason.code == types_pb2.REASON_CODE_NO_CAPACITY
    changed = await bench.caller.set_resources(2, priority=3)
    assert json.loads(changed.experiment.config_json)["resources"]["priority"] == 3
    await until(lambda: "2.1.1" in agent.specs, "the start of what became urgent", SECONDS)
    assert agent.stops["1.1.1"].reason == "makes room for trial 2.1"
    pending = await bench.caller.list_pending()
    assert [standing.request.trial_id for standing in pending] == ["1.1"]


async def test_equal_priority_stops_nobody(bench: Bench) -> None:
    await bench.scheduler("s1")
    agent = await bench.agent("a1")
    await bench.caller.submit(_config(2, 42))
    await agent.started()
    for _ in range(3):
        await bench.caller.submit(_config(1, 42))
    assert len(await bench.caller.list_pending()) == 3
    assert not agent.stops


async def test_who_passed_a_gang_on_call_is_stopped_once_that_starts_it(bench: Bench) -> None:
    scheduler = await bench.scheduler("s1")
    agent = await bench.agent("a1", obeys_stop=False)
    # 1. The gang waits for the first; the last passes it, though nobody knows how long it takes.
    await bench.caller.submit(_config(1, 42))
    await until(lambda: "1.1.1" in agent.specs, "the first's start", SECONDS)
    await bench.caller.submit(_config(2, 42))
    await bench.caller.submit(_config(1, 42, max_restarts=0, preemption_timeout=600))
    await until(lambda: "3.1.1" in agent.specs, "the start of the one on call", SECONDS)
    marked = [await bench.allocation(allocation_id) for allocation_id in ("1.1.1", "3.1.1")]
    assert [standing is not None and standing.is_on_call for standing in marked] == [False, True]
    [waiting] = await bench.caller.list_pending()
    assert list(waiting.reason.blocking_ids) == ["1.1.1"]
    assert "1 more will be freed for it as soon as that is enough" in waiting.reason.message
    snapshot = json.loads(await bench.caller.snapshot())
    assert snapshot["config"]["backfill"] == "on_call"
    assert {task["id"]: task.get("on_call", False) for task in snapshot["tasks"]} == {
        "1.1.1": False,
        "3.1.1": True,
        "2.1": False,
    }
    assert not agent.stops
    # 2. The first ends, also under a new leader: the one on call is asked to checkpoint, with its own timeout.
    scheduler.end()
    await bench.scheduler("s2")
    agent.finish("1.1.1", ExitKind.COMPLETED)
    await _stopped(agent, "3.1.1")
    assert agent.stops["3.1.1"].reason == "makes room for trial 2.1"
    assert 590 < agent.stops["3.1.1"].grace_seconds <= 600
    # 3. The gang starts on its slots, and it comes back after that, though it may not restart once.
    agent.finish("3.1.1", ExitKind.PREEMPTED)
    await until(lambda: "2.1.1" in agent.specs, "the gang's start", SECONDS)
    agent.finish("2.1.1", ExitKind.COMPLETED)
    await until(lambda: "3.1.2" in agent.specs, "its second attempt", SECONDS)
    trial = await bench.trial("3.1")
    assert trial is not None
    assert (trial.restarts, trial.infrastructure_failures) == (0, 0)


async def _pool(bench: Bench, tmp_path: Path, scheduler: str) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text(f'[[resource_pools]]\npool_name = "default"\nscheduler = {{ {scheduler} }}\n')
    await bench.scheduler("s1", "--settings", str(settings))


async def test_a_request_behind_a_gang_takes_the_place_of_less_urgent_work(bench: Bench) -> None:
    """The gang waits for work that is as urgent as it is; what is less urgent has no claim to run meanwhile."""
    await bench.scheduler("s1")
    agent = await bench.agent("a1", slots=4, obeys_stop=False)
    await bench.caller.submit(_config(2, 10))
    await bench.caller.submit(_config(2, 80))
    await agent.started(2)
    await bench.caller.submit(_config(4, 10))
    await bench.caller.submit(_config(2, 42))
    await _stopped(agent, "2.1.1")
    assert agent.stops["2.1.1"].reason == "makes room for trial 4.1"
    agent.finish("2.1.1", ExitKind.PREEMPTED)
    await until(lambda: "4.1.1" in agent.specs, "the start on call", SECONDS)
    # The gang has it stopped as soon as that is enough.
    assert agent.stops.keys() == {"2.1.1"}
    agent.finish("1.1.1", ExitKind.COMPLETED)
    await _stopped(agent, "4.1.1")
    agent.finish("4.1.1", ExitKind.PREEMPTED)
    await until(lambda: "3.1.1" in agent.specs, "the gang's start", SECONDS)


async def test_a_pool_that_gives_by_shares_takes_back_what_is_beyond_a_share(bench: Bench, tmp_path: Path) -> None:
    await _pool(bench, tmp_path, 'type = "fair_share"')
    agent = await bench.agent("a1", slots=4, obeys_stop=False)
    searcher = {"name": "random", "metric": "loss", "max_trials": 4, "max_concurrent_trials": 4}
    await bench.caller.submit(config_json(searcher=searcher))
    await agent.started(4)
    await bench.caller.submit(config_json())
    await until(lambda: len(agent.stops) == 1, "one stop", SECONDS)
    [allocation_id] = agent.stops
    agent.finish(allocation_id, ExitKind.PREEMPTED)
    await until(lambda: "2.1.1" in agent.specs, "the start of the other experiment", SECONDS)


async def test_a_gang_starts_at_the_first_end_although_others_were_expected_to_end_with_it(
    bench: Bench, tmp_path: Path
) -> None:
    """Nothing is known of run times, so the three seem to end at once; the free slot is kept all the same."""
    await _pool(bench, tmp_path, "preemption = false")
    agent = await bench.agent("a1", slots=4)
    for _ in range(3):
        await bench.caller.submit(config_json())
    await agent.started(3)
    await bench.caller.submit(config_json(slots=2))
    await bench.caller.submit(_config(1, 60))
    waiting = await bench.caller.list_pending()
    assert [(standing.request.trial_id, standing.reason.code) for standing in waiting] == [
        ("4.1", types_pb2.REASON_CODE_NO_CAPACITY),
        ("5.1", types_pb2.REASON_CODE_BEHIND_RESERVATION),
    ]
    agent.finish("2.1.1", ExitKind.COMPLETED)
    await until(lambda: "4.1.1" in agent.specs, "the gang's start", SECONDS)
    assert "5.1.1" not in agent.specs
