"""Attempts that are over, through a real scheduler: what they report counts for nothing, and they are told so."""

from __future__ import annotations

import json

import grpc
import pytest

from gangline.domain.state import AgentState, CheckpointState, ExitKind, Outcome, State
from gangline.protocol import rpc
from gangline.v1 import runner_pb2, runner_pb2_grpc, types_pb2
from services.common import keys
from services.scheduler.transition.report import MAX_VALIDATION_BYTES
from tests.integration.scheduler.conftest import Bench
from tests.integration.scheduler.test_checkpoint import _states
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedRunner, validation_of
from tests.support.wait import until, until_async

LEASES = ("--agent-lease-seconds", "1", "--agent-grace-seconds", "0", "--agent-silence-seconds", "2")


async def _renew(bench: Bench, runner: ScriptedRunner) -> runner_pb2.RenewAttemptResponse:
    request = runner_pb2.RenewAttemptRequest(allocation_id=runner.spec.allocation.id, node_rank=runner.spec.node_rank)
    async with grpc.aio.insecure_channel(bench.schedulers[0].address, options=rpc.CHANNEL_OPTIONS) as channel:
        stub = runner_pb2_grpc.RunnerServiceStub(channel)
        answer = await stub.RenewAttempt(request, metadata=rpc.token_metadata(runner.spec.token), timeout=10)
        assert isinstance(answer, runner_pb2.RenewAttemptResponse)
        return answer


async def _two_attempts(bench: Bench) -> tuple[ScriptedRunner, ScriptedRunner]:
    """The runner of an attempt that its agent gave up, and that of the next attempt, on the same agent."""
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json(max_restarts=3))
    [spec] = await agent.started()
    old = ScriptedRunner(spec, scheduler.address)
    await old.run()
    await old.report(
        checkpoint=types_pb2.Checkpoint(id="c1", batches_completed=5, url="/x/checkpoints/c1", created_at=1.0)
    )
    agent.finish(spec.allocation.id, ExitKind.RUNNER_LOST, "its runner vanished")
    await until(lambda: "1.1.2" in agent.specs, "the second attempt", 20)
    new = ScriptedRunner(agent.specs["1.1.2"], scheduler.address)
    await new.run()
    return old, new


async def test_reports_of_a_superseded_attempt_change_nothing(bench: Bench) -> None:
    old, new = await _two_attempts(bench)
    before = await bench.trial("1.1")
    over = "attempt 2 of trial 1.1 has taken the place of attempt 1"
    reports: list[dict[str, object]] = [
        {"progress": runner_pb2.ProgressReport(batches_completed=99, seconds_per_batch=1.0)},
        {"metrics": validation_of(99, {"loss": 0.0})},
        {"fusion": types_pb2.FusionRecord(key="00-22")},
        {"forgotten_fusion": "00-22"},
    ]
    for report in reports:
        assert (await old.report(**report)).over_reason == over
    assert await bench.trial("1.1") == before
    assert (await new.report(**reports[1])).over_reason == ""
    trial = await bench.trial("1.1")
    assert trial is not None
    assert (trial.batches_completed, trial.best_validation) == (99, 0.0)


async def test_checkpoint_of_a_superseded_attempt_is_deleted_and_that_of_the_live_one_stays(bench: Bench) -> None:
    old, new = await _two_attempts(bench)
    await new.report(
        checkpoint=types_pb2.Checkpoint(id="c2", batches_completed=7, url="/x/checkpoints/c2", created_at=2.0)
    )
    zombie = types_pb2.Checkpoint(id="c3", batches_completed=9, url="/x/checkpoints/c3", created_at=3.0)
    assert (await old.report(checkpoint=zombie)).over_reason
    trial = await bench.trial("1.1")
    assert trial is not None
    assert trial.latest_checkpoint_id == "c2"
    states = await _states(bench)
    assert (states["c2"], states["c3"]) == (CheckpointState.COMPLETED, CheckpointState.DELETING)
    # It may not delete what the live attempt needs either.
    await old.report(checkpoint=types_pb2.Checkpoint(id="c2", state=types_pb2.CHECKPOINT_STATE_DELETING))
    assert (await _states(bench))["c2"] == CheckpointState.COMPLETED


async def test_checkpoint_of_the_newest_attempt_counts_until_the_next_one_begins(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json(max_restarts=3))
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    agent.accepts = False
    await agent.disconnect()
    agent.finish(spec.allocation.id, ExitKind.RUNNER_LOST)
    agent.record = agent.record.__class__(id=agent.id, host_id="host")  # it comes back without slots
    await agent.connect()
    await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED)
    late = types_pb2.Checkpoint(id="c1", batches_completed=5, url="/x/checkpoints/c1", created_at=1.0)
    assert "counts trial 1.1, attempt 1 as ended" in (await runner.report(checkpoint=late)).over_reason
    trial = await bench.trial("1.1")
    assert trial is not None
    assert trial.latest_checkpoint_id == "c1"


async def test_an_ended_attempt_changes_no_fusion_record_of_others(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json())
    await bench.caller.submit(config_json(), owner="bob")
    await until(lambda: {"1.1.1", "2.1.1"} <= agent.specs.keys(), "both starts", 20)
    keeper, other = (
        ScriptedRunner(agent.specs[allocation_id], scheduler.address) for allocation_id in ("1.1.1", "2.1.1")
    )
    await keeper.run()
    await other.run()
    key = "00-11"
    await keeper.report(fusion=types_pb2.FusionRecord(key=key, bucket_bytes=[8], summary="measured"))
    before = await _fusion(bench)
    assert len(before) == 1
    # A live trial of another user neither changes nor forgets it.
    await other.report(forgotten_fusion=key)
    await other.report(fusion=types_pb2.FusionRecord(key=key, bucket_bytes=[1]))
    assert before[0] in await _fusion(bench)
    await other.report(forgotten_fusion=key)
    assert await _fusion(bench) == before
    agent.finish("2.1.1", ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.trial("2.1"), lambda trial: trial.state is State.TERMINAL)
    assert (await other.report(fusion=types_pb2.FusionRecord(key=key, bucket_bytes=[1]))).over_reason
    assert (await other.report(forgotten_fusion=key)).over_reason
    assert await _fusion(bench) == before
    await keeper.report(forgotten_fusion=key)
    assert await _fusion(bench) == []


async def _fusion(bench: Bench) -> list[bytes]:
    return [item.value for item in (await bench.etcd.list(keys.FUSION)).items]


async def test_a_validation_of_many_metrics_keeps_no_other_change_from_being_written(bench: Bench) -> None:
    scheduler = await bench.scheduler("s1", "--force-seconds", "1", "--kill-grace-seconds", "0")
    agent = await bench.agent("a1", slots=1, obeys_stop=False)
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    await bench.agent("a2", slots=1)
    metrics = {f"m{number:06d}" + "x" * 90: 0.1 for number in range(4600)}
    await runner.report(metrics=validation_of(1, {**metrics, "loss": 0.5}))
    trial = await bench.trial("1.1")
    assert trial is not None
    assert trial.best_validation == 0.5
    assert len(trial.validation_json) <= MAX_VALIDATION_BYTES
    assert json.loads(trial.validation_json)["loss"] == 0.5
    # Its end is written at the deadline, and others start meanwhile.
    await bench.caller.end(1)
    await bench.caller.submit(config_json())
    await bench.eventually(lambda: bench.trial("2.1"), lambda trial: trial.state is not State.QUEUED)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.outcome is Outcome.CANCELED)


async def test_renewal_says_that_an_attempt_is_over(bench: Bench) -> None:
    old, new = await _two_attempts(bench)
    assert "attempt 2 of trial 1.1" in (await _renew(bench, old)).over_reason
    answer = await _renew(bench, new)
    assert (answer.over_reason, answer.HasField("stop")) == ("", False)
    assert answer.lease_seconds > 0
    assert [witness.agent_id for witness in answer.committee] == ["a1"]
    assert list(answer.scheduler_addresses) == [bench.schedulers[0].address]


async def test_token_of_a_superseded_attempt_finds_no_fusion(bench: Bench) -> None:
    old, _ = await _two_attempts(bench)
    async with grpc.aio.insecure_channel(bench.schedulers[0].address) as channel:
        stub = runner_pb2_grpc.RunnerServiceStub(channel)
        request = runner_pb2.FindFusionRequest(allocation_id=old.spec.allocation.id, family="f")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.FindFusion(request, metadata=rpc.token_metadata(old.spec.token), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_attempt_goes_on_while_its_runner_is_heard_and_its_agent_is_not(bench: Bench) -> None:
    scheduler = await bench.scheduler("s1", *LEASES)
    first = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json())
    [spec] = await first.started()
    second = await bench.agent("a2", slots=1)
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    await first.disconnect()

    async def is_lost() -> bool:
        assert (await _renew(bench, runner)).over_reason == ""
        record = await bench.record("a1")
        return record is not None and record.state is AgentState.LOST

    await until_async(is_lost, "the loss of the agent", 20)
    # What it is told to do reaches it all the same.
    assert (await _renew(bench, runner)).over_reason == ""
    await bench.caller.end(1)
    stop = (await _renew(bench, runner)).stop
    assert stop.kind == types_pb2.EXIT_KIND_KILLED
    assert "ann" in stop.reason
    # From here on it is silent, as a runner that has obeyed.
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.CANCELED
    assert not second.specs
    assert (await _renew(bench, runner)).over_reason


async def test_attempt_on_a_lost_agent_is_given_up_when_its_runner_falls_silent(bench: Bench) -> None:
    scheduler = await bench.scheduler("s1", *LEASES)
    first = await bench.agent("a1", slots=1)
    second = await bench.agent("a2", slots=1)
    await bench.caller.submit(config_json())
    await until(lambda: bool(first.specs or second.specs), "a start", 20)
    lost, other = (first, second) if first.specs else (second, first)
    runner = ScriptedRunner(lost.specs["1.1.1"], scheduler.address)
    await runner.run()
    await lost.disconnect()
    await until(lambda: "1.1.2" in other.specs, "the next attempt elsewhere", 20)
    assert (await _renew(bench, runner)).over_reason
    trial = await bench.trial("1.1")
    assert trial is not None
    assert trial.last_failure is not None
    assert (trial.last_failure.kind, trial.restarts) == (ExitKind.AGENT_LOST, 0)
