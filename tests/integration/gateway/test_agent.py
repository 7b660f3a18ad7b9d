"""Agents and slots are enabled, drained and disabled through both surfaces of a gateway, by administrators alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from gangline.domain.resource import Agent, Slot
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from tests.support.gateway import CLUSTER_TOKEN, Client, add_user
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

ADMIN_TOKEN = "token-of-an-administrator"
MIG_SLOT = "a1/MIG-GPU-7c/1/0"


@pytest.fixture
async def admin(client: Client, etcd: EtcdClient) -> AsyncIterator[Client]:
    """Agent a1 with three slots, and a client of an administrator."""
    await add_user(etcd, "ada", ADMIN_TOKEN, is_admin=True)
    agent = Agent("a1", slots=(Slot("a1/0"), Slot("a1/1"), Slot(MIG_SLOT)))
    await etcd.commit([Put(keys.agent("a1"), wire.encode(agent))])
    admin = Client(client.grpc_address, client.http_address, ADMIN_TOKEN)

    async def is_seen() -> bool:
        return (await admin.http.get("/api/v1/agents/a1")).status_code == 200

    await until_async(is_seen, "the gateway seeing administrator and agent")
    yield admin
    await admin.close()


def update(availability: str, *slot_ids: str, agent_id: str = "a1", request_id: str = "u1") -> pb.UpdateAgentRequest:
    request = pb.UpdateAgentRequest(request_id=request_id, agent_id=agent_id, slot_ids=slot_ids)
    request.availability = types_pb2.Availability.Value(f"AVAILABILITY_{availability}")
    return request


async def code_of(client: Client, request: pb.UpdateAgentRequest) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.UpdateAgent(request, metadata=client.metadata)
    error = rpc.error_of(failure.value, "the gateway")
    return error.code, error.message


async def test_change_is_readable_at_once_and_names_who_asked(admin: Client, leader: StandInLeader) -> None:
    changed = await admin.gateway.UpdateAgent(update("DRAINING"), metadata=admin.metadata)
    listed = await admin.gateway.ListAgents(pb.ListAgentsRequest(), metadata=admin.metadata)
    assert listed.agents[0].agent == changed.agent
    assert changed.agent.availability == types_pb2.AVAILABILITY_DRAINING
    changed = await admin.gateway.UpdateAgent(update("DISABLED", "a1/0", "a1/1"), metadata=admin.metadata)
    assert [slot.availability for slot in changed.agent.slots] == [
        types_pb2.AVAILABILITY_DISABLED, types_pb2.AVAILABILITY_DISABLED, types_pb2.AVAILABILITY_ENABLED,
    ]  # fmt: skip
    assert {request.user for request in leader.agent_changes} == {"ada"}


@pytest.mark.parametrize(
    ("verb", "body", "availability", "enabled", "draining"),
    [
        ("disable", None, "DISABLED", False, False),
        ("disable", {"drain": False}, "DISABLED", False, False),
        ("disable", {"drain": True}, "DRAINING", False, True),
        ("enable", None, "ENABLED", True, False),
    ],
)
@pytest.mark.parametrize(("path", "what"), [("", "agent"), ("/slots/1", "slot"), ("/slots/MIG-GPU-7c/1/0", "slot")])
async def test_http_has_determineds_paths(
    admin: Client, leader: StandInLeader, *, path: str, what: str, verb: str, body: object, availability: str,
    enabled: bool, draining: bool,
) -> None:  # fmt: skip
    answer = await admin.http.post(f"/api/v1/agents/a1{path}/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    shown = answer.json()[what]
    assert (shown["availability"], shown["enabled"], shown["draining"]) == (availability, enabled, draining)
    assert shown["id"] == "a1" + path.replace("/slots", "")


async def test_only_administrators_and_the_cluster_may(admin: Client, client: Client, leader: StandInLeader) -> None:
    code, message = await code_of(client, update("DISABLED"))
    assert code == "auth.not_admin"
    assert message == (
        "alice is no administrator, and only those may enable, drain or disable agents and slots; ask one of them"
    )
    answer = await client.http.post("/api/v1/agents/a1/slots/0/disable")
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.not_admin")
    assert leader.agent_changes == []
    operator = {"Authorization": f"Bearer {CLUSTER_TOKEN}"}
    assert (await client.http.post("/api/v1/agents/a1/disable", headers=operator)).status_code == 200


async def test_what_is_wrong_is_said(admin: Client, leader: StandInLeader) -> None:
    assert (await code_of(admin, update("DISABLED", request_id="")))[0] == "request.no_id"
    unspecified = pb.UpdateAgentRequest(request_id="u1", agent_id="a1")
    assert (await code_of(admin, unspecified))[0] == "request.availability"
    assert (await code_of(admin, update("DISABLED", agent_id="a9")))[0] == "agent.not_found"
    answer = await admin.http.post("/api/v1/agents/a1/disable", json={"dry": True})
    assert answer.json()["code"] == "request.invalid"
    assert (await admin.http.get("/api/v1/agents/a9")).json()["code"] == "agent.not_found"
