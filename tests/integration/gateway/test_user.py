"""Users and tokens over real processes: etcd, schedulers, gateways, and clients of both surfaces."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from gangline.client import AsyncClient, Client
from gangline.domain.user import User, UserCounter, UserView
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol import rpc, wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings
from services.gateway.usecase.open.login_limit import FAILURES_OF_USER
from tests.support.gateway import NO_TLS, GatewayProcess
from tests.support.proxy import Proxy
from tests.support.scheduler import ADMIN_TOKEN, CLUSTER_TOKEN, SchedulerProcess
from tests.support.wait import until_async

T = TypeVar("T")
CONFIG = "name: digits\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
PASSWORD, NEW_PASSWORD = "Password-of-ann-1", "Password-of-ann-2"


@dataclass
class Bench:
    """A call of the SDK is made in a thread, because it blocks."""

    folder: Path
    settings: EtcdSettings
    etcd: EtcdClient
    stack: AsyncExitStack
    gateways: list[GatewayProcess] = field(default_factory=list)
    schedulers: list[SchedulerProcess] = field(default_factory=list)

    async def scheduler(self, name: str, settings: EtcdSettings | None = None) -> SchedulerProcess:
        process = SchedulerProcess(self.folder / "schedulers", settings or self.settings, name)
        self.stack.callback(process.end)
        self.schedulers.append(process)
        return await process.start()

    async def gateway(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        process = GatewayProcess(folder, ",".join(self.settings.endpoints))
        self.stack.push_async_callback(process.end)
        await process.start()
        self.gateways.append(process)

    def client(self, token: str, number: int = 0) -> Client:
        client = Client(self.gateways[number].addresses["grpc"], token, retry_seconds=40)
        self.stack.callback(client.close)
        return client

    def http(self, token: str, number: int = 0) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        address = self.gateways[number].addresses["http"]
        return httpx.AsyncClient(base_url=f"http://{address}/api/v1", headers=headers, timeout=20, verify=NO_TLS)

    async def users(self) -> list[str]:
        listing = await self.etcd.list(keys.USERS)
        return [wire.decode(User, item.value).name for item in listing.items]

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.folder.rglob("*.log"))


@pytest_asyncio.fixture
async def empty(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, etcd_settings, etcd, stack)


@pytest_asyncio.fixture
async def bench(empty: Bench) -> Bench:
    """With one scheduler and two gateways."""
    await empty.scheduler("s1")
    await asyncio.gather(empty.gateway("g1"), empty.gateway("g2"))
    return empty


async def call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return await asyncio.to_thread(function, *arguments, **options)


async def refusal(function: Callable[..., object], *arguments: Any, **options: Any) -> GanglineError:
    with pytest.raises(GanglineError) as failure:
        await call(function, *arguments, **options)
    return failure.value


async def refused(function: Callable[..., object], what: str) -> GanglineError:
    """Waits until a call is refused, by a gateway that hears of the change from etcd."""

    async def find() -> GanglineError | None:
        try:
            await call(function)
        except GanglineError as error:
            return error
        return None

    return await until_async(find, what, 20)


async def test_a_users_password_session_and_tokens_hold_at_every_gateway_until_they_end(bench: Bench) -> None:
    admin = bench.client(ADMIN_TOKEN)
    made = await call(admin.create_user, "ann", PASSWORD, display_name="Ann", request_id="create")
    again = await call(admin.create_user, "ann", PASSWORD, display_name="Ann", request_id="create")
    assert made == again == UserView(2, "ann", "Ann", created_at=made.created_at, has_password=True)
    session = await call(bench.client("-").log_in, "ann", PASSWORD)
    # The gateway that took the login knows no more of it than the other one.
    ann, elsewhere = bench.client(session.token), bench.client(session.token, 1)
    assert (await call(elsewhere.who_am_i)).name == (await call(ann.who_am_i)).name == "ann"
    token, secret = await call(ann.create_token, "ci", lifespan_seconds=3600, request_id="token")
    assert await call(ann.create_token, "ci", lifespan_seconds=3600, request_id="token") == (token, secret)
    by_token = bench.client(secret, 1)
    # A gateway answers a client that comes from another one only once it has caught up; this one has come from none.
    await until_async(lambda: _works(by_token.who_am_i), "the second gateway knowing the token", 20)
    assert [entry.id for entry in await call(by_token.list_tokens)] == [token.id]
    assert (await refusal(ann.create_user, "eve", PASSWORD)).kind is ErrorKind.FORBIDDEN
    assert (await refusal(ann.change_password, NEW_PASSWORD, "admin")).code == "auth.not_admin"

    await call(admin.revoke_token, token.id)
    assert (await refused(by_token.who_am_i, "the token being refused")).code == "auth.token_ended"
    await call(ann.change_password, NEW_PASSWORD)
    assert (await refused(elsewhere.who_am_i, "the old session being refused")).code == "auth.session"
    assert (await refusal(bench.client("-").log_in, "ann", PASSWORD)).code == "auth.wrong_password"
    fresh = (await call(bench.client("-").log_in, "ann", NEW_PASSWORD)).token
    ann, elsewhere = bench.client(fresh), bench.client(fresh, 1)
    await until_async(lambda: _works(elsewhere.who_am_i), "the second gateway knowing the new password", 20)

    async with bench.http(fresh) as http:
        code = bench.folder / "code"
        code.mkdir()
        (code / "train.py").write_text("print('trains')\n")
        experiment = await call(ann.create_experiment, CONFIG, code, is_paused=True)
        views = ann.watch_experiment(experiment.id)
        assert (await call(next, views)).experiment.owner == "ann"
        async with http.stream("GET", f"/experiments/{experiment.id}/events") as events:
            parts = events.aiter_text()
            assert "digits" in await anext(parts)
            await call(admin.deactivate_user, "ann")
            # Her streams end before the next piece.
            await call(admin.edit_experiment, experiment.id, name="renamed")
            assert (await refusal(next, views)).code == "auth.inactive"
            assert "renamed" not in "".join([part async for part in parts])
    # At once where the change was made, and elsewhere as soon as etcd has told that gateway.
    assert (await refusal(ann.who_am_i)).code == "auth.inactive"
    assert (await refused(elsewhere.who_am_i, "deactivation at the second gateway")).code == "auth.inactive"
    assert (await refusal(bench.client("-").log_in, "ann", NEW_PASSWORD)).code == "auth.inactive"
    # A gateway that is cut off from etcd would go on sending her changes.
    assert await _codes_of_the_leader(bench.schedulers[0], "ann") == {"auth.inactive"}
    await call(admin.activate_user, "ann")
    assert (await call(ann.who_am_i)).is_active
    await call(ann.log_out)
    assert (await refusal(ann.who_am_i)).code == "auth.session"
    text = bench.logs()
    assert "user is created" in text
    assert not [word for word in (PASSWORD, NEW_PASSWORD, secret, fresh, "scrypt$") if word in text]


async def _codes_of_the_leader(scheduler: SchedulerProcess, user: str) -> set[str]:
    """What the leader answers to every change that a gateway could send for this user."""
    service = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"]
    codes = set()
    async with grpc.aio.insecure_channel(scheduler.address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        for method in service.methods:
            names = {"user", "owner"} & set(method.input_type.fields_by_name)
            # A user who is deactivated may still end a session.
            if not names or method.name in ("EndSession", "ChangeCheckpoints"):
                continue
            request = GetMessageClass(method.input_type)(**dict.fromkeys(names, user))
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await getattr(stub, method.name)(request, metadata=rpc.token_metadata(CLUSTER_TOKEN))
            codes.add(rpc.error_of(failure.value, "the leader").code)
    return codes


async def _works(function: Callable[[], object]) -> bool:
    try:
        await call(function)
    except GanglineError:
        return False
    return True


async def test_the_http_interface_and_the_client_of_determined(bench: Bench) -> None:
    async with bench.http(ADMIN_TOKEN) as http:
        body = {"user": {"username": "ann", "displayName": "Ann"}, "password": PASSWORD}
        headers = {"Idempotency-Key": "create"}
        answers = [(await http.post("/users", json=body, headers=headers)).json()["user"] for _ in range(2)]
        assert answers[0] == answers[1]
        assert (answers[0]["id"], answers[0]["admin"], answers[0]["hasPassword"]) == (2, False, True)
        weak = await http.post("/users", json={"user": {"username": "eve"}, "password": "short"})
        assert (weak.status_code, weak.json()["code"]) == (400, "user.password")
        wrong = await http.post("/users", json={"user": {"username": "eve"}, "password": ["Secret-in-a-list"]})
        assert wrong.status_code == 400
        assert "Secret-in-a-list" not in wrong.text
        for path in ("/users/2", "/users/ann/by-username"):
            assert (await http.get(path)).json()["user"] == answers[0]
        assert [each["username"] for each in (await http.get("/users?admin=false")).json()["users"]] == ["ann"]
        made = (await http.post("/tokens", json={"userId": 2, "description": "ci", "lifespan": "1h"})).json()
        async with bench.http(made["token"]) as own:
            assert (await own.get("/me")).json()["user"]["username"] == "ann"
            assert (await own.patch("/users/2", json={"displayName": "A."})).json()["user"]["displayName"] == "A."
            assert (await own.patch("/users/2", json={"admin": True})).status_code == 403
            [token] = (await own.get("/tokens")).json()["tokens"]
            assert (token["id"], token["description"]) == (made["tokenId"], "ci")
            revoked = await own.patch(f"/tokens/{made['tokenId']}", json={"setRevoked": True})
            assert revoked.json()["token"]["revokedAt"]
            assert (await own.get("/me")).json()["code"] == "auth.token_ended"
        for is_hashed in (True, False):
            half = {"username": "ann\ud800", "password": "\ud800" * 9, "isHashed": is_hashed}
            sent = await http.post("/auth/login", content=json.dumps(half))
            assert (sent.status_code, sent.json()["error"]["code"]) == (403, "auth.wrong_password")
        login = await http.post("/auth/login", json={"username": "ann", "password": PASSWORD, "isHashed": False})
        async with bench.http(login.json()["token"], 1) as det:
            await until_async(lambda: _is_ok(det, "/me"), "the second gateway knowing the user", 20)
            made = (await det.post("/tokens", json={"userId": 2, "lifespan": None, "description": None})).json()
            async with bench.http(made["token"], 1) as by_token:
                # The token of Determined's client speaks Determined's language.
                assert (await by_token.get("/me")).json()["user"]["remote"] is False
            await http.patch("/users/2", json={"active": False})
            await until_async(lambda: _is_refused(det, "/me"), "deactivation at the second gateway", 20)


async def _is_ok(http: httpx.AsyncClient, path: str) -> bool:
    return (await http.get(path)).status_code == 200


async def _is_refused(http: httpx.AsyncClient, path: str) -> bool:
    return (await http.get(path)).status_code == 401


async def test_a_user_is_created_once_though_the_leader_dies_before_it_answers(empty: Bench) -> None:
    """etcd applies the change, but the leader never hears of it and is killed. The next leader answers the repetition,
    and the password that the user has is the one that was given."""
    bench = empty
    async with Proxy(bench.settings.endpoints[0]) as proxy:
        leader = await bench.scheduler("s1", EtcdSettings(endpoints=(proxy.address,)))
        await bench.gateway("g1")
        await bench.scheduler("s2")
        admin = bench.client(ADMIN_TOKEN)
        proxy.hold_after = b"users/ann"
        creating = asyncio.create_task(call(admin.create_user, "ann", PASSWORD))

        async def is_committed() -> bool:
            return "ann" in await bench.users()

        await until_async(is_committed, "the commit", 20)
        assert not creating.done()
        leader.end(signal.SIGKILL)
        assert (await creating).id == 2
    assert sorted(await bench.users()) == ["admin", "ann"]
    item = await bench.etcd.get(keys.NEXT_USER)
    assert item is not None
    assert wire.decode(UserCounter, item.value).next_user_id == 3
    assert (await call(bench.client("-").log_in, "ann", PASSWORD)).user.name == "ann"


async def test_wrong_passwords_are_held_up_and_tokens_never_are(bench: Bench) -> None:
    async with AsyncClient(bench.gateways[0].addresses["grpc"], "-") as stranger:
        codes = []
        for number in range(FAILURES_OF_USER + 2):
            with pytest.raises(GanglineError) as failure:
                await stranger.log_in("admin", f"wrong password {number}")
            codes.append(failure.value.code)
        assert codes[0] == "auth.wrong_password"
        assert codes[-1] == "auth.too_many_logins"
        # Each failure comes back with time, so a slow machine sees some more of them.
        assert codes.count("auth.wrong_password") >= FAILURES_OF_USER
    assert (await call(bench.client(ADMIN_TOKEN).who_am_i)).name == "admin"
    session = await call(bench.client("-", 1).log_in, "admin", ADMIN_TOKEN)
    assert session.user.is_admin
