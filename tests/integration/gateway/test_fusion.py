"""The records of tensor fusion, through both surfaces of a gateway."""

from __future__ import annotations

from gangline.domain.fusion import FusionRecord
from gangline.protocol import wire
from gangline.v1 import gateway_pb2 as pb
from services.common import keys
from services.common.etcd import EtcdClient, Put
from tests.support.gateway import Client
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

_OLD = FusionRecord("ab-01", "1.0 M parameters, 2 ranks", (1000, 2000), 2.0, 1.6, trial_id="3.1", created_at=10.0)
_NEW = FusionRecord("ab-02", created_at=20.0)


async def _remember(client: Client, etcd: EtcdClient) -> None:
    await etcd.commit([Put(keys.fusion(record.key), wire.encode(record)) for record in (_OLD, _NEW)])

    async def is_seen() -> bool:
        return len((await client.http.get("/api/v1/fusion")).json()["records"]) == 2

    await until_async(is_seen, "the gateway seeing both records", 60)


async def test_newest_record_comes_first_on_both_surfaces(client: Client, etcd: EtcdClient) -> None:
    await _remember(client, etcd)
    listed = await client.gateway.ListFusion(pb.ListFusionRequest(), metadata=client.metadata)
    assert [wire.from_proto(FusionRecord, record) for record in listed.records] == [_NEW, _OLD]
    newer, older = (await client.http.get("/api/v1/fusion")).json()["records"]
    assert (newer["key"], newer["bucketBytes"]) == ("ab-02", [])
    assert (older["gainRatio"], older["trialId"], older["time"]) == (1.25, "3.1", "1970-01-01T00:00:10Z")


async def test_forgotten_record_is_gone_at_once(client: Client, etcd: EtcdClient, leader: StandInLeader) -> None:
    await _remember(client, etcd)
    request = pb.GatewayServiceForgetFusionRequest(request_id="f1", key="ab-01")
    assert (await client.gateway.ForgetFusion(request, metadata=client.metadata)).is_forgotten
    assert not (await client.gateway.ForgetFusion(request, metadata=client.metadata)).is_forgotten
    assert (await client.http.delete("/api/v1/fusion/ab-02")).status_code == 204
    assert (await client.http.get("/api/v1/fusion")).json() == {"records": []}
    problem = (await client.http.delete("/api/v1/fusion/ab-02")).json()
    assert (problem["status"], problem["code"]) == (404, "fusion.not_found")
