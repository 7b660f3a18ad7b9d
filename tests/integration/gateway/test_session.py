"""Sessions of browsers at a real gateway: how one is opened, what it admits, and what ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gangline.v1 import scheduler_pb2 as _scheduler_pb2  # noqa: F401 - the stand-in leader answers in its messages
from services.common.etcd import EtcdSettings
from services.gateway.mirror import auth
from tests.support.gateway import NO_TLS, USER_TOKEN, Client
from tests.support.scheduler import SchedulerProcess

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
