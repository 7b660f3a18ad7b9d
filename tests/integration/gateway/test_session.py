"""Sessions of browsers at a real gateway: how one is opened, what it admits, and what ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gangline.domain.user import User, hash_password
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2 as _scheduler_pb2  # noqa: F401 - the stand-in leader answers in its messages
from services.common import keys
from services.common.access.password import SALT_BYTES, store_password
from services.common.access.security import as_password, hash_token
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.mirror import auth
from services.gateway.program import run_gateway
from services.gateway.usecase.open.login_limit import FAILURES_OF_ADDRESS
from tests.support.gateway import NO_TLS, USER_TOKEN, Client, add_user, settings_in
from tests.support.scheduler import SchedulerProcess
from tests.support.wait import until_async

PAGE = {"X-Gangline-Page": "1"}
PASSWORD = {"username": "alice", "password": USER_TOKEN}


@pytest_asyncio.fixture
async def scheduler(client: Client, etcd_settings: EtcdSettings, tmp_path: Path) -> AsyncIterator[None]:
    """Stores which keys were used and which sessions have ended."""
    process = SchedulerProcess(tmp_path / "schedulers", etcd_settings, "s1")
    await process.start()
    yield
    process.end()


def browser(client: Client) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{client.http_address}", headers=PAGE, timeout=20, verify=NO_TLS)


async def sign_in(http: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await http.post("/api/v1/session", json=body or PASSWORD)


async def test_password_opens_a_session_that_needs_the_header(client: Client) -> None:
    async with browser(client) as http:
        answer = await sign_in(http)
        assert answer.json()["user"]["username"] == "alice"
        assert "Path=/api/; " in answer.headers["set-cookie"]
        assert (await http.get("/api/v1/me")).json()["user"]["username"] == "alice"
        bare = await http.get("/api/v1/me", headers={"X-Gangline-Page": ""})
        assert (bare.status_code, bare.json()["code"]) == (403, "auth.page_header")
        forged = await http.post("/api/v1/experiments/1/kill", headers={"Sec-Fetch-Site": "cross-site"})
        assert (forged.status_code, forged.json()["code"]) == (403, "auth.other_site")
        # A token in a header counts before any cookie.
        wrong = await http.get("/api/v1/me", headers={"Authorization": "Bearer wrong-token-of-nobody"})
        assert wrong.json()["code"] == "auth.wrong_token"


async def test_login_without_the_header_or_with_a_wrong_password_is_refused(client: Client) -> None:
    async with browser(client) as http:
        refused = await http.post("/api/v1/session", json=PASSWORD, headers={"X-Gangline-Page": ""})
        assert (refused.status_code, refused.json()["code"]) == (403, "auth.page_header")
        wrong = await sign_in(http, username="alice", password="wrong-password")
        assert (wrong.status_code, wrong.json()["code"]) == (403, "auth.wrong_password")
        assert "set-cookie" not in wrong.headers
        # A browser would show a window of its own for this header.
        unknown = await http.get("/api/v1/me")
        assert (unknown.status_code, "www-authenticate" in unknown.headers) == (401, False)
        large = await http.post("/api/v1/session", content=b"x" * (17 << 10))
        assert large.json()["code"] == "request.too_large"


async def test_key_opens_one_session(client: Client, scheduler: None) -> None:
    made = (await client.http.post("/api/v1/session/keys")).json()["key"]
    # A key is no token.
    as_token = await client.http.get("/api/v1/me", headers={"Authorization": f"Bearer {made['key']}"})
    assert as_token.json()["code"] == "auth.wrong_token"
    async with browser(client) as http:
        assert (await sign_in(http, key=made["key"])).json()["user"]["username"] == "alice"
        assert (await http.get("/api/v1/me")).status_code == 200
        again = await sign_in(http, key=made["key"])
        assert (again.status_code, again.json()["code"]) == (401, "auth.key")
        forged = await sign_in(http, key=made["key"][:-1] + ("0" if made["key"][-1] != "0" else "1"))
        assert forged.json()["code"] == "auth.key"


async def test_key_expires(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "KEY_SECONDS", -1)
    made = (await client.http.post("/api/v1/session/keys")).json()["key"]
    async with browser(client) as http:
        assert (await sign_in(http, key=made["key"])).json()["code"] == "auth.key"


async def test_session_ends_for_good_when_its_user_signs_out(client: Client, scheduler: None) -> None:
    async with browser(client) as http:
        await sign_in(http)
        cookie = dict(http.cookies)
        answer = await http.delete("/api/v1/session")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        http.cookies.update(cookie)
        assert (await http.get("/api/v1/me")).json()["code"] == "auth.session"


async def test_several_gateways_and_requests_at_once_open_one_session_for_a_key(
    client: Client, scheduler: None, etcd_settings: EtcdSettings, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with run_gateway(settings_in(tmp_path / "other", etcd_settings)) as addresses:
        other = Client(addresses.grpc, addresses.http)
        for _ in range(3):
            made = (await client.http.post("/api/v1/session/keys")).json()["key"]
            async with browser(client) as first, browser(other) as second:
                answers = await asyncio.gather(*(sign_in(each, key=made["key"]) for each in (first, second) * 3))
            codes = [answer.status_code for answer in answers]
            assert sorted(codes) == [200, 401, 401, 401, 401, 401]
            assert {a.json()["code"] for a in answers if a.status_code == 401} == {"auth.key"}
        await other.close()


@pytest.mark.parametrize("end", ["deactivated", "password", "everywhere"])
async def test_what_ends_all_sessions_and_keys_of_a_user(
    client: Client, scheduler: None, etcd: EtcdClient, end: str
) -> None:
    key = (await client.http.post("/api/v1/session/keys")).json()["key"]["key"]
    async with browser(client) as http, browser(client) as another:
        await sign_in(http)
        await sign_in(another)
        user = User("alice", hash_token(USER_TOKEN), login_sha256=hash_token(as_password(USER_TOKEN)))
        if end == "everywhere":
            answer = await http.delete("/api/v1/session", params={"everywhere": True})
            assert (answer.status_code, "Max-Age=0" in answer.headers["set-cookie"]) == (200, True)
        elif end == "deactivated":
            await etcd.commit([Put(keys.user("alice"), wire.encode(replace(user, is_deactivated=True)))])
        else:
            stored = store_password(hash_password("a-new-password"), b"s" * SALT_BYTES)
            await etcd.commit([Put(keys.user("alice"), wire.encode(replace(user, password_hash=stored)))])

        async def is_over() -> bool:
            return (await another.get("/api/v1/me")).status_code == 401

        await until_async(is_over, "the end of the other session")
        assert (await sign_in(browser(client), key=key)).status_code == 401
        if end == "everywhere":
            # The next one holds, also in the same second. The token goes on.
            assert (await sign_in(another)).status_code == 200
            assert (await another.get("/api/v1/me")).status_code == 200
            assert (await client.http.get("/api/v1/me")).status_code == 200


async def test_a_session_cannot_prolong_itself(
    client: Client, scheduler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "SESSION_SECONDS", 5)
    async with browser(client) as http, browser(client) as later:
        await sign_in(http)
        monkeypatch.setattr(auth, "SESSION_SECONDS", 7 * 86400)
        made = (await http.post("/api/v1/session/keys")).json()["key"]
        answer = await sign_in(later, key=made["key"])
        [seconds] = [part for part in answer.headers["set-cookie"].split("; ") if part.startswith("Max-Age=")]
        assert 0 < int(seconds.removeprefix("Max-Age=")) <= 5

        async def is_over() -> bool:
            return (await later.get("/api/v1/me")).status_code == 401

        await until_async(is_over, "the end of the session", 10)


async def test_a_login_takes_no_session_that_its_browser_brings(client: Client, scheduler: None) -> None:
    """Somebody else may have put it there."""
    async with browser(client) as http:
        await sign_in(http)
        first = dict(http.cookies)
        await http.delete("/api/v1/session")
        http.cookies.update(first)
        answer = await sign_in(http)
        assert dict(answer.cookies) != first
        assert (await http.get("/api/v1/me", headers={"Cookie": _header(answer.cookies)})).status_code == 200


async def test_two_sessions_in_one_request_are_refused(client: Client, etcd: EtcdClient) -> None:
    await add_user(etcd, "mallory", "token-of-mallory-in-the-tests", number=2)
    async with browser(client) as http, browser(client) as hers:
        await sign_in(http)

        async def is_in() -> bool:
            body = {"username": "mallory", "password": "token-of-mallory-in-the-tests"}
            return (await sign_in(hers, **body)).status_code == 200

        await until_async(is_in, "the gateway knowing both users")
        both = f"{_header(hers.cookies)}; {_header(http.cookies)}"
        async with browser(client) as victim:
            answer = await victim.get("/api/v1/me", headers={"Cookie": both})
        assert (answer.status_code, answer.json()["code"]) == (401, "auth.two_sessions")


def _header(cookies: httpx.Cookies) -> str:
    return "; ".join(f"{name}={value}" for name, value in cookies.items())


async def test_wrong_keys_count_as_wrong_passwords(client: Client) -> None:
    async with browser(client) as http:
        ends_at = int(time.time()) + 100
        codes = [
            (await sign_in(http, key=f"key:{ends_at}:{ends_at}:alice:{number:064x}")).json()["code"]
            for number in range(FAILURES_OF_ADDRESS + 5)
        ]
        assert set(codes) == {"auth.key", "auth.too_many_logins"}
        assert codes[0] == "auth.key"
        assert (await sign_in(http)).json()["code"] == "auth.too_many_logins"


@pytest.mark.parametrize("key", ["key:", "key:x:y:z", "key:9999999999:alice:0", "key:9999999999:x:alice:0", "login:1"])
async def test_keys_of_other_forms_are_refused(client: Client, key: str) -> None:
    async with browser(client) as http:
        assert (await sign_in(http, key=key)).json()["code"] == "auth.key"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"X-Gangline-Page": ""}, "auth.page_header"),
        ({"Sec-Fetch-Site": "cross-site"}, "auth.other_site"),
        ({"Sec-Fetch-Site": "same-site"}, "auth.other_site"),
        ({"Origin": "http://evil.example"}, "auth.other_site"),
        ({"Origin": "null"}, "auth.other_site"),
        # As the form of another page sends them.
        ({"X-Gangline-Page": "", "Content-Type": "application/x-www-form-urlencoded"}, "auth.page_header"),
        ({"X-Gangline-Page": "", "Content-Type": "text/plain"}, "auth.page_header"),
    ],
)
async def test_forged_requests_do_nothing(client: Client, headers: dict[str, str], code: str) -> None:
    async with browser(client) as http:
        await sign_in(http)
        body = b'{"username": "alice", "password": "' + USER_TOKEN.encode() + b'"}'
        for method, path in [
            ("POST", "/api/v1/session"), ("DELETE", "/api/v1/session"), ("POST", "/api/v1/session/keys"),
            ("POST", "/api/v1/tokens"), ("POST", "/api/v1/experiments/1/kill"), ("GET", "/api/v1/me"),
        ]:  # fmt: skip
            answer = await http.request(method, path, content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, code), (method, path)
            assert "set-cookie" not in answer.headers
            assert "access-control-allow-origin" not in answer.headers
        asked = {"Origin": "http://evil.example", "Access-Control-Request-Headers": "x-gangline-page"}
        preflight = await http.options("/api/v1/me", headers={**asked, "X-Gangline-Page": ""})
        assert preflight.status_code >= 400
        assert "access-control-allow-headers" not in preflight.headers
        assert (await http.get("/api/v1/me")).status_code == 200
