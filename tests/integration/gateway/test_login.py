"""Logins over HTTP: which address counts, and what a login holds whose client has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.common.etcd import EtcdClient, EtcdSettings
from services.gateway.program import run_gateway
from services.gateway.usecase.open import login as login_module
from services.gateway.usecase.open.login_limit import FAILURES_OF_USER
from services.gateway.usecase.shared import hashing
from tests.support.gateway import NO_TLS, add_user, settings_in
from tests.support.wait import until

LOGIN = "/api/v1/auth/login"
# More than the failures that come back during the test.
TRIES = FAILURES_OF_USER + 8


@asynccontextmanager
async def gateway(etcd_settings: EtcdSettings, folder: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        run_gateway(settings_in(folder, etcd_settings, **settings)) as addresses,
        httpx.AsyncClient(base_url=f"http://{addresses.http}", timeout=30, verify=NO_TLS) as http,
    ):
        yield http


async def log_in(http: httpx.AsyncClient, name: str, forwarded_for: str = "") -> str:
    """Tries a wrong password. Returns the code of the refusal."""
    headers = {"X-Forwarded-For": forwarded_for} if forwarded_for else {}
    answer = await http.post(LOGIN, json={"username": name, "password": "wrong"}, headers=headers)
    return str(answer.json()["error"]["code"])


async def test_only_a_trusted_proxy_names_the_address_of_a_caller(
    etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test connects from loopback, which a server of uvicorn trusts by default."""
    monkeypatch.setattr(login_module, "is_password", lambda _stored, _password: False)
    await add_user(etcd)
    async with gateway(etcd_settings, tmp_path) as http:
        codes = [await log_in(http, "alice", f"10.0.0.{number}") for number in range(TRIES)]
        assert "auth.too_many_logins" in codes
    async with gateway(etcd_settings, tmp_path, trusted_proxies=("127.0.0.1",)) as http:
        codes = [await log_in(http, "alice", f"10.0.0.{number}") for number in range(TRIES)]
        assert set(codes) == {"auth.wrong_password"}
        # What a caller writes into the header itself stands before the address that the proxy adds.
        codes = [await log_in(http, "alice", f"10.9.9.{number}, 10.0.1.1") for number in range(TRIES)]
        assert "auth.too_many_logins" in codes


async def test_login_whose_client_has_gone_makes_room(
    etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    hashed: list[str] = []
    admitted: list[object] = []
    queue = hashing.hashed

    def wait(_stored: str, password: str) -> bool:
        hashed.append(password)
        return goes_on.wait(60) and False

    async def admit(*work: Any) -> Any:
        admitted.append(work)
        return await queue(*work)

    monkeypatch.setattr(login_module, "is_password", wait)
    monkeypatch.setattr(login_module, "hashed", admit)
    monkeypatch.setattr(login_module, "_MAX_WAITING", 4)
    await add_user(etcd)
    async with gateway(etcd_settings, tmp_path) as http:
        waiting = [asyncio.create_task(log_in(http, f"gone{number}")) for number in range(4)]
        try:
            await until(lambda: len(admitted) == 4 and len(hashed) == 2, "two that are hashed and two that wait")
            assert await log_in(http, "late") == "auth.too_many_logins"
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            last = await until_admitted(http, admitted)
        finally:
            goes_on.set()
        assert await last == "auth.wrong_password"
    # The two that had begun and the last one: those that waited were never hashed.
    assert len(hashed) == 3


async def test_body_of_a_login_is_small(etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Path) -> None:
    async with gateway(etcd_settings, tmp_path) as http:
        answer = await http.post(LOGIN, content=b"x" * (17 << 10))
        assert answer.status_code == 400
        assert "at most 16384 are read here" in answer.json()["message"]


async def until_admitted(http: httpx.AsyncClient, admitted: list[object]) -> asyncio.Task[str]:
    """Asks until a login is no more refused. Returns it, while it waits."""
    num_before = len(admitted)

    def is_known(asking: asyncio.Task[str]) -> bool:
        return asking.done() or len(admitted) > num_before

    async with asyncio.timeout(60):
        while True:
            asking = asyncio.create_task(log_in(http, "last"))
            await until(partial(is_known, asking), "an answer")
            if not asking.done():
                return asking
            assert asking.result() == "auth.too_many_logins"
