"""A gateway of an earlier version calls the leader by the earlier names and gets what it got before."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from gangline.domain.user import CLUSTER_NAME
from gangline.protocol import rpc
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from services.common import keys
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import CLUSTER_TOKEN, config_json
from tests.support.scripted_agent import ScriptedRunner


async def test_earlier_names_do_what_the_present_ones_do(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    for _ in range(2):
        await bench.caller.submit(config_json())
    spec, _ = await agent.started(2)
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    for batches in (1, 2):
        await runner.report(
            checkpoint=types_pb2.Checkpoint(
                id=f"c{batches}", batches_completed=batches, url=f"/x/checkpoints/c{batches}"
            )
        )
    metadata = rpc.token_metadata(CLUSTER_TOKEN)
    async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        paused = await stub.ChangeExperiment(
            scheduler_pb2.ChangeExperimentRequest(
                request_id="p", experiment_id=2, action=types_pb2.EXPERIMENT_ACTION_PAUSE, user="ann"
            ),
            metadata=metadata,
        )
        assert (paused.experiment.state, paused.experiment.reason) == (types_pb2.STATE_PAUSED, "paused by ann")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ChangeCheckpoints(
                scheduler_pb2.ChangeCheckpointsRequest(request_id="d", delete_ids=["c2"], user="ann"), metadata=metadata
            )
        assert "goes on from checkpoint c2" in str(refused.value.details())
        dropped = await stub.ChangeCheckpoints(
            scheduler_pb2.ChangeCheckpointsRequest(request_id="e", deleted_ids=["c1"]), metadata=metadata
        )
        assert dropped.revision > paused.revision
        assert await bench.etcd.get(keys.checkpoint("c1")) is None
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ChangeCheckpoints(scheduler_pb2.ChangeCheckpointsRequest(request_id="f"), metadata=metadata)
        assert "name checkpoints that are to be deleted, or some whose" in str(refused.value.details())
        drained = await stub.ChangeAgent(
            scheduler_pb2.ChangeAgentRequest(
                request_id="a", agent_id="a1", availability=types_pb2.AVAILABILITY_DRAINING, user=CLUSTER_NAME
            ),
            metadata=metadata,
        )
        assert drained.agent.availability == types_pb2.AVAILABILITY_DRAINING
        killed_trial = await stub.EndTrial(
            scheduler_pb2.EndTrialRequest(request_id="t", trial_id="1.1", user="ann"), metadata=metadata
        )
        assert killed_trial.trial.id == "1.1"
        killed = await stub.EndExperiment(
            scheduler_pb2.EndExperimentRequest(request_id="k", experiment_id=2, user="ann"), metadata=metadata
        )
        assert (killed.experiment.id, killed.experiment.reason) == (2, "killed by ann")
