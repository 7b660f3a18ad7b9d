"""An experiment's life through a real scheduler process: submitted, placed, started, run, ended."""

from __future__ import annotations

import asyncio

import pytest

from gangline.domain.state import ExitKind, Outcome, ReasonCode, State
from gangline.errors import Effect, GanglineError
from gangline.v1 import types_pb2
from services.common import keys
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import Caller, config_json
from tests.support.scripted_agent import ScriptedRunner, validation_of


async def test_from_submit_to_completed(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    submitted = await bench.caller.submit(config_json(slots=2))
    experiment_id = submitted.experiment.id
    [spec] = await agent.started()
    assert (spec.allocation.id, spec.node_rank) == (f"{experiment_id}.1.1", 0)
    assert [slot.id for slot in spec.slots] == ["a1/0", "a1/1"]
    assert spec.scheduler_addresses == [scheduler.address]

    runner = ScriptedRunner(spec, scheduler.address)
    joined = await runner.join()
    assert joined.chosen.candidate.endpoints[0].address == "127.0.0.1"
    await runner.run()
    running = await bench.eventually(
        lambda: bench.experiment(experiment_id), lambda experiment: experiment.state is State.RUNNING
    )
    assert running.outcome is None
    await runner.report(metrics=validation_of(10, {"accuracy": 0.9}))
    checkpoint = types_pb2.Checkpoint(id="c1", batches_completed=10, url="/x/checkpoints/c1", file_bytes={"state": 3})
    await runner.report(checkpoint=checkpoint)

    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    ended = await bench.eventually(
        lambda: bench.experiment(experiment_id), lambda experiment: experiment.state is State.TERMINAL
    )
    assert ended.outcome is Outcome.COMPLETED
    trial = await bench.trial(f"{experiment_id}.1")
    assert trial is not None
    assert (trial.outcome, trial.latest_checkpoint_id, trial.batches_completed) == (Outcome.COMPLETED, "c1", 10)
    assert trial.validation_json == '{"accuracy": 0.9}'
    assert trial.timeline.ranks_up_at > trial.timeline.placed_at >= trial.timeline.queued_at > 0
    assert await bench.allocation(spec.allocation.id) is None


async def test_gang_over_two_agents_meets_and_ends_as_one(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    first, second = await bench.agent("a1"), await bench.agent("a2")
    await bench.caller.submit(config_json(slots=4, max_restarts=0))
    [spec_1], [spec_2] = await first.started(), await second.started()
    runners = [ScriptedRunner(spec, scheduler.address) for spec in (spec_1, spec_2)]
    joined = await asyncio.gather(*(runner.join(4000 + rank) for rank, runner in enumerate(runners)))
    assert [answer.chosen.candidate for answer in joined] == [joined[0].chosen.candidate] * 2
    assert [endpoint.agent_id for endpoint in joined[0].chosen.candidate.endpoints] == ["a1", "a2"]
    for runner in runners:
        await runner.run()
    second.finish(spec_2.allocation.id, ExitKind.USER_ERROR, "ValueError: no", rank=3)
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.FAILED
    assert "rank 3 on agent a2: ValueError: no" in ended.reason
    assert spec_1.allocation.id in first.stops


async def test_submit_is_idempotent(bench: Bench) -> None:
    await bench.scheduler()
    first = await bench.caller.submit(config_json(), request_id="r1")
    again = await bench.caller.submit(config_json(), request_id="r1")
    other = await bench.caller.submit(config_json(), request_id="r2")
    assert first.experiment.id == again.experiment.id
    assert other.experiment.id == first.experiment.id + 1


async def test_a_request_id_that_made_something_else_is_refused(bench: Bench) -> None:
    """A user's later change to an experiment does not make its own retry a different submit."""
    await bench.scheduler()
    made = await bench.caller.submit(config_json(), request_id="r1")
    await bench.caller.set_resources(made.experiment.id, priority=7)
    assert (await bench.caller.submit(config_json(), request_id="r1")).experiment.id == made.experiment.id
    for config, owner in ((config_json(name="other"), "ann"), (config_json(), "bob")):
        with pytest.raises(GanglineError) as caught:
            await bench.caller.submit(config, request_id="r1", owner=owner)
        assert (caught.value.code, caught.value.effect) == ("request.reused", Effect.NONE)
    assert await bench.experiment(2) is None


async def test_what_never_fits_is_refused_with_the_sizes_that_do(bench: Bench) -> None:
    await bench.scheduler()
    await bench.agent("a1")
    await bench.agent("a2")
    with pytest.raises(GanglineError) as caught:
        await bench.caller.submit(config_json(slots=7))
    assert caught.value.code == "request.never_fits"
    assert caught.value.message == (
        "slots_per_trial: 7 can never fit pool 'default' (2 agents of 2 slots): sizes that fit are 1, 2, 4"
    )


async def test_every_pending_request_has_a_reason(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(slots=2))
    [spec] = await agent.started()
    waiting = [await bench.caller.submit(config_json(slots=size)) for size in (1, 2)]
    pending = await bench.caller.list_pending()
    assert [entry.request.experiment_id for entry in pending] == [answer.experiment.id for answer in waiting]
    for entry in pending:
        assert entry.reason.code == types_pb2.REASON_CODE_NO_CAPACITY, ReasonCode
        assert entry.reason.blocking_ids == [spec.allocation.id]
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await agent.started()


async def test_killing_a_waiting_and_a_running_experiment(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=1)
    running = await bench.caller.submit(config_json())
    [spec] = await agent.started()
    waiting = await bench.caller.submit(config_json())
    ended = await bench.caller.end(waiting.experiment.id, user="bob")
    assert ended.experiment.outcome == types_pb2.OUTCOME_CANCELED
    assert ended.experiment.reason == "killed by bob"
    stopping = await bench.caller.end(running.experiment.id)
    assert stopping.experiment.state == types_pb2.STATE_STOPPING
    final = await bench.eventually(
        lambda: bench.experiment(running.experiment.id), lambda experiment: experiment.state is State.TERMINAL
    )
    assert (final.outcome, final.reason) == (Outcome.CANCELED, "killed by ann")
    assert agent.stops[spec.allocation.id].reason == "killed by ann"
    again = await bench.caller.end(running.experiment.id)
    assert again.experiment.ended_at == final.ended_at


async def test_a_failing_trial_restarts_from_its_checkpoint(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(max_restarts=1))
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c1", batches_completed=5, url="/x/checkpoints/c1"))
    agent.finish(spec.allocation.id, ExitKind.USER_ERROR, "boom", rank=0)
    [again] = await agent.started()
    assert again.allocation.id == "1.1.2"
    assert again.latest_checkpoint.id == "c1"
    agent.finish(again.allocation.id, ExitKind.USER_ERROR, "boom", rank=0)
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.FAILED
    assert "its only restart is used up" in ended.reason


async def test_tokens(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    stranger = Caller(scheduler, token="some-other-token-entirely")
    with pytest.raises(GanglineError) as caught:
        await stranger.submit(config_json())
    assert caught.value.code == "security.bad_token"
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    with pytest.raises(GanglineError) as forbidden:
        await Caller(scheduler, token=spec.token).submit(config_json())
    assert forbidden.value.code == "security.forbidden"
    assert (await bench.etcd.get(keys.user("admin"))) is not None
