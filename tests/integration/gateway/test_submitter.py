"""A burst of submits through a gateway: fewer calls than submits, and one experiment for each, whichever scheduler
leads.
"""

from __future__ import annotations

import asyncio
import json

import grpc

from gangline.protocol import rpc
from gangline.v1 import gateway_pb2 as pb
from services.common.etcd import EtcdClient
from tests.integration.gateway.test_experiment import upload
from tests.support.gateway import CLUSTER_TOKEN, CONFIG, Client
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until, within


def _start(client: Client, code_sha256: str, count: int) -> list[asyncio.Task[int]]:
    async def create(number: int) -> int:
        request = pb.CreateExperimentRequest(
            request_id=f"r{number}", config_json=json.dumps(CONFIG), code_sha256=code_sha256
        )
        answer = await client.gateway.CreateExperiment(request, metadata=client.metadata)
        assert answer.experiment.request_id == request.request_id
        return int(answer.experiment.id)

    return [asyncio.create_task(create(number)) for number in range(count)]


async def test_a_burst_takes_fewer_calls_than_submits(client: Client, leader: StandInLeader) -> None:
    ids = await within(20, asyncio.gather(*_start(client, await upload(client), 24)))
    assert len(set(ids)) == 24
    assert sum(leader.group_sizes) == 24
    assert len(leader.group_sizes) < 24
    # The writer reads its own write.
    listed = await client.gateway.ListExperiments(pb.ListExperimentsRequest(), metadata=client.metadata)
    assert {experiment.id for experiment in listed.experiments} == set(ids)


async def test_a_burst_outlives_a_change_of_the_leader(client: Client, leader: StandInLeader, etcd: EtcdClient) -> None:
    other = StandInLeader(etcd, CLUSTER_TOKEN)
    await other.start(leads=False)
    try:
        code_sha256 = await upload(client)
        leader.is_quiet = True
        tasks = _start(client, code_sha256, 12)
        await until(lambda: len(leader.submissions) == 12, "the old leader having all of them")
        assert max(leader.group_sizes) > 1
        await other.lead()
        ids = await within(10, asyncio.gather(*tasks))
        assert sorted(ids) == list(range(1, 13))
        assert len({submission.request_id for submission in other.submissions}) == 12
    finally:
        await other.stop()


async def test_a_burst_without_a_leader_says_that_nothing_was_done(client: Client) -> None:
    tasks = _start(client, await upload(client), 6)
    failures = await within(30, asyncio.gather(*tasks, return_exceptions=True))
    for failure in failures:
        assert isinstance(failure, grpc.aio.AioRpcError)
        error = rpc.error_of(failure, "the gateway")
        assert (error.code, error.effect) == ("gateway.no_leader", "none")
