"""Operating a queue and its agents, through a real scheduler: drain, disable, slots that fall ill, moves, dumps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.domain.id import describe_allocation
from gangline.domain.resource import Slot
from gangline.domain.state import Availability, ExitKind, ExperimentAction, State
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import types_pb2
from services.scheduler.placement import plan
from services.scheduler.placement.simulation_file import parse_simulation
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.wait import until, until_async

SECONDS = 60.0


async def _reason(bench: Bench, trial_id: str) -> types_pb2.Reason:
    """Of a trial that waits by etcd. The leader knows that a moment later than etcd does."""

    async def find() -> types_pb2.Reason | None:
        standings = await bench.caller.list_pending()
        return next((standing.reason for standing in standings if standing.request.trial_id == trial_id), None)

    return await until_async(find, f"the reason of trial {trial_id}", SECONDS)


async def _refusal(call: object) -> tuple[str, ErrorKind, str]:
    with pytest.raises(GanglineError) as caught:
        await call  # type: ignore[misc]  # a coroutine of the caller
    return caught.value.code, caught.value.kind, caught.value.message


async def test_drain_then_enable(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json())
    await agent.started()
    drained = await bench.caller.change_agent("a1", Availability.DRAINING)
    assert drained.agent.availability == types_pb2.AVAILABILITY_DRAINING
    assert drained.revision > 0
    await bench.caller.submit(config_json())
    reason = await _reason(bench, "2.1")
    assert reason.code == types_pb2.REASON_CODE_AGENTS_UNHEALTHY
    assert "a1 is being drained by an administrator; enable it with: gangline agent enable a1" in reason.message
    assert json.loads(reason.changes_json) == [{"kind": "enable_agents", "agent_ids": ["a1"], "excluded": []}]
    # What an agent says of itself counts for nothing, and a new leader knows as well.
    await agent.disconnect()
    bench.schedulers[0].end()
    await bench.schedulers[0].start()
    await agent.connect()
    assert not agent.stops
    record = await bench.record("a1")
    assert record is not None
    assert record.availability is Availability.DRAINING
    again = await bench.caller.change_agent("a1", Availability.ENABLED)
    assert again.agent.availability == types_pb2.AVAILABILITY_ENABLED
    await until(lambda: "2.1.1" in agent.specs, "the start after the drain", SECONDS)


async def test_a_disabled_slot_is_emptied_and_serves_again_when_enabled(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json(preemption_timeout=300))
    await bench.caller.submit(config_json(preemption_timeout=300))
    specs = {spec.slots[0].id: spec.allocation for spec in await agent.started(2)}
    stopped = specs["a1/1"]
    changed = await bench.caller.change_agent("a1", Availability.DISABLED, "a1/1")
    assert [slot.availability for slot in changed.agent.slots] == [
        types_pb2.AVAILABILITY_ENABLED,
        types_pb2.AVAILABILITY_DISABLED,
    ]
    await until(lambda: stopped.id in agent.stops, "the slot being emptied", SECONDS)
    stop = agent.stops[stopped.id]
    assert (stop.kind, stop.reason) == (types_pb2.EXIT_KIND_PREEMPTED, "slot a1/1 is disabled")
    assert 290 < stop.grace_seconds <= 300
    trial = await bench.eventually(
        lambda: bench.trial(stopped.trial_id), lambda trial: trial.state is State.QUEUED, SECONDS
    )
    assert (trial.restarts, trial.infrastructure_failures) == (0, 0)
    assert list(agent.stops) == [stopped.id]
    assert (await _reason(bench, stopped.trial_id)).code == types_pb2.REASON_CODE_NO_CAPACITY
    await bench.caller.change_agent("a1", Availability.ENABLED, "a1/1")
    await until(lambda: f"{stopped.trial_id}.2" in agent.specs, "the start on the slot", SECONDS)


async def test_a_slot_that_falls_ill_and_gets_well_while_its_agent_is_connected(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.change_agent("a1", Availability.DRAINING, "a1/0")
    first, second = agent.record.slots
    agent.tell_slots([first, replace(second, is_healthy=False, problem="XID 79")])
    await bench.eventually(
        lambda: bench.record("a1"), lambda agent_record: not agent_record.slots[1].is_healthy, SECONDS
    )
    await bench.caller.submit(config_json())
    assert (await _reason(bench, "1.1")).code == types_pb2.REASON_CODE_AGENTS_UNHEALTHY
    # The scheduler's word on the other slot stays, and nothing but the agent's message wakes the planner.
    agent.tell_slots([first, second])
    [spec] = await agent.started()
    assert [slot.id for slot in spec.slots] == ["a1/1"]
    record = await bench.record("a1")
    assert record is not None
    assert record.slots[0].availability is Availability.DRAINING


async def test_an_agent_that_comes_back_with_fewer_slots_than_its_work_holds(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    await bench.caller.submit(config_json(slots=4, max_restarts=0))
    await agent.started()
    await agent.disconnect()
    agent.record = replace(agent.record, slots=agent.record.slots[:2])
    await agent.connect()
    await until(lambda: "1.1.1" in agent.stops, "the end of what lost its slots", SECONDS)
    assert agent.stops["1.1.1"].kind == types_pb2.EXIT_KIND_KILLED
    assert agent.stops["1.1.1"].reason == "agent a1: no longer has slots a1/2, a1/3, held by trial 1.1, attempt 1"
    trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED, SECONDS)
    assert (trial.restarts, trial.infrastructure_failures) == (0, 1)
    assert trial.last_failure is not None
    assert (trial.last_failure.agent_id, trial.last_failure.kind) == ("a1", ExitKind.AGENT_LOST)
    other = await bench.agent("a2", slots=4)
    [spec] = await other.started()
    assert spec.allocation.id == "1.1.2"


async def test_an_agent_that_misses_a_slot_while_it_is_connected(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    for _ in range(2):
        await bench.caller.submit(config_json())
    held = {spec.slots[0].id: spec.allocation.id for spec in await agent.started(2)}
    agent.tell_slots([Slot("a1/0")])
    await until(lambda: held["a1/1"] in agent.stops, "the end of what lost its slot", SECONDS)
    assert held["a1/0"] not in agent.stops
    assert (
        agent.stops[held["a1/1"]].reason
        == f"agent a1: no longer has slot a1/1, held by {describe_allocation(held['a1/1'])}"
    )


async def test_moves_and_live_changes(bench: Bench) -> None:
    await bench.scheduler()
    for _ in range(3):
        await bench.caller.submit(config_json())
    moved = await bench.caller.move(3, 1)
    assert moved.experiment.queue_position < moved.experiment.created_at
    await bench.caller.set_resources(2, priority=5, weight=2, max_slots=4)
    order = [standing.request.trial_id for standing in await bench.caller.list_pending()]
    assert order == ["2.1", "3.1", "1.1"]
    agent = await bench.agent("a1", slots=1)
    for trial_id in order:
        await until(lambda: f"{trial_id}.1" in agent.specs, f"the start of {trial_id}", SECONDS)  # noqa: B023 - called at once
        agent.finish(f"{trial_id}.1", ExitKind.COMPLETED)


async def test_a_dump_is_planned_alike_by_whoever_reads_it(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    await bench.caller.submit(config_json(slots=3))
    await agent.started()
    await bench.caller.submit(config_json(slots=2))
    await bench.caller.submit(config_json(slots=4))
    await bench.caller.change(3, ExperimentAction.PAUSE)
    again = parse_simulation(await bench.caller.snapshot())
    decided = plan(again.snapshot, again.now)
    pending = await bench.caller.list_pending()
    assert [standing.request.trial_id for standing in pending] == list(decided.reasons) == ["2.1", "3.1"]
    assert [standing.reason.code for standing in pending] == [
        types_pb2.REASON_CODE_NO_CAPACITY,
        types_pb2.REASON_CODE_PAUSED,
    ]
    assert pending[0].reason.message == decided.reasons["2.1"].message
    assert pending[1].reason.message == "experiment 3 is paused by ann"
    assert pending[1].reason.would_start_if.startswith("it is activated (gangline experiment activate 3)")
    assert await _refusal(bench.caller.snapshot("lab")) == (
        "pool.not_found",
        ErrorKind.NOT_FOUND,
        "there is no pool 'lab'; the pools are default",
    )


async def test_default_priorities_of_configured_pools_and_of_those_that_agents_name(
    bench: Bench, tmp_path: Path
) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text('[[resource_pools]]\npool_name = "lab"\nscheduler = { default_priority = 7 }\n')
    await bench.scheduler("s1", "--settings", str(settings))
    await bench.agent("a1", slots=1)
    assert await bench.caller.default_priorities() == {"default": 42, "lab": 7}


async def test_what_cannot_be_asked_for(bench: Bench, tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text('[[resource_pools]]\npool_name = "lab"\n')
    await bench.scheduler("s1", "--settings", str(settings))
    await bench.agent("a1", slots=1)
    caller = bench.caller
    await caller.submit(config_json())
    await caller.submit(config_json(resources={"resource_pool": "lab"}))
    refusals = [
        await _refusal(caller.change_agent("a2", Availability.DRAINING)),
        await _refusal(caller.change_agent("a1", Availability.DISABLED, "a1/9")),
        await _refusal(caller.change_agent("a1", None)),
        await _refusal(caller.move(1, 2)),
        await _refusal(caller.set_resources(1, priority=100)),
        await _refusal(caller.set_resources(1, weight=-1)),
        await _refusal(caller.set_resources(1)),
        await _refusal(caller.change_as(1)),
        await _refusal(caller.change_as(1, action=1, move=types_pb2.QueueMove(anchor_experiment_id=2))),
        await _refusal(caller.snapshot()),
    ]
    told = [f"{code}: {message}" for code, _, message in refusals]
    assert told == [
        "agent.not_found: there is no agent 'a2'; did you mean 'a1'? the only agent is a1",
        "slot.not_found: agent a1 has no slot 'a1/9'; did you mean 'a1/0'? the only slot is a1/0",
        "request.availability: 0 is no availability that this version knows",
        "queue.other_pool: experiment 1 is in pool 'default' and experiment 2 in pool 'lab'; each pool has a queue of "
        "its own, so name one of the same pool",
        "resources.priority: priority 100 is out of range; give 1 (most urgent) to 99",
        "resources.weight: weight -1 is out of range; give 0 or more",
        "resources.nothing: nothing is to be changed; give a priority, a weight or max_slots",
        "request.not_one: a change is one of action, resources, move, texts and retention; this one has none",
        "request.not_one: a change is one of action, resources, move, texts and retention; "
        "this one has action and move",
        "pool.unnamed: name one of the pools: default, lab",
    ]
    assert [kind for _, kind, _ in refusals][:2] == [ErrorKind.NOT_FOUND] * 2


async def test_every_request_that_waits_has_a_reason(bench: Bench) -> None:
    """I8, for each thing that can be in the way at once."""
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json(slots=2, max_restarts=3))
    await agent.started()
    for _ in range(4):
        await bench.caller.submit(config_json(slots=2))
    await bench.caller.submit(config_json(resources={"slots_per_trial": 1, "is_single_node": True}))
    await bench.caller.change(2, ExperimentAction.PAUSE)
    # The first failure is tried again at once.
    for allocation_id in ("1.1.1", "1.1.2"):
        await until(lambda: allocation_id in agent.specs, f"the start of {allocation_id}", SECONDS)  # noqa: B023 - called at once
        agent.finish(allocation_id, ExitKind.USER_ERROR, "boom", rank=0)

    async def backs_off() -> bool:
        code_by_trial_id = {
            standing.request.trial_id: standing.reason.code for standing in await bench.caller.list_pending()
        }
        return code_by_trial_id.get("1.1") == types_pb2.REASON_CODE_BACKOFF_AFTER_FAILURE

    await until_async(backs_off, "the wait after a failure", SECONDS)
    pending = await bench.caller.list_pending()
    assert {standing.request.trial_id for standing in pending} >= {"1.1", "2.1", "4.1"}
    for standing in pending:
        assert standing.reason.message, standing
        assert standing.reason.would_start_if, standing
        assert json.loads(standing.reason.changes_json), standing
