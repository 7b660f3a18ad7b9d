"""A gateway with many ended experiments for tests of the page: an etcd and a gateway as processes, and no scheduler.

Playwright's calls run on an event loop of this thread, so what is asynchronous here runs in another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Page

from services.common.etcd import EtcdClient, Put
from tests.support.etcd import EtcdServer
from tests.support.gateway import USER_TOKEN, GatewayProcess, add_user
from tests.support.many_experiments import put_experiments

USERS = ("alice", "bob")
T = TypeVar("T")


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@dataclass
class ManyExperiments:
    etcd: EtcdServer
    gateway: GatewayProcess

    @property
    def url(self) -> str:
        return f"http://{self.gateway.flags['http-listen']}"

    def put(self, *puts: Put) -> None:
        """Writes records, as a scheduler does."""

        async def write() -> None:
            async with EtcdClient(self.etcd.settings) as client:
                await client.commit(list(puts))

        in_thread(write())

    def compact(self) -> None:
        """Makes etcd drop its history."""

        async def drop() -> None:
            async with EtcdClient(self.etcd.settings) as client:
                await client.compact(await client.find_revision())

        in_thread(drop())

    def kill_gateway(self) -> None:
        in_thread(self.gateway.end())

    def start_gateway(self) -> None:
        in_thread(self.gateway.start())

    def open(self, page: Page, path: str, user: str = USERS[0], url: str = "") -> None:
        """Signs a user in, and opens a path. url: of another address of the gateway."""
        page.goto(f"{url or self.url}{path}")
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(token_of(user))
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Sign out").wait_for()


def token_of(user: str) -> str:
    return f"{USER_TOKEN}-{user}"


@contextmanager
def many_experiments(folder: Path, number: int, **flags: str) -> Iterator[ManyExperiments]:
    """number: of experiments. folder: which the caller owns. flags: of the gateway."""
    server = EtcdServer(folder / "etcd")
    gateway = GatewayProcess(folder, server.address, **flags)

    async def fill() -> None:
        async with EtcdClient(server.settings) as client:
            for place, user in enumerate(USERS, 1):
                await add_user(client, user, token_of(user), is_admin=place == 1, number=place)
            await put_experiments(client, number)
        await gateway.start()

    try:
        in_thread(fill())
        yield ManyExperiments(server, gateway)
    finally:
        if gateway.process is not None:
            in_thread(gateway.end())
        server.stop()
