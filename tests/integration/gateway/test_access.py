"""Access control: every route and every call, with and without tokens, and the routes that are open to all."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from prometheus_client.parser import text_string_to_metric_families

from gangline.domain.allocation import Allocation, Member
from gangline.domain.resource import Agent, ServiceInstance
from gangline.domain.state import State
from gangline.protocol import rpc, wire
from gangline.v1 import audit_pb2, ingest_pb2, user_pb2
from gangline.v1 import gateway_pb2 as pb
from services.common import keys
from services.common.access.security import allocation_token, as_password
from services.common.etcd import EtcdClient, Put
from tests.support.gateway import CLUSTER_TOKEN, NO_TLS, USER_TOKEN, Client, add_user
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async, within

CALLS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GatewayService"].methods}
# It opens a session, and so it takes callers without a token.
OPEN_CALLS = {"LogIn"}
OPEN_ROUTES = {("POST", "/api/v1/session")}
# Calls for administrators, as a user who is none would make them.
ADMIN_CALLS = {
    "UpdateAgent": pb.UpdateAgentRequest(request_id="r", agent_id="a1"),
    "CreateUser": user_pb2.CreateUserRequest(request_id="r", change=user_pb2.UserChange(name="eve")),
    "UpdateUser": user_pb2.UpdateUserRequest(request_id="r", name="bob", change=user_pb2.UserChange(password="")),
    "ListTokens": user_pb2.ListTokensRequest(user_name="bob"),
    "ListAudit": audit_pb2.ListAuditRequest(),
    "CreateToken": user_pb2.CreateTokenRequest(request_id="r", user_name="bob"),
}
ADMIN_ROUTES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/api/v1/users", {"user": {"username": "eve"}}),
    ("PATCH", "/api/v1/users/2", {"displayName": "x"}),
    ("GET", "/api/v1/tokens?username=bob", None),
    ("POST", "/api/v1/tokens", {"userId": 2}),
    ("GET", "/api/v1/audit", None),
    ("GET", "/api/v1/audit.csv", None),
]


async def upload(*messages: Message) -> AsyncIterator[Message]:
    """Sends messages and leaves the stream open. grpc's client takes a message, or the end of a stream, that meets the
    end of its call for an internal error."""
    for message in messages:
        yield message
    await asyncio.Event().wait()


async def call(client: Client, name: str, metadata: Any, *, sends: bool) -> Any:
    """Calls a method, at most half a minute. sends: whether a stream has a message."""
    method, make_call = CALLS[name], getattr(client.gateway, name)
    request: Any = GetMessageClass(method.input_type)()
    if method.client_streaming:
        request = upload(*([request] if sends else []))
    answer = make_call(request, metadata=metadata, timeout=30)
    return [each async for each in answer] if method.server_streaming else await answer


@pytest.mark.parametrize("name", sorted(CALLS.keys() - OPEN_CALLS))
async def test_every_call_refuses_a_wrong_token_a_missing_one_and_a_runners(client: Client, name: str) -> None:
    for metadata, code, message in [
        (rpc.token_metadata("not-a-token-of-anybody"), grpc.StatusCode.UNAUTHENTICATED, "belongs to no user"),
        ((), grpc.StatusCode.UNAUTHENTICATED, "needs a token"),
        (client.runner_metadata("1.1.1"), grpc.StatusCode.PERMISSION_DENIED, "token of an allocation"),
    ]:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            # A caller without an account is refused before the first message.
            await call(client, name, metadata, sends=code is grpc.StatusCode.PERMISSION_DENIED)
        assert failure.value.code() is code
        assert message in str(failure.value.details())


async def add_bob(client: Client, etcd: EtcdClient) -> None:
    """Adds a second user, and waits until the gateway has seen both."""
    await add_user(etcd, number=1)
    await add_user(etcd, "bob", "token-of-bob-in-the-tests", number=2)

    async def is_seen() -> bool:
        return (await client.http.get("/api/v1/users/2")).status_code == 200

    await until_async(is_seen, "the gateway knowing both users")


@pytest.mark.parametrize("name", ADMIN_CALLS)
async def test_calls_for_administrators_refuse_other_users(client: Client, etcd: EtcdClient, name: str) -> None:
    await add_bob(client, etcd)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await getattr(client.gateway, name)(ADMIN_CALLS[name], metadata=client.metadata)
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "alice is no administrator" in str(failure.value.details())


async def test_routes_for_administrators_refuse_other_users(client: Client, etcd: EtcdClient) -> None:
    await add_bob(client, etcd)
    for method, path, body in ADMIN_ROUTES:
        answer = await client.http.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "auth.not_admin"), path


async def test_a_login_needs_no_token_but_the_password(client: Client) -> None:
    request = user_pb2.LogInRequest(name="alice", password=as_password(USER_TOKEN))
    answer = await client.gateway.LogIn(request)
    me = await client.gateway.GetMe(user_pb2.GetMeRequest(), metadata=rpc.token_metadata(answer.token))
    assert (me.user.name, answer.user.name) == ("alice", "alice")
    for name, password in (("alice", as_password("x")), ("nobody", as_password(USER_TOKEN)), ("alice", ""), ("", "")):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.gateway.LogIn(user_pb2.LogInRequest(name=name, password=password))
        assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "the password is wrong" in str(failure.value.details())


INGEST_CALLS = {"Ingest", "FetchCode", "OfferTunnels", "Tunnel"}


@pytest.mark.parametrize("name", sorted(INGEST_CALLS))
async def test_calls_of_runners_refuse_users_and_wrong_tokens(client: Client, name: str) -> None:
    """Before the first message of a stream."""
    for metadata, code, message in [
        (rpc.token_metadata("not-a-token-of-anybody"), grpc.StatusCode.UNAUTHENTICATED, "belongs to no user"),
        ((), grpc.StatusCode.UNAUTHENTICATED, "needs a token"),
        (client.metadata, grpc.StatusCode.PERMISSION_DENIED, "user alice may not deliver"),
    ]:
        requests: dict[str, Any] = {
            "FetchCode": ingest_pb2.FetchCodeRequest(code_sha256="a" * 64),
            "OfferTunnels": ingest_pb2.OfferTunnelsRequest(allocation_id="1.1.1"),
        }
        request = requests.get(name) or upload()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            [answer async for answer in getattr(client.ingest, name)(request, metadata=metadata, timeout=30)]
        assert failure.value.code() is code
        assert message in str(failure.value.details())


def test_every_call_of_runners_is_covered_here() -> None:
    service = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"]
    assert {method.name for method in service.methods} == INGEST_CALLS


async def list_routes(client: Client) -> list[tuple[str, str]]:
    schema = (await client.http.get("/openapi.json")).json()
    routes = [(method.upper(), path) for path, methods in schema["paths"].items() for method in methods]
    return [*routes, ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/api/v1/nothing")]


async def test_every_route_needs_a_token(client: Client) -> None:
    anonymous = Client(client.grpc_address, client.http_address, token=None)
    routes = [route for route in await list_routes(client) if route not in OPEN_ROUTES]
    assert len(routes) > 20
    for method, path in routes:
        concrete = path.replace("{experiment_id}", "1").replace("{trial_id}", "1.1")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic !"}, {"Authorization": "x"}):
            answer = await anonymous.http.request(method, concrete, headers=headers)
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] in ("auth.no_token", "auth.wrong_token")
            assert "Bearer" in answer.headers["www-authenticate"]
    await anonymous.close()


async def test_open_routes_are_for_the_page_alone(client: Client) -> None:
    assert set(await list_routes(client)) >= OPEN_ROUTES
    for method, path in OPEN_ROUTES:
        for headers in ({}, {"Authorization": f"Bearer {USER_TOKEN}"}, {"X-Gangline-Page": "0"}):
            answer = await httpx.AsyncClient(base_url=f"http://{client.http_address}", verify=NO_TLS).request(
                method, path, headers=headers, json={"username": "alice", "password": USER_TOKEN}
            )
            assert (answer.status_code, answer.json()["code"]) == (403, "auth.page_header"), headers
            assert "set-cookie" not in answer.headers


async def test_every_route_of_the_api_refuses_a_runner(client: Client) -> None:
    """Whatever else is wrong with the request."""
    headers = {"Authorization": f"Bearer {allocation_token(CLUSTER_TOKEN, '1.1.1')}"}
    refusals = {}
    for method, path in await list_routes(client):
        if path.startswith("/api/v1/") and path != "/api/v1/nothing" and (method, path) not in OPEN_ROUTES:
            answer = await client.http.request(method, path, headers=headers)
            refusals[method, path] = answer.status_code, answer.json()["code"]
    assert len(refusals) > 60
    assert set(refusals.values()) == {(403, "auth.forbidden")}, refusals


async def test_problem_document_names_code_status_and_what_to_do(client: Client) -> None:
    answer = await client.http.get("/api/v1/agents", headers={"Authorization": "Bearer wrong"})
    assert answer.json() == {
        "type": "urn:gangline:error:auth.wrong_token",
        "title": "Unauthorized",
        "status": 401,
        "detail": "this token belongs to no user of this cluster; "
        "log in again with `gangline login`, or correct GANGLINE_TOKEN",
        "code": "auth.wrong_token",
    }


async def test_browser_may_read_with_the_token_as_password_but_not_change(client: Client) -> None:
    basic = {"Authorization": "Basic " + base64.b64encode(f"me:{USER_TOKEN}".encode()).decode()}
    assert (await client.http.get("/openapi.json", headers=basic)).status_code == 200
    assert (await client.http.post("/api/v1/experiments/1/kill", headers=basic)).status_code == 401


async def test_cluster_token_reads_as_an_operator(client: Client) -> None:
    answer = await client.http.get("/api/v1/cluster", headers={"Authorization": f"Bearer {CLUSTER_TOKEN}"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/nothing", "request.no_route"),
        ("DELETE", "/api/v1/experiments", "request.method"),
        ("GET", "/api/v1/experiments/seven", "request.invalid"),
        ("GET", "/api/v1/experiments?limit=1001", "request.limit"),
        ("GET", "/api/v1/trials/seven/logs", "id.trial"),
        ("PUT", "/api/v1/code/abc", "code.bad_sha256"),
        ("GET", "/api/v1/checkpoints/none/files/x", "checkpoint.not_found"),
    ],
)
async def test_every_refusal_is_a_problem_document(client: Client, method: str, path: str, code: str) -> None:
    answer = await client.http.request(method, path)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["status"]) == (code, answer.status_code)


async def test_bodies_of_unknown_or_excessive_size_are_refused_unread(client: Client) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{"

    chunked = await client.http.post("/api/v1/experiments", content=chunks())
    assert (chunked.status_code, chunked.json()["code"]) == (400, "request.no_length")
    host, _, port = client.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT /api/v1/code/{'a' * 64} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {USER_TOKEN}\r\n"
    writer.write(f"{head}Content-Length: {1 << 30}\r\n\r\n".encode())
    answer = await within(5, reader.readuntil(b"}"))
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"code.too_big" in answer


async def test_open_paths_are_open_and_count_requests(client: Client) -> None:
    anonymous = Client(client.grpc_address, client.http_address, token=None)
    await client.http.get("/api/v1/experiments/9999")
    assert (await anonymous.http.get("/healthz")).json()["status"] == "ok"
    scraped = await anonymous.http.get("/metrics")
    samples = {
        (sample.name, *(sample.labels.get(label) for label in ("method", "route", "code")))
        for family in text_string_to_metric_families(scraped.text)
        for sample in family.samples
    }
    assert ("gangline_gateway_http_requests_total", "GET", "/api/v1/experiments/{experiment_id}", "404") in samples
    await anonymous.close()


async def test_prometheus_finds_every_service_agent_and_runner(client: Client, etcd: EtcdClient) -> None:
    members = (Member("a1", 0, ("a1/0",), metrics_address="10.0.0.1:9001"),)
    allocation = Allocation("7.1.1", "7.1", 7, 1, 1, "default", members, State.RUNNING)
    await etcd.commit(
        [
            Put(keys.agent("a1"), wire.encode(Agent("a1", metrics_address="10.0.0.1:8084"))),
            Put(keys.allocation("7.1.1"), wire.encode(allocation)),
            Put(
                keys.alive("scheduler", "s1"),
                wire.encode(ServiceInstance("s1", "scheduler", "10.0.0.2:8082", metrics_address="10.0.0.2:8083")),
            ),
        ]
    )

    async def find() -> Any:
        answer = await client.http.get("/prom/http-sd", headers={"Authorization": ""})
        assert answer.headers["content-type"] == "application/json"
        target_by_service = {target["labels"]["service"]: target for target in answer.json()}
        return target_by_service if len(target_by_service) == 4 else None

    target_by_service = await until_async(find, "all four being listed")
    assert target_by_service["gateway"]["targets"] == [client.http_address]
    assert target_by_service["trial_runner"]["targets"] == ["10.0.0.1:9001"]
    assert target_by_service["trial_runner"]["labels"]["experiment_id"] == "7"


async def test_cluster_view_counts_slots_and_names_services(client: Client, leader: StandInLeader) -> None:
    async def find_leader() -> Any:
        view = (await client.http.get("/api/v1/cluster")).json()
        return view if view["leader"] else None

    view = await until_async(find_leader, "the leader being seen")
    same = await client.gateway.GetCluster(pb.GetClusterRequest(), metadata=client.metadata)
    assert view["leader"]["grpcAddress"] == same.leader.grpc_address == leader.address
    assert [service["kind"] for service in view["services"]] == ["gateway"]
    assert (await client.http.get("/api/v1/master")).json()["version"] == same.version


async def test_each_answer_bears_the_time(client: Client) -> None:
    """Also a later one on the same connection."""
    dates = []
    connections = set()

    async def is_another_time() -> bool:
        answer = await client.http.get("/healthz")
        dates.append(parsedate_to_datetime(answer.headers["date"]).timestamp())
        connections.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
        return len({*dates}) == 2

    began_at = int(time.time())
    await until_async(is_another_time, "the next second")
    assert began_at <= dates[0] < dates[-1] <= time.time()
    assert len(connections) == 1
