"""The table of rights against the gateway: every call has an entry, and every caller gets what the table says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gangline.domain.experiment import Experiment
from gangline.errors import ErrorKind
from gangline.protocol import rpc, wire
from gangline.v1 import access_pb2, gateway_pb2, ingest_pb2, project_pb2, quota_pb2, registry_pb2, types_pb2, user_pb2
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway import app
from services.gateway.app import build_routes, describe_api
from services.gateway.determined.determined_app import list_calls
from services.gateway.http.route import Route
from services.gateway.mirror.access_table import NEED_BY_CALL, NEED_BY_DETERMINED_ROUTE, NEED_BY_ROUTE, Need
from services.gateway.program import Addresses
from tests.support.access_world import (
    CALLERS,
    CHECKPOINT_ID,
    EXPERIMENT_ID,
    SHELL_ID,
    USERS,
    VIEW_IDS,
    determined_token_of,
    open_world,
    token_of,
)
from tests.support.gateway import NO_TLS, Client

pb = gateway_pb2
SERVICES = (
    gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"],
    ingest_pb2.DESCRIPTOR.services_by_name["IngestService"],
)
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
# What each need gives to each user; the boss gets everything that users get.
OK, HIDDEN, FORBIDDEN, UNKNOWN = "ok", "hidden", "forbidden", "unauthenticated"
_BY_NEED = {
    Need.OPEN: (OK, OK, OK, OK, OK),
    Need.USER: (OK, OK, OK, OK, OK),
    Need.VIEW: (HIDDEN, OK, OK, OK, OK),
    Need.VIEW_ALL: (FORBIDDEN,) * 5,
    Need.EDIT_SOMEWHERE: (FORBIDDEN, FORBIDDEN, OK, OK, OK),
    Need.EDIT: (FORBIDDEN, FORBIDDEN, OK, OK, OK),
    Need.EDIT_ALL: (FORBIDDEN,) * 5,
    Need.CHANGE: (HIDDEN, FORBIDDEN, FORBIDDEN, OK, OK),
    # The world is closed.
    Need.OPERATE: (HIDDEN, FORBIDDEN, FORBIDDEN, OK, OK),
    Need.MANAGE: (HIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN, OK),
    Need.OWN: (HIDDEN, FORBIDDEN, FORBIDDEN, OK, FORBIDDEN),
    Need.ADMIN: (FORBIDDEN,) * 5,
    Need.RUNNER: (FORBIDDEN,) * 5,
}
# Templates, saved views and users belong to no workspace. Another user's token does not exist.
_OF_TOKENS = (HIDDEN, HIDDEN, HIDDEN, OK, HIDDEN)
_OF_OWNER = (FORBIDDEN, FORBIDDEN, FORBIDDEN, OK, FORBIDDEN)
OTHERS = {
    "UpdateSavedView": _OF_OWNER, "DeleteSavedView": _OF_OWNER, "RevokeToken": _OF_TOKENS,
    "UpdateUser": _OF_OWNER, "PATCH /api/v1/users/{user_id}": _OF_OWNER, "PATCH /api/v1/users/{id}": _OF_OWNER,
    "RemoveTemplate": _OF_OWNER, "SetTemplate": _OF_OWNER,
    "PATCH /api/v1/saved-views/{view_id}": _OF_OWNER, "DELETE /api/v1/saved-views/{view_id}": _OF_OWNER,
    "PATCH /api/v1/tokens/{token_id}": _OF_TOKENS, "PATCH /api/v1/tokens/{id}": _OF_TOKENS,
    "PUT /api/v1/templates/{name}": _OF_OWNER, "DELETE /api/v1/templates/{name}": _OF_OWNER,
    "PATCH /api/v1/templates/{name}": _OF_OWNER,
}  # fmt: skip


def expect(need: Need, caller: str, name: str, *, is_list: bool = False) -> str:
    if caller == "nobody":
        return OK if need is Need.OPEN else UNKNOWN
    if caller in ("allocation", "agent"):
        return OK if need in (Need.RUNNER, Need.OPEN) else FORBIDDEN
    if caller == "boss":
        return FORBIDDEN if need is Need.RUNNER else OK
    verdict = OTHERS.get(name, _BY_NEED[need])[USERS.index(caller)]
    return OK if is_list and verdict == HIDDEN else verdict


def denied_first(expected_by_caller: dict[str, str]) -> list[str]:
    """Returns the callers so that those come last who change what the others look at."""
    return sorted(expected_by_caller, key=lambda caller: expected_by_caller[caller] == OK)


@pytest_asyncio.fixture
async def world(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Addresses]:
    async with open_world(tmp_path, etcd, etcd_settings) as addresses:
        yield addresses


@pytest_asyncio.fixture
async def open_cluster(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Addresses]:
    async with open_world(tmp_path, etcd, etcd_settings, is_open=True) as addresses:
        yield addresses


def test_every_served_call_has_an_entry_and_no_entry_is_left_over() -> None:
    assert METHODS.keys() == NEED_BY_CALL.keys()
    routes = build_routes()
    assert {type(route) for route in routes} == {Route}
    assert {(method, route.path) for route in routes for method in route.methods or ()} == NEED_BY_ROUTE.keys()  # type: ignore[attr-defined]  # all are routes of FastAPI
    assert set(list_calls()) == NEED_BY_DETERMINED_ROUTE.keys()


def _requests() -> dict[str, Message]:
    """Of the methods whose request names a record. The others get an empty one."""
    one: dict[str, Any] = {"experiment_id": EXPERIMENT_ID}
    trial: dict[str, Any] = {"trial_id": "1.1"}
    new: dict[str, Any] = {"request_id": "rights"}
    model: dict[str, Any] = {"model_id": 3}
    edit, delete = types_pb2.PROJECT_ACTION_EDIT, types_pb2.PROJECT_ACTION_DELETE
    given: dict[str, Message] = {
        "DownloadCode": pb.DownloadCodeRequest(**one),
        "GetExperiment": pb.GetExperimentRequest(**one),
        "WatchExperiment": pb.WatchExperimentRequest(**one),
        "KillExperiment": pb.KillExperimentRequest(**one, **new),
        "UpdateExperiment": pb.UpdateExperimentRequest(**one, **new, texts=types_pb2.TextChange(name="x")),
        "PreviewRetention": pb.PreviewRetentionRequest(
            **one, retention=types_pb2.RetentionChange(log_retention_days=3)
        ),
        "DeleteExperiment": pb.DeleteExperimentRequest(**one, **new),
        "ArchiveExperiment": pb.ArchiveExperimentRequest(**one, **new),
        "UnarchiveExperiment": pb.UnarchiveExperimentRequest(**one, **new),
        "GetSearchEvents": pb.GetSearchEventsRequest(**one),
        "PostSearchOperations": pb.PostSearchOperationsRequest(**one, **new),
        "ContinueExperiment": pb.ContinueExperimentRequest(**one, **new),
        "KillTrial": pb.KillTrialRequest(**trial, **new),
        "ProfileTrial": pb.GatewayServiceProfileTrialRequest(**trial, **new, batches=2),
        "StreamLogs": pb.StreamLogsRequest(**one),
        "StreamMetrics": pb.StreamMetricsRequest(**one),
        "GetMetricSeries": pb.GetMetricSeriesRequest(**trial, group="training", metric="loss", max_points=10),
        "ExplainJob": pb.ExplainJobRequest(job_id="1"),
        "DownloadCheckpoint": pb.DownloadCheckpointRequest(checkpoint_id=CHECKPOINT_ID),
        "DownloadOutput": pb.DownloadOutputRequest(**trial),
        "DownloadTensorboard": pb.DownloadTensorboardRequest(**one),
        "DeleteCheckpoints": pb.DeleteCheckpointsRequest(**new, checkpoint_ids=[CHECKPOINT_ID]),
        "GetInheritance": project_pb2.GetInheritanceRequest(workspace="lab", project="vision"),
        "UpdateWorkspace": project_pb2.UpdateWorkspaceRequest(**new, workspace_id=2, action=delete),
        "UpdateProject": project_pb2.UpdateProjectRequest(**new, project_id=2, action=delete),
        "SetTemplate": project_pb2.SetTemplateRequest(**new, name="t", config_json='{"max_restarts": 2}'),
        "RemoveTemplate": project_pb2.RemoveTemplateRequest(**new, name="t"),
        "MoveExperiment": project_pb2.MoveExperimentRequest(**new, **one, project_id=2),
        "GetModel": registry_pb2.GetModelRequest(name="m"),
        "ListModelVersions": registry_pb2.ListModelVersionsRequest(**model),
        "GetModelVersion": registry_pb2.GetModelVersionRequest(**model, number=1),
        "UpdateModel": registry_pb2.UpdateModelRequest(**new, **model, action=delete),
        "UpdateModelVersion": registry_pb2.UpdateModelVersionRequest(**new, **model, number=1, action=edit),
        "SetModelAlias": registry_pb2.SetModelAliasRequest(**new, **model, alias="best", version=1),
        "AssignRole": access_pb2.AssignRoleRequest(
            **new, role=access_pb2.ROLE_VIEWER, user="viewer", workspace="lab"
        ),
        "RevokeToken": user_pb2.RevokeTokenRequest(**new, token_id=1),
        "GetTaskAccess": pb.GetTaskAccessRequest(experiment_id=SHELL_ID),
        "ConnectTask": pb.ConnectTaskRequest(experiment_id=SHELL_ID),
        "UpdateSavedView": pb.UpdateSavedViewRequest(**new, view_id=VIEW_IDS[-1], version=1, name="other"),
        "DeleteSavedView": pb.DeleteSavedViewRequest(**new, view_id=VIEW_IDS[-1]),
        "GetSavedView": pb.GetSavedViewRequest(view_id=VIEW_IDS[-1]),
        "LogIn": user_pb2.LogInRequest(name="x", password="y"),
        "CreateUser": user_pb2.CreateUserRequest(**new, change=user_pb2.UserChange(name="more")),
        "UpdateUser": user_pb2.UpdateUserRequest(**new, name="owner", change=user_pb2.UserChange(display_name="O")),
        "SetQuota": quota_pb2.SetQuotaRequest(
            **new, kind="workspace", name="lab", change=quota_pb2.QuotaChange(max_slots=9)
        ),
        "RemoveQuota": quota_pb2.RemoveQuotaRequest(**new, kind="workspace", name="lab"),
        "UpdateGroup": access_pb2.UpdateGroupRequest(**new, action=access_pb2.GROUP_ACTION_CREATE, name="g"),
    }  # fmt: skip
    return given


# Those that take the record away, or end it, come last.
_LAST = ("ArchiveExperiment", "DeleteSavedView", "RevokeToken", "KillTrial", "KillExperiment")


async def upload(request: Message) -> AsyncIterator[Message]:
    yield request


async def _call(client: Client, path: str, request: Message) -> str:
    method = METHODS[path]
    stub = client.ingest if "Ingest" in path else client.gateway

    answer = getattr(stub, method.name)(
        upload(request) if method.client_streaming else request, metadata=client.metadata, timeout=3
    )
    try:
        if method.server_streaming:
            async for _ in answer:
                break
            answer.cancel()
        else:
            await answer
    except grpc.aio.AioRpcError as failure:
        error = rpc.error_of(failure, "the gateway")
        return _verdict(error.kind, error.code, method.name)
    return OK


def _verdict(kind: ErrorKind | None, code: str, name: str) -> str:
    if kind is ErrorKind.UNAUTHENTICATED:
        return UNKNOWN
    if kind is ErrorKind.FORBIDDEN:
        # A login with a wrong password, which is no question of rights.
        return OK if code == "auth.wrong_password" else FORBIDDEN
    return HIDDEN if code.endswith(".not_found") else OK


async def test_every_call_of_grpc_answers_every_caller_as_the_table_says(world: Addresses) -> None:
    requests, clients = _requests(), {name: Client(world.grpc, world.http, token_of(name)) for name in CALLERS}
    order = sorted(METHODS, key=lambda path: _LAST.index(METHODS[path].name) if METHODS[path].name in _LAST else -1)
    different: dict[tuple[str, str], tuple[str, str]] = {}
    num_calls = 0
    for path in order:
        name, need = METHODS[path].name, NEED_BY_CALL[path]
        request: Any = requests.get(name) or GetMessageClass(METHODS[path].input_type)()
        if "request_id" in request.DESCRIPTOR.fields_by_name and name != "ListExperiments":
            request.request_id = f"rights {name}"
        is_list = name not in requests
        expected_by_caller = {caller: expect(need, caller, name, is_list=is_list) for caller in CALLERS}
        for caller in denied_first(expected_by_caller):
            expected = expected_by_caller[caller]
            found = await _call(clients[caller], path, request)
            num_calls += 1
            # An empty request names no record, which whoever may make the call is told.
            if found != expected and not (is_list and {found, expected} == {HIDDEN, OK}):
                different[name, caller] = (expected, found)
    for client in clients.values():
        await client.close()
    assert different == {}
    assert num_calls == len(METHODS) * len(CALLERS)


_PARTS = {
    "experiment_id": "1", "trial_id": "1.1", "checkpoint_id": CHECKPOINT_ID, "job_id": "1", "workspace_id": "2",
    "project_id": "2", "name": "t", "model_id": "3", "number": "1", "alias": "best", "token_id": "1",
    "table": "experiments", "code_sha256": "0" * 64, "path:path": "a", "agent_id": "a1", "slot_id:path": "a1/0",
    "user_id": "14", "key": "0" * 64, "kind": "workspace", "subject:path": "lab",
}  # fmt: skip
_BODIES: dict[str, Any] = {
    "PATCH /api/v1/saved-views/{view_id}": {"version": 1, "name": "other"},
    "POST /api/v1/experiments/{experiment_id}/move": {"destinationProjectId": 2},
    "POST /api/v1/job-queues/preview": {"jobId": 1, "priority": 3},
    "POST /api/v1/job-queues": {"updates": [{"jobId": "1", "priority": 3}]},
    "DELETE /api/v1/checkpoints": {"checkpointUuids": [CHECKPOINT_ID]},
    "PUT /api/v1/roles": {"user": "viewer", "role": "VIEWER", "workspace": "lab"},
    "POST /api/v1/models": {"name": "new", "workspaceName": "lab"},
    "POST /api/v1/models/{model_id}/versions": {"checkpointUuid": CHECKPOINT_ID},
    "PUT /api/v1/models/{model_id}/aliases/{alias}": {"version": 1},
    "POST /api/v1/trials/{trial_id}/profile": {"batches": 2},
    "PUT /api/v1/templates/{name}": {"config": {"max_restarts": 2}},
    "PATCH /api/v1/tokens/{token_id}": {"setRevoked": True},
    "PATCH /api/v1/experiments/{experiment_id}": {"name": "x"},
    "POST /api/v1/tasks": {"kind": "COMMAND", "config": "entrypoint: [ls]\nworkspace: lab\nproject: vision\n"},
    "POST /api/v1/workspaces": {"name": "more"},
}
_QUERIES = {
    "/api/v1/metrics/series": "?trialIds=1.1&metrics=training/loss", "/api/v1/metrics/names": "?trialIds=1.1",
    "/api/v1/experiments/{experiment_id}/preview-gc": "?saveTrialLatest=1",
    "/api/v1/experiments/{experiment_id}/logs/place": "?time=2026-01-01T00:00:00Z", "/api/v1/usage": "?since=1d",
    "/api/v1/trials/{trial_id}/logs/place": "?time=2026-01-01T00:00:00Z",
    "/api/v1/trials/{trial_id}/metrics/series": "?metric=loss&group=training",
    "/api/v1/usage/history": "?startDate=2026-01-01&endDate=2026-01-02",
    "/api/v1/resources/allocation/aggregated": "?startDate=2026-01-01&endDate=2026-01-02",
}  # fmt: skip
# What they name is not there, so whoever may make the call is told so.
_ABSENT = (
    "DELETE /api/v1/fusion/{key}", "GET /api/v1/agents/{agent_id}", "POST /api/v1/agents/", "PATCH /api/v1/groups/",
    "DELETE /api/v1/groups/", "DELETE /api/v1/saved-views/", "GET /api/v1/agents/{agent}",
)  # fmt: skip
_LAST_ROUTES = ("/archive", "/unarchive", "saved-views/{view_id}", "tokens/{token_id}", "/cancel", "/kill")


def _filled(path: str) -> str:
    name_of = {"/api/v1/users/": "owner", "/api/v1/groups/": "g"}
    parts = {**_PARTS, "view_id": VIEW_IDS[-1]}
    if path.startswith("/api/v1/tasks/"):
        parts["experiment_id"] = str(SHELL_ID)
    for prefix, name in name_of.items():
        if path.startswith(prefix):
            parts["name"] = name
    for name, value in parts.items():
        path = path.replace("{" + name + "}", value)
    return path


# The document takes a while to make.
_describe = cache(describe_api)


def _example(method: str, path: str) -> Any:
    operation = _describe()["paths"].get(path.replace(":path", ""), {}).get(method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return content.get("example", {}) if content else None


async def test_every_route_answers_every_caller_as_the_table_says(world: Addresses) -> None:
    def last(place: tuple[str, str]) -> int:
        found = [number for number, end in enumerate(_LAST_ROUTES) if place[1].endswith(end) and place[0] != "GET"]
        return max(found, default=-1)

    different: dict[tuple[str, str], tuple[str, str]] = {}
    clients = {
        name: httpx.AsyncClient(
            base_url=f"http://{world.http}",
            headers={"Authorization": f"Bearer {token_of(name)}"} if token_of(name) else {},
            timeout=20,
            verify=NO_TLS,
        )
        for name in CALLERS
    }
    bodies = {place: _BODIES.get(" ".join(place), _example(*place)) for place in NEED_BY_ROUTE}
    num_calls = 0
    for place in sorted(NEED_BY_ROUTE, key=last):
        method, path = place
        key, need = f"{method} {path}", NEED_BY_ROUTE[place]
        is_list = "{" not in path and path not in _QUERIES and key not in _BODIES
        is_list = is_list or path == "/api/v1/tables/{table}"
        expected_by_caller = {caller: expect(need, caller, key, is_list=is_list) for caller in CALLERS}
        for caller in denied_first(expected_by_caller):
            expected = expected_by_caller[caller]
            url = _filled(path) + _QUERIES.get(path, "")
            found = await _request(clients[caller], method, url, bodies[place])
            num_calls += 1
            if expected == OK and found == HIDDEN and key.startswith(_ABSENT):
                continue
            # Metrics and health are for all; a login asks for the page's header in place of a token. Determined's
            # surface answers the one call that both have, and that needs no token there.
            if found != expected and need is not Need.OPEN and (path, caller) != ("/api/v1/master", "nobody"):
                different[key, caller] = (expected, found)
    for client in clients.values():
        await client.aclose()
    assert different == {}
    assert num_calls == len(NEED_BY_ROUTE) * len(CALLERS)


async def _request(client: httpx.AsyncClient, method: str, url: str, body: Any) -> str:
    try:
        async with client.stream(method, url, **({} if body is None else {"json": body})) as answer:
            if answer.status_code < 400:
                return OK
            document = (await answer.aread(), answer.json())[1]
    except httpx.ReadTimeout:
        # A stream that waits for its first record has been admitted.
        return OK
    code = document.get("code") or document.get("error", {}).get("code", "")
    kinds = {401: ErrorKind.UNAUTHENTICATED, 403: ErrorKind.FORBIDDEN}
    return _verdict(kinds.get(answer.status_code), code, url)


_DETERMINED_PARTS = {"task": "1.1", "uuid": CHECKPOINT_ID, "agent": "a1", "slot": "0", "label": "a", "name": "t"}
_DETERMINED_BODIES: dict[str, Any] = {
    "POST /api/v1/users": {"user": {"username": "more", "active": True}, "password": "Password-of-more-1"},
    "POST /api/v1/experiments/{id}/move": {"destinationProjectId": 2},
    "DELETE /api/v1/checkpoints": {"checkpointUuids": [CHECKPOINT_ID]},
    "POST /api/v1/checkpoints/rm": {"checkpointUuids": [CHECKPOINT_ID], "checkpointGlobs": ["**"]},
    "POST /api/v1/experiments/continue": {"id": 1, "overrideConfig": "{}"},
    "POST /api/v1/job-queues": {"updates": [{"jobId": "1", "priority": 3}]},
    "PATCH /api/v1/experiments/{id}": {"name": "x"},
    "PATCH /api/v1/tokens/{id}": {"setRevoked": True},
    "POST /api/v1/shells/{id}/set_priority": {"priority": 3},
    "PATCH /api/v1/templates/{name}": {"max_restarts": 2},
    "PATCH /api/v1/workspaces/{id}": {"name": "lab"},
    "PATCH /api/v1/projects/{id}": {"name": "vision"},
    "PUT /api/v1/experiments/{id}/retain_logs": {"numDays": 3},
    "PUT /api/v1/trials/{id}/retain_logs": {"numDays": 3},
}


# Tasks of these kinds, which the world has not; and starts of tasks in the default workspace, which only the boss sees.
_NOT_THERE = ("/api/v1/commands/{", "/api/v1/notebooks/{")
_IN_DEFAULT = ("POST /api/v1/notebooks", "POST /api/v1/shells")


def _id_of(path: str) -> str:
    for part, number in {
        "by-username": "owner", "/workspaces": "2", "/projects": "2", "/v1/trials": "100001", "/runs": "100001",
        "/users": "14", "/tokens": "1", "/shells": "2", "/commands": "2", "/notebooks": "2",
    }.items():  # fmt: skip
        if part in path:
            return number
    return "1"


def _filled_for_determined(path: str) -> str:
    url = path.replace("{id}", _id_of(path))
    for name, value in _DETERMINED_PARTS.items():
        url = url.replace("{" + name + "}", value)
    return url


async def test_every_call_of_determined_answers_every_user_as_the_table_says(world: Addresses) -> None:
    different: dict[tuple[str, str], tuple[str, str]] = {}
    clients = {
        name: httpx.AsyncClient(
            base_url=f"http://{world.http}",
            headers={"Authorization": f"Bearer {determined_token_of(name)}"},
            timeout=3,
            verify=NO_TLS,
        )
        for name in USERS
    }

    def last(place: tuple[str, str]) -> int:
        ends = ("/labels/{label}", "/archive", "/unarchive", "/tokens/{id}", "/cancel", "/kill", "/logout")
        found = [number for number, end in enumerate(ends) if place[1].endswith(end) and place[0] != "GET"]
        return max(found, default=-1)

    num_calls = 0
    for place in sorted(NEED_BY_DETERMINED_ROUTE, key=last):
        method, path = place
        key, need, url = f"{method} {path}", NEED_BY_DETERMINED_ROUTE[place], _filled_for_determined(path)
        is_list = "{" not in path and key not in _DETERMINED_BODIES
        body = _DETERMINED_BODIES.get(key, {} if method in ("POST", "PATCH", "PUT") else None)
        expected_by_caller = {caller: expect(need, caller, key, is_list=is_list) for caller in USERS}
        if path.startswith(_NOT_THERE):
            expected_by_caller = dict.fromkeys(USERS, HIDDEN)
        for caller in denied_first(expected_by_caller):
            expected = expected_by_caller[caller]
            found = await _request(clients[caller], method, url, body)
            num_calls += 1
            if (
                found != expected
                and need is not Need.OPEN
                and not (expected == OK and found == HIDDEN and (key.startswith(_ABSENT) or key in _IN_DEFAULT))
            ):
                different[key, caller] = (expected, found)
    for client in clients.values():
        await client.aclose()
    assert different == {}
    assert num_calls == len(NEED_BY_DETERMINED_ROUTE) * len(USERS)


async def test_before_the_first_change_of_roles_nothing_is_refused_that_versions_without_roles_allowed(
    open_cluster: Addresses,
) -> None:
    """Every user sees everything, creates everywhere and operates the work of others; what was for the owner stays so.
    One change of the roles for the cluster ends it."""
    requests = _requests()
    client = Client(open_cluster.grpc, open_cluster.http, token_of("stranger"))
    headers = {"Authorization": f"Bearer {token_of('stranger')}"}
    settings: dict[str, Any] = {"base_url": f"http://{open_cluster.http}", "timeout": 20, "verify": NO_TLS}
    http = httpx.AsyncClient(headers=headers, **settings)
    determined = httpx.AsyncClient(headers={"Authorization": f"Bearer {determined_token_of('stranger')}"}, **settings)
    calls: list[tuple[str, Need, Callable[[], Awaitable[str]]]] = []

    def add(name: str, need: Need, call: Callable[..., Awaitable[str]], *arguments: Any) -> None:
        calls.append((name, need, partial(call, *arguments)))

    for path, need in NEED_BY_CALL.items():
        if request := requests.get(METHODS[path].name):
            if "request_id" in request.DESCRIPTOR.fields_by_name:
                request.request_id = f"open {path}"  # type: ignore[attr-defined]  # it has the field
            add(METHODS[path].name, need, _call, client, path, request)
    for (method, path), need in NEED_BY_ROUTE.items():
        body = _BODIES.get(f"{method} {path}", _example(method, path))
        add(f"{method} {path}", need, _request, http, method, _filled(path) + _QUERIES.get(path, ""), body)
    for (method, path), need in NEED_BY_DETERMINED_ROUTE.items():
        if not path.startswith(_NOT_THERE):
            body = _DETERMINED_BODIES.get(f"{method} {path}", {} if method in ("POST", "PATCH", "PUT") else None)
            add(f"{method} {path}", need, _request, determined, method, _filled_for_determined(path), body)
    for caller_needs, expected in (
        # Refused calls first, because the others end the experiment.
        ((Need.CHANGE, Need.MANAGE), FORBIDDEN),
        ((Need.VIEW, Need.VIEW_ALL, Need.EDIT, Need.EDIT_ALL), OK),
        ((Need.OPERATE,), OK),
    ):
        chosen = sorted((each for each in calls if each[1] in caller_needs), key=lambda each: _ends_something(each[0]))
        assert len(chosen) > 5
        found = {name: await call() for name, _, call in chosen}
        assert {name: verdict for name, verdict in found.items() if verdict != expected} == {}
    role = {"group": "everyone", "role": "EDITOR"}
    boss = {"Authorization": f"Bearer {token_of('boss')}"}
    assert (await http.put("/api/v1/roles", json=role, headers=boss)).status_code == 200
    chosen = [each for each in calls if each[1] is Need.OPERATE]
    found = {name: await call() for name, _, call in chosen}
    assert {name: verdict for name, verdict in found.items() if verdict != FORBIDDEN} == {}
    for each in (http, determined):
        await each.aclose()
    await client.close()


def _ends_something(name: str) -> bool:
    return name in _LAST or name.endswith(("/archive", "/unarchive", "/cancel", "/kill"))


async def test_what_a_user_may_not_see_is_nowhere(world: Addresses) -> None:
    """In lists, tables and counts, while the queue tells of the slots alone. Unknown and unseen records get the same
    answer."""
    stranger, owner = (
        httpx.AsyncClient(
            base_url=f"http://{world.http}/api/v1",
            headers={"Authorization": f"Bearer {token_of(name)}"},
            timeout=20,
            verify=NO_TLS,
        )
        for name in ("stranger", "owner")
    )
    for path, name in [
        ("experiments", "experiments"), ("tables/experiments", "rows"), ("tables/trials", "rows"),
        ("workspaces", "workspaces"), ("models", "models"), ("model-versions", "versions"),
        ("checkpoints", "checkpoints"), ("templates", "templates"),
    ]:  # fmt: skip
        seen, unseen = (await owner.get(path)).json(), (await stranger.get(path)).json()
        assert seen[name], path
        assert unseen[name] == [], path
        total = unseen.get("total", unseen.get("pagination", {}).get("total", 0))
        assert total == 0, path
    for path in ("experiments/{}", "experiments/{}/trials", "workspaces/{}", "projects/{}", "models/{}"):
        unseen, unknown = (await stranger.get(path.format(2))), (await stranger.get(path.format(77)))
        assert (unseen.status_code, unseen.json()["detail"].replace("2", "77")) == (404, unknown.json()["detail"])
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for client, found in ((owner, own), (stranger, others)):
        jobs = (await client.get("job-queues")).json()["jobs"]
        found.update({job["trialId"]: job["name"] for job in jobs})
    assert {"1.1", "2.1"} == own.keys()
    assert others == dict.fromkeys(("0.1", "0.2"), "a request of another workspace")
    text = (await stranger.get("job-queues")).text + (await stranger.get("usage?since=1d&by=owner")).text
    assert not any(name in text for name in ('owner":"owner', "digits", "lab", "vision", '"2.1"', '"2.1.'))
    snapshot = (await owner.get("tables/experiments")).json()["snapshot"]
    assert (await stranger.get("tables/experiments", params={"snapshot": snapshot})).json()["rows"] == []
    for client in (stranger, owner):
        await client.aclose()


async def test_a_stream_tells_of_what_its_caller_sees_and_begins_anew_with_other_roles(world: Addresses) -> None:
    def connect(name: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token_of(name)}"}
        return httpx.AsyncClient(base_url=f"http://{world.http}/api/v1", headers=headers, timeout=20, verify=NO_TLS)

    async with connect("stranger") as stranger, connect("owner") as owner, connect("manager") as manager:
        query = "stream?experiments=true&experimentFields=id,name"
        async with stranger.stream("GET", query) as hidden, owner.stream("GET", query) as seen:
            unseen_lines, lines = hidden.aiter_lines(), seen.aiter_lines()
            await _next_event(unseen_lines, "open")
            await _next_event(lines, "open")
            assert (await owner.patch("experiments/1", json={"name": "renamed"})).status_code == 200
            assert "renamed" in await _next_event(lines, "changes")
            role = {"user": "stranger", "role": "VIEWER", "workspace": "lab"}
            assert (await manager.put("roles", json=role)).status_code == 200
            # The first event since the stream began: nothing was told of the renamed experiment.
            assert "read the pages anew" in await _next_event(unseen_lines, "reset")
            assert (await owner.patch("experiments/1", json={"name": "again"})).status_code == 200
            assert "again" in await _next_event(unseen_lines, "changes")


async def test_two_streams_with_one_change_get_each_what_its_caller_sees(world: Addresses, etcd: EtcdClient) -> None:
    """The text of a change is made once for all streams that see the same."""
    async with AsyncExitStack() as stack:
        lines: dict[str, AsyncIterator[str]] = {}
        for name in ("viewer", "boss"):
            headers = {"Authorization": f"Bearer {token_of(name)}"}
            base_url = f"http://{world.http}/api/v1"
            client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=20, verify=NO_TLS)
            await stack.enter_async_context(client)
            query = "stream?experiments=true&experimentFields=id,name"
            lines[name] = (await stack.enter_async_context(client.stream("GET", query))).aiter_lines()
            await _next_event(lines[name], "open")
        new = [
            Experiment(number, name, "owner", "{}", "", project_id=project_id)
            for number, name, project_id in ((50, "of-the-lab", 2), (51, "of-another", 1))
        ]
        await etcd.commit([Put(keys.experiment(each.id), wire.encode(each)) for each in new])
        seen = {name: await _next_event(lines[name], "changes") for name in lines}
    assert {name: ("of-the-lab" in text, "of-another" in text) for name, text in seen.items()} == {
        "viewer": (True, False),
        "boss": (True, True),
    }


async def test_the_queue_of_a_stream_names_what_its_caller_sees(world: Addresses) -> None:
    """The queue is read once for all streams that see the same."""
    found: dict[str, tuple[bool, bool]] = {}
    async with AsyncExitStack() as stack:
        streams: dict[str, AsyncIterator[str]] = {}
        for name in ("owner", "stranger", "viewer"):
            headers = {"Authorization": f"Bearer {token_of(name)}"}
            base_url = f"http://{world.http}/api/v1"
            client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=20, verify=NO_TLS)
            await stack.enter_async_context(client)
            answer = await stack.enter_async_context(client.stream("GET", "stream?queue=true"))
            streams[name] = answer.aiter_lines()
        for name, lines in streams.items():
            await _next_event(lines, "open")
            text = await _next_event(lines, "changes")
            found[name] = ('"1.1"' in text, "a request of another workspace" in text)
    assert found == {"owner": (True, False), "stranger": (False, True), "viewer": (True, False)}


async def test_what_is_followed_ends_with_the_role(world: Addresses) -> None:
    """A viewer follows the state and the logs of an experiment in which nothing happens. Without its role both streams
    end as if there were no experiment, and later calls are answered so."""
    viewer = Client(world.grpc, world.http, token_of("viewer"))
    boss = Client(world.grpc, world.http, token_of("boss"))
    metadata: dict[str, Any] = {"metadata": viewer.metadata, "timeout": 60}
    logs = pb.StreamLogsRequest(experiment_id=EXPERIMENT_ID, follow=True, tail=1)
    streams = [
        aiter(viewer.gateway.WatchExperiment(pb.WatchExperimentRequest(experiment_id=EXPERIMENT_ID), **metadata)),
        aiter(viewer.gateway.StreamLogs(logs, **metadata)),
    ]
    # Each begins with an answer, also without a line.
    for stream in streams:
        await anext(stream)
    ends = [asyncio.create_task(_end_of(stream)) for stream in streams]
    role = access_pb2.AssignRoleRequest(request_id="take", user="viewer", workspace="lab")
    await boss.gateway.AssignRole(role, metadata=boss.metadata)
    assert await asyncio.gather(*ends) == ["experiment.not_found"] * len(streams)
    request = pb.GetExperimentRequest(experiment_id=EXPERIMENT_ID)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await viewer.gateway.GetExperiment(request, metadata=viewer.metadata)
    assert rpc.error_of(caught.value, "the gateway").code == "experiment.not_found"
    for client in (viewer, boss):
        await client.close()


async def _end_of(stream: Any) -> str:
    """Returns the code with which a stream ends; empty for an end without one."""
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as failure:
        return rpc.error_of(failure, "the gateway").code
    return ""


async def test_a_call_that_the_table_lacks_is_refused_when_it_is_made(
    tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for administrators, on all three surfaces, so a forgotten entry is no hole."""
    monkeypatch.delitem(NEED_BY_CALL, "/gangline.v1.GatewayService/ListExperiments")
    # A route of HTTP looks for its entry when it is made, which is when its module is loaded.
    forgotten = Route("/api/v1/forgotten", lambda: {}, methods=["GET"])
    monkeypatch.setattr(app, "build_routes", lambda: [*build_routes(), forgotten])
    monkeypatch.delitem(NEED_BY_DETERMINED_ROUTE, ("GET", "/api/v1/experiments"))
    async with open_world(tmp_path, etcd, etcd_settings) as addresses:
        boss = Client(addresses.grpc, addresses.http, token_of("boss"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await boss.gateway.ListExperiments(pb.ListExperimentsRequest(), metadata=boss.metadata)
        assert rpc.error_of(caught.value, "the gateway").code == "auth.no_entry"
        for path, token in (("forgotten", token_of("boss")), ("experiments", determined_token_of("boss"))):
            answer = await boss.http.get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, "no entry" in answer.text) == (403, True), answer.text
        await boss.close()


async def _next_event(lines: AsyncIterator[str], kind: str) -> str:
    """Returns the data of the next event, which has to be of this kind."""
    found = ""
    async for line in lines:
        if line.startswith("event: "):
            found = line.removeprefix("event: ")
        elif line.startswith("data: "):
            assert found == kind, line
            return line
    raise AssertionError("the stream has ended")
