"""Reports of a trial that lies, through a real scheduler: what it says of times, counts and places harms no other."""

from __future__ import annotations

import math
import time
from typing import Any

import grpc.aio
import httpx
import pytest

from gangline.domain.experiment import Checkpoint
from gangline.domain.fusion import FusionRecord, owned_key
from gangline.domain.state import CheckpointState, ExitKind, State
from gangline.domain.storage.checkpoint_import import import_id
from gangline.errors import GanglineError
from gangline.protocol import rpc, wire
from gangline.v1 import agent_pb2, runner_pb2, types_pb2
from gangline.v1.agent_pb2_grpc import AgentServiceStub
from services.common import keys
from services.common.etcd import Put
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import CLUSTER_TOKEN, config_json
from tests.support.scripted_agent import ScriptedAgent, ScriptedRunner

_ABSURD = [1e308, math.inf, math.nan, -1e9]


async def _started(bench: Bench) -> tuple[ScriptedAgent, ScriptedRunner]:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(max_restarts=0))
    [spec] = await agent.started()
    return agent, ScriptedRunner(spec, scheduler.address)


async def _checkpoint(bench: Bench, checkpoint_id: str) -> Checkpoint | None:
    item = await bench.etcd.get(keys.checkpoint(checkpoint_id))
    return wire.decode(Checkpoint, item.value) if item else None


def _is_now(at: float) -> bool:
    return abs(at - time.time()) < 60


@pytest.mark.parametrize("absurd", _ABSURD)
async def test_absurd_times_and_counts_are_replaced(bench: Bench, absurd: float) -> None:
    agent, runner = await _started(bench)
    allocation_id = runner.spec.allocation.id
    timeline = types_pb2.Timeline(runner_up_at=absurd, rendezvous_at=absurd, ranks_up_at=absurd, first_step_at=absurd)
    await runner.report(running=runner_pb2.RunningReport(timeline=timeline, metrics_address="169.254.169.254:9009"))
    # Only the agent names the metrics of a runner.
    await runner.report(running=runner_pb2.RunningReport(timeline=timeline, metrics_address="10.0.0.1:9010"))
    progress = runner_pb2.ProgressReport(batches_completed=3, batches_total=-5, seconds_per_batch=absurd)
    await runner.report(progress=progress)
    saved = types_pb2.Checkpoint(
        id="c1", batches_completed=-7, url="/x/checkpoints/c1", created_at=absurd, file_bytes={"w": -1}
    )
    await runner.report(checkpoint=saved)
    key = "ab" * 8 + "-" + "cd" * 8
    tuned = types_pb2.FusionRecord(key=key, created_at=absurd, tuned_step_seconds=absurd, bucket_bytes=[-1])
    await runner.report(fusion=tuned)

    allocation = await bench.eventually(
        lambda: bench.allocation(allocation_id), lambda allocation: allocation.state is State.RUNNING
    )
    assert all(map(_is_now, (allocation.timeline.ranks_up_at, allocation.timeline.first_step_at)))
    assert allocation.members[0].metrics_address == ""
    agent.tell_metrics(allocation_id, "10.0.0.1:9009")
    await bench.eventually(
        lambda: bench.allocation(allocation_id),
        lambda allocation: allocation.members[0].metrics_address == "10.0.0.1:9009",
    )
    checkpoint = await _checkpoint(bench, "c1")
    assert checkpoint is not None
    assert _is_now(checkpoint.created_at)
    assert (checkpoint.batches_completed, checkpoint.file_bytes) == (0, {"w": 0})
    stored = await bench.etcd.get(keys.fusion(owned_key(key, "ann")))
    assert stored is not None
    record = wire.decode(FusionRecord, stored.value)
    assert _is_now(record.created_at)
    assert (record.tuned_step_seconds, record.bucket_bytes) == (0.0, (0,))


@pytest.mark.parametrize("absurd", _ABSURD)
async def test_exit_with_absurd_times_counts_as_now(bench: Bench, absurd: float) -> None:
    agent, runner = await _started(bench)
    await runner.run()
    agent.clock_error_seconds, agent.tells_time = absurd * 2, False
    agent.finish(runner.spec.allocation.id, ExitKind.USER_ERROR, "lies")
    trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.TERMINAL)
    assert (trial.batches_total, trial.seconds_per_batch) == (0, 0.0)
    assert trial.last_failure is not None
    assert _is_now(trial.last_failure.failed_at)
    assert _is_now(trial.last_failure.ended_at)


async def test_replacements_are_counted_and_told_once(bench: Bench) -> None:
    _, runner = await _started(bench)
    for _ in range(3):
        await runner.report(progress=runner_pb2.ProgressReport(batches_completed=1, seconds_per_batch=math.inf))
    scheduler = bench.schedulers[0]
    async with httpx.AsyncClient(timeout=10) as client:
        scraped = (await client.get(f"http://{scheduler.metrics_address}/metrics")).text
    assert 'gangline_scheduler_implausible_values_total{kind="progress"} 3.0' in scraped
    assert scheduler.log.read_text().count("a report has implausible numbers") == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"url": "simplecache::http://host/c1"}, "storage.chain"),
        ({"url": "http://host/c1"}, "storage.protocol"),
        ({"metadata_json": "[1]"}, "document.invalid"),
        ({"metadata_json": "{"}, "document.invalid"),
        ({"id": "c\x1b]0;x\x07"}, "checkpoint.id"),
        ({"id": (imported := import_id("{}", [])), "url": f"/x/checkpoints/{imported}"}, "checkpoint.id"),
        ({"url": "/x/code"}, "checkpoint.place"),
        ({"url": "/x/checkpoints/c9"}, "checkpoint.place"),
        ({"url": "/x/code/../checkpoints/c1"}, "checkpoint.place"),
        ({"file_bytes": {"../../code/archive": 1}}, "checkpoint.path"),
    ],
)
async def test_checkpoint_that_harms_readers_is_refused(bench: Bench, change: dict[str, Any], code: str) -> None:
    """The runner goes on: what it reports next is taken."""
    _, runner = await _started(bench)
    checkpoint = types_pb2.Checkpoint(id="c1", url="/x/checkpoints/c1", metadata_json="{}")
    for name, value in change.items():
        if name == "file_bytes":
            checkpoint.file_bytes.update(value)
        else:
            setattr(checkpoint, name, value)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await runner.report(checkpoint=checkpoint)
    assert rpc.error_of(failure.value, "s1").code == code
    assert await _checkpoint(bench, checkpoint.id) is None
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c2", url="/x/checkpoints/c2"))
    assert await _checkpoint(bench, "c2") is not None


async def test_a_checkpoint_whose_id_another_trial_has_reported_is_never_lost_in_silence(bench: Bench) -> None:
    agent, first = await _started(bench)
    await bench.caller.submit(config_json())
    [*_, spec] = await agent.started(2)
    saved = types_pb2.Checkpoint(id="c1", batches_completed=5, url="/x/checkpoints/c1")
    await first.report(checkpoint=saved)
    second = ScriptedRunner(spec, first.address)
    await second.report(checkpoint=types_pb2.Checkpoint(id="c1", state=types_pb2.CHECKPOINT_STATE_DELETING))
    with pytest.raises(grpc.aio.AioRpcError, match=r"not recorded, because trial 1\.1 has reported the") as failure:
        await second.report(checkpoint=saved)
    assert rpc.error_of(failure.value, "s1").code == "checkpoint.taken"
    checkpoint, trial = await _checkpoint(bench, "c1"), await bench.trial("2.1")
    assert checkpoint is not None
    assert (checkpoint.trial_id, checkpoint.state) == ("1.1", CheckpointState.COMPLETED)
    assert trial is not None
    assert (trial.latest_checkpoint_id, "checkpoint c1 after batch 5 is not recorded" in trial.warning) == ("", True)
    # What it reports next is taken.
    await second.report(checkpoint=types_pb2.Checkpoint(id="c2", url="/x/checkpoints/c2"))
    assert await _checkpoint(bench, "c2") is not None


async def test_new_leader_plans_with_what_an_earlier_version_stored(bench: Bench) -> None:
    """Absurd records in etcd stop neither planning nor explaining."""
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    trial = await bench.trial("1.1")
    assert trial is not None
    scheduler.end()
    stored = types_pb2.Trial()
    stored.CopyFrom(wire.to_proto(trial))
    stored.batches_total, stored.seconds_per_batch, stored.latest_checkpoint_id = 2**62, 1e300, "c1"
    record = types_pb2.Checkpoint(
        id="c1", trial_id="1.1", experiment_id=1, url="/x", created_at=math.nan, metadata_json="[1]",
        state=types_pb2.CHECKPOINT_STATE_COMPLETED,
    )  # fmt: skip
    await bench.etcd.commit(
        [
            Put(keys.trial("1.1"), stored.SerializeToString()),
            Put(keys.checkpoint("c1"), record.SerializeToString()),
        ]
    )
    successor = await bench.scheduler("s2")
    await bench.caller.submit(config_json(resources={"slots_per_trial": 2}))
    runner = ScriptedRunner(spec, successor.address)
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c2", batches_completed=5, url="/x/checkpoints/c2"))
    assert await _checkpoint(bench, "c2") is not None
    [waiting] = await bench.caller.list_pending()
    assert waiting.reason.message


async def test_names_that_act_on_a_terminal_are_refused(bench: Bench) -> None:
    """An experiment's names are refused at its submit, an agent's with its hello; others continue to work."""
    scheduler = await bench.scheduler()
    with pytest.raises(GanglineError, match="name: has the control character") as failure:
        await bench.caller.submit(config_json(name="digits\nexperiment 8"))
    assert failure.value.code == "config.invalid_value"
    assert await bench.experiment(1) is None
    stub_request = agent_pb2.ConnectRequest(
        hello=agent_pb2.AgentHello(agent=types_pb2.Agent(id="a9", pool="default\x1b[2J", host_id="h"))
    )
    async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
        call = AgentServiceStub(channel).Connect(iter([stub_request]), metadata=rpc.token_metadata(CLUSTER_TOKEN))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(call))
    assert rpc.error_of(refused.value, "s1").code == "agent.name"
    assert await bench.record("a9") is None
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    assert len(await agent.started()) == 1
