"""No single request freezes or breaks a gateway or a scheduler: real processes and hostile requests.

While an attack runs, /healthz is asked again and again. The bound on its answers is generous, for a loaded machine;
a gateway that works on its event loop misses it by far.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from gangline.protocol import rpc
from gangline.v1 import gateway_pb2 as pb
from services.common.etcd import EtcdClient, EtcdSettings
from services.gateway.http.serving import server as http_server
from services.gateway.http.serving.connection_limit import MAX_CONNECTIONS
from services.gateway.program import run_gateway
from tests.support import hostile
from tests.support.etcd import EtcdServer
from tests.support.gateway import NO_TLS, USER_TOKEN, Client, GatewayProcess, add_user, pack, settings_in, sha256
from tests.support.scheduler import ADMIN_TOKEN, SchedulerProcess

HEALTHY_SECONDS = 5.0
CODE = pack({"model_def.py": b"x = 1"})


@pytest_asyncio.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """An administrator's client. Experiment 1 waits for slots, and its code is stored."""
    folder = tmp_path_factory.mktemp("hostile")
    etcd = EtcdServer(folder / "etcd")
    scheduler = SchedulerProcess(folder / "scheduler", etcd.settings)
    gateway = GatewayProcess(folder, etcd.address)
    try:
        await scheduler.start()
        await gateway.start()
        client = Client(gateway.addresses["grpc"], gateway.addresses["http"], ADMIN_TOKEN)
        client.http.timeout = httpx.Timeout(120)
        await create(client, hostile.CONFIG, codeArchive=base64.b64encode(CODE).decode())
        yield client
        await client.close()
    finally:
        await gateway.end()
        scheduler.end()
        etcd.stop()


async def create(client: Client, config: str | dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = await client.http.post("/api/v1/experiments", json={"config": config, **fields})
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    return created


async def survives(client: Client, *attacks: Awaitable[Any]) -> list[Any]:
    """The attacks' answers, all at once; meanwhile /healthz answers."""
    slowest = 0.0

    async def watch(http: httpx.AsyncClient) -> None:
        nonlocal slowest
        while True:
            started = time.monotonic()
            answer = await http.get("/healthz")
            slowest = max(slowest, time.monotonic() - started)
            assert answer.status_code == 200
            # Far less than the bound, and long enough that the watch takes no time from the gateway.
            await asyncio.sleep(0.05)

    async with httpx.AsyncClient(base_url=f"http://{client.http_address}", timeout=60, verify=NO_TLS) as http:
        watching = asyncio.create_task(watch(http))
        answers = await asyncio.gather(*attacks)
        if not watching.done():
            await asyncio.sleep(0.05)
            watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    print(f"the slowest answer of /healthz took {slowest:.3f} s")
    assert slowest < HEALTHY_SECONDS
    return answers


def check_problem(answer: httpx.Response, code: str, part: str) -> None:
    problem = answer.json()
    assert answer.status_code == 400, problem
    assert problem["code"] == code
    assert part in problem["detail"]
    assert len(problem["detail"].splitlines()) == 1


@pytest.mark.parametrize("path", ["experiments", "preview-hp-search"])
async def test_hostile_configurations_over_http(client: Client, path: str) -> None:
    more = {"codeSha256": sha256(CODE)} if path == "experiments" else {}
    bodies = [{"config": text, **more} for text, _, _ in hostile.CONFIGS.values()]
    answers = await survives(client, *(client.http.post(f"/api/v1/{path}", json=body) for body in bodies))
    for answer, (_, code, part) in zip(answers, hostile.CONFIGS.values(), strict=True):
        check_problem(answer, code, part)


JSON_CONFIGS = {
    "nested": ("[" * 100_000, "config.too_large"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "config.syntax"),
    "values": ("[" + "1," * 60_000 + "1]", "config.too_large"),
    "text": (" " * (3 << 20), "config.too_large"),
    "list": ("[]", "config.wrong_type"),
    "pattern": (
        '{"entrypoint": "true", "searcher": {"name": "single", "metric": "l"}, "log_policies": [{"pattern": '
        '"\\\\pL{400}"}, {"pattern": "\\\\pL{401}"}]}',
        "config.invalid_value",
    ),
    "grid": (
        '{"entrypoint": "a:B", "searcher": {"name": "grid", "metric": "l", "max_length": 1}, "hyperparameters": '
        '{"x": {"type": "int", "minval": 0, "maxval": 2000000000, "count": 1000000000}}}',
        "config.invalid_value",
    ),
}


async def test_hostile_configurations_over_grpc(client: Client) -> None:
    async def attack(text: str) -> str:
        request = pb.CreateExperimentRequest(request_id="r", config_json=text, code_sha256=sha256(CODE))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.gateway.CreateExperiment(request, metadata=client.metadata, timeout=100)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        return rpc.error_of(failure.value, "the gateway").code

    codes = await survives(client, *(attack(text) for text, _ in JSON_CONFIGS.values()))
    assert dict(zip(JSON_CONFIGS, codes, strict=True)) == {name: code for name, (_, code) in JSON_CONFIGS.items()}


@pytest.mark.parametrize("key", ["log_policies", "log\\u005fpolicies"])
async def test_patterns_of_a_continued_experiment_are_bounded_however_written(client: Client, key: str) -> None:
    overrides = f'{{"{key}": [{{"pattern": "\\\\pL{{400}}"}}, {{"pattern": "\\\\pL{{401}}"}}]}}'
    request = pb.ContinueExperimentRequest(request_id="r", experiment_id=1, overrides_json=overrides)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.ContinueExperiment(request, metadata=client.metadata, timeout=100)
    assert rpc.error_of(failure.value, "the gateway").code == "config.invalid_value"


async def test_hostile_archives(client: Client) -> None:
    contents = [make() for make, _, _ in hostile.ARCHIVES.values()]
    uploads = (client.http.put(f"/api/v1/code/{sha256(content)}", content=content) for content in contents)
    for answer, (_, code, part) in zip(await survives(client, *uploads), hostile.ARCHIVES.values(), strict=True):
        check_problem(answer, code, part)


async def test_bodies_that_are_large_and_full_of_values(client: Client) -> None:
    config = json.dumps(hostile.CONFIG)
    bodies = {
        "/api/v1/experiments": [
            b'{"config": {"data": [' + b"[]," * (20 << 20) + b"[]]}}",
            b"[" * (1 << 20),
            b'{"config": ' + config.encode() + b', "codeArchive": "' + b"A" * (100 << 20) + b'"}',
            b'{"config": ' + config.encode() + b', "codeArchive": "\xc3\xa4"}',
            b'{"config": ' + config.encode() + b', "requestId": "\\ud800", "codeSha256": "x"}',
            b'{"config": ' + b"9" * 5000 + b"}",
            b"\xff\xfe",
        ],
        "/api/v1/preview-hp-search": [b'{"config": "' + b"x" * (2 << 20) + b'"}', b"[" * 100_000],
        "/api/v1/job-queues": [b'{"updates": [' + b"{}," * 200_000 + b"{}]}"],
    }
    headers = {"Content-Type": "application/json"}
    attacks = [
        client.http.post(path, content=content, headers=headers) for path, part in bodies.items() for content in part
    ]
    for answer in await survives(client, *attacks):
        assert answer.status_code == 400, answer.text
        assert len(answer.json()["detail"].splitlines()) == 1


async def test_what_is_within_the_limits_is_taken(client: Client) -> None:
    """A character beyond the first plane, which two escapes name in JSON, and an archive in several parts of base64."""
    archive = pack({"model_def.py": b"x = 1", "data.bin": bytes(range(256)) * 40_000, "noise": noise(9 << 20)})
    config = {**_document(), "description": "\N{ROCKET}"}
    created = await create(client, config, codeArchive=base64.b64encode(archive).decode())
    assert created["experiment"]["config"]["description"] == "\N{ROCKET}"
    assert created["experiment"]["codeSha256"] == sha256(archive)


def noise(size: int) -> bytes:
    """Returns bytes that gzip cannot compress."""
    return b"".join(sha256(str(number).encode()).encode() for number in range(size // 64))


def _document() -> dict[str, Any]:
    return {
        "name": "kept",
        "entrypoint": "model_def:Trial",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 3}},
    }


WORDS = [
    "0", "-1", str(2**31), str(2**63), str(-(2**63) - 1), "9" * 5000, "1e400", "nan", "Infinity", "true", "null", "",
    "x" * 3000, "\x00", "\ud800", "\N{ROCKET}", "../..", "%", "'; DROP TABLE logs", "1.1", f"1.{'9' * 5000}",
    f"{2**63}.1", "7.1.1", "alloc:1.1.1:x", "2024-99-99", "[" * 500,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 3000, "\x00", "\ud800", [],
    {},
    ["\ud800"], [[]], [{}] * 3, {"": ""}, {"\ud800": 1}, {"resources": 1},
]  # fmt: skip


def requests_of(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and arguments: each parameter and each field of a body with each hostile value, the others valid."""
    for template, methods in schema["paths"].items():
        for method, described in methods.items():
            parameters = described.get("parameters", [])
            valid = {parameter["name"]: _valid(parameter["name"]) for parameter in parameters}
            for parameter in parameters:
                for word in WORDS:
                    yield method, *_place(template, parameters, valid | {parameter["name"]: word})
            if "requestBody" in described:
                path, arguments = _place(template, parameters, valid)
                for body in _bodies(described["requestBody"], schema):
                    yield method, path, {**arguments, "content": body, "json": None}


def _valid(name: str) -> str:
    names = {"experiment_id": "1", "trial_id": "1.1", "job_id": "1", "code_sha256": "0" * 64, "follow": "false"}
    return names.get(name, "1")


def _place(template: str, parameters: list[dict[str, Any]], values: dict[str, str]) -> tuple[str, dict[str, Any]]:
    query, headers = [], {}
    for parameter in parameters:
        name = parameter["name"]
        text = quote(values[name].encode(errors="surrogatepass"), safe="")
        if parameter["in"] == "path":
            template = template.replace(f"{{{name}}}", text or "%20")
        elif parameter["in"] == "query":
            query.append(f"{name}={text}")
        else:
            headers[name] = text[:4000]
    return template + (f"?{'&'.join(query)}" if query else ""), {"headers": headers}


def _bodies(described: dict[str, Any], schema: dict[str, Any]) -> Iterator[bytes]:
    model = described["content"]["application/json"]["schema"]
    name = (model.get("$ref") or model["anyOf"][0]["$ref"]).rpartition("/")[2]
    fields = list(schema["components"]["schemas"][name]["properties"])
    for value in VALUES:
        yield json.dumps(value).encode()
        for field in fields:
            yield json.dumps({field: value}).encode()
            yield json.dumps(_SOUND.get(name, {}) | {field: value}).encode()
            yield json.dumps({field: [value]}).encode()
    for value in VALUES:
        for field in ("priority", "weight", "maxSlots", "jobId", "aheadOf", "behindOf"):
            yield json.dumps({"resources": {field: value}}).encode()
            yield json.dumps({"updates": [{"jobId": 1} | {field: value}]}).encode()


_SOUND: dict[str, dict[str, Any]] = {
    "CreateExperiment": {"config": _document(), "codeSha256": "0" * 64},
    "PreviewSearch": {"config": _document()},
}


async def test_no_call_of_the_api_answers_with_an_error_of_the_server(client: Client) -> None:
    schema = (await client.http.get("/openapi.json")).json()
    requests = list(requests_of(schema))
    assert len(requests) > 1500
    # A fifth of them, of every call: the values of a call come in turn. tests/e2e/test_http_schema.py sends what the
    # description leads to.
    wanted = requests[::5]
    failures: list[str] = []

    def attack(requests: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        # httpx takes several times as long as the gateway for a request.
        connection = HTTPConnection(client.http_address, timeout=120)
        for method, path, arguments in requests:
            headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
            content = arguments.get("content")
            connection.request(method.upper(), path, content, headers | arguments["headers"])
            answer = connection.getresponse()
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                connection.close()
                continue
            text = answer.read().decode()
            if answer.status < 400:
                continue
            problem = json.loads(text)
            is_clear = problem["code"] and len(problem["detail"].splitlines()) == 1
            if answer.status >= 500 or not is_clear:
                failures.append(f"{method} {path[:200]} {(content or b'')[:200]!r}: {text[:300]}")
        connection.close()

    await survives(client, *(asyncio.to_thread(attack, wanted[number::8]) for number in range(8)))
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:20]])


async def test_no_call_over_grpc_answers_with_an_internal_error(client: Client) -> None:
    """Each field of each message with what its type can hold at most, least and strangest."""
    failures: list[str] = []
    for method in pb.DESCRIPTOR.services_by_name["GatewayService"].methods:
        if method.client_streaming:
            continue
        for request in _requests(GetMessageClass(method.input_type)):
            call = getattr(client.gateway, method.name)(request, metadata=client.metadata, timeout=20)
            try:
                # Of a stream, what comes first decides.
                await (call.read() if method.server_streaming else call)
            except grpc.aio.AioRpcError as failure:
                if failure.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                    failures.append(f"{method.name}({str(request)[:200]}): {failure.details()}")
            finally:
                call.cancel()
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:20]])


def _requests(kind: Any) -> Iterator[Any]:
    """follow stays unset: it would wait for news."""
    yield kind()
    for field in kind.DESCRIPTOR.fields:
        if field.name == "follow":
            continue
        for value in _field_values(field):
            request = kind(**({"request_id": "r"} if "request_id" in kind.DESCRIPTOR.fields_by_name else {}))
            if isinstance(value, dict):
                getattr(request, field.name).update(value)
            elif field.is_repeated:
                getattr(request, field.name).append(value)
            elif field.message_type is not None:
                getattr(request, field.name).CopyFrom(value)
            else:
                setattr(request, field.name, value)
            yield request


def _field_values(field: Any) -> list[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return [{"7.1/x": 2**62, "../../etc/passwd": -1, "": 0}]
    if field.message_type is not None:
        return list(_requests(GetMessageClass(field.message_type)))
    by_type: dict[int, list[Any]] = {
        field.TYPE_INT64: [0, 1, -1, 2**63 - 1, -(2**63)],
        field.TYPE_INT32: [0, 1, -1, 2**31 - 1, -(2**31)],
        field.TYPE_DOUBLE: [float("nan"), float("inf"), -1.0, 1e308],
        field.TYPE_ENUM: [0, 1, 99],
        field.TYPE_BOOL: [False, True],
        field.TYPE_STRING: ["", "x" * 100_000, "\x00", "1.1", "9" * 5000, f"1.{'9' * 5000}", f"{2**63}.1", "../.."],
    }
    return by_type[field.type]


async def test_headers_that_do_not_end_are_cut_off(
    etcd_settings: EtcdSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that says nothing, one in the middle of its headers, and one in those of its second request."""
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 1.0)
    starts = [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HT"]

    async def trickle(start: bytes) -> float:
        reader, writer = await asyncio.open_connection(host, int(port))
        began = time.monotonic()
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        writer.close()
        return time.monotonic() - began

    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        host, _, port = addresses.http.rpartition(":")
        for seconds in await asyncio.wait_for(asyncio.gather(*map(trickle, starts)), 60):
            assert 0.9 < seconds < 40


async def test_begun_bodies_shut_nobody_out(client: Client) -> None:
    """More connections than the gateway keeps begin a body: without a token, of a login, and of a probe."""
    host, _, port = client.http_address.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    paths = ["/api/v1/experiments", "/api/v1/auth/login", "/healthz"]
    writers: list[asyncio.StreamWriter] = []
    try:
        for number in range(MAX_CONNECTIONS + 100):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST {paths[number % 3]} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx".encode())
            writers.append(writer)
        async with httpx.AsyncClient(base_url=f"http://{client.http_address}", timeout=60, verify=NO_TLS) as http:
            assert (await http.get("/healthz")).status_code == 200
            listed = await http.get("/api/v1/experiments", headers={"Authorization": f"Bearer {client.token}"})
            assert listed.status_code == 200
    finally:
        for writer in writers:
            writer.transport.abort()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_bodies_that_do_not_come_are_cut_off(
    etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of a caller without a token ends in time however it trickles, and one of a user when it stands still."""
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.5)
    await add_user(etcd)
    token = f"Authorization: Bearer {USER_TOKEN}\r\n"
    heads = [
        "POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        "POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        f"PUT /api/v1/code/{'0' * 64} HTTP/1.1\r\nHost: x\r\n{token}Content-Length: 1000\r\n\r\n",
    ]

    async def trickle(head: str) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode())
        closing = asyncio.create_task(_read_all(reader))
        while not closing.done():
            writer.write(b"x")
            await asyncio.wait({closing}, timeout=0.1)
        with contextlib.suppress(ConnectionError):
            assert closing.result() == "closed"
        writer.close()

    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        host, _, port = addresses.http.rpartition(":")
        await asyncio.wait_for(asyncio.gather(*map(trickle, heads)), 60)


async def test_slow_upload_that_moves_is_not_cut_off(
    etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODY_SECONDS", 4.0)
    monkeypatch.setattr(http_server, "MIN_BODY_BYTES", 1)
    await add_user(etcd)

    async def trickle() -> AsyncIterator[bytes]:
        for byte in CODE:
            yield bytes([byte])
            # Two and a half periods in all.
            await asyncio.sleep(10.0 / len(CODE))

    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        client = Client(addresses.grpc, addresses.http)
        answer = await client.http.put(f"/api/v1/code/{sha256(CODE)}", content=trickle())
        assert answer.status_code == 200, answer.text
        await client.close()


async def test_idle_connections_stay_open_longer_than_clients_keep_them(
    etcd_settings: EtcdSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that used a connection just when the gateway closed it saw its request fail with a reset."""
    # httpx keeps idle connections for 5 s, aiohttp for 15 s, Chromium and Firefox for minutes.
    assert http_server.IDLE_SECONDS > 60
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 2)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        host, _, port = addresses.http.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(request)
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):  # the rest of the answer, then silence for 0.5 s
                assert await asyncio.wait_for(_read_all(reader), 0.5) is None, "the idle connection was closed"
        await asyncio.wait_for(_read_all(reader), 60)
        assert time.monotonic() - began > 1.5
        writer.close()


async def _read_all(reader: asyncio.StreamReader) -> str:
    """Returns at the end of the connection."""
    while await reader.read(1 << 16):
        pass
    return "closed"
