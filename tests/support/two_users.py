"""Schedulers and a gateway as processes, over a real etcd, with two users: alice, and bob, of whom none administers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from gangline.client import Client
from gangline.domain.experiment import Experiment
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support.gateway import NO_TLS, USER_TOKEN, GatewayProcess, add_user
from tests.support.scheduler import SchedulerProcess
from tests.support.wait import until_async

T = TypeVar("T")
BOB_TOKEN = "token-of-bob-in-the-tests"
CONFIG = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
IN_VISION = CONFIG + "workspace: lab\nproject: vision\n"


@dataclass
class Bench:
    """code: a folder with a script. A call of the SDK is made in a thread, because it blocks."""

    folder: Path
    settings: EtcdSettings
    etcd: EtcdClient
    stack: AsyncExitStack
    schedulers: list[SchedulerProcess] = field(default_factory=list)

    @property
    def code(self) -> Path:
        return self.folder / "code"

    async def scheduler(self, name: str, settings: EtcdSettings | None = None) -> SchedulerProcess:
        process = SchedulerProcess(self.folder / "schedulers", settings or self.settings, name)
        self.stack.callback(process.end)
        self.schedulers.append(process)
        return await process.start()

    async def gateway(self) -> None:
        folder = self.folder / "gateway"
        folder.mkdir()
        self.process = GatewayProcess(folder, ",".join(self.settings.endpoints))
        self.stack.push_async_callback(self.process.end)
        await self.process.start()
        await add_user(self.etcd)
        await add_user(self.etcd, "bob", BOB_TOKEN)
        self.alice, self.bob = self._connect(USER_TOKEN), self._connect(BOB_TOKEN)
        await until_async(self._is_known, "the gateway knowing both users")

    def _connect(self, token: str) -> Client:
        client = Client(self.process.addresses["grpc"], token, retry_seconds=40)
        self.stack.callback(client.close)
        return client

    async def _is_known(self) -> bool:
        try:
            await asyncio.to_thread(self.bob.list_workspaces)
        except GanglineError:
            return False
        return True

    async def records(self, record_type: type[T], prefix: str) -> list[T]:
        listing = await self.etcd.list(prefix)
        return [wire.decode(record_type, item.value) for item in listing.items]

    def create(self, config: str = IN_VISION, template: str = "", client: Client | None = None) -> Experiment:
        return (client or self.alice).create_experiment(config, self.code, template=template).experiment

    @property
    def http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {USER_TOKEN}"}
        address = self.process.addresses["http"]
        return httpx.AsyncClient(base_url=f"http://{address}/api/v1", headers=headers, timeout=20, verify=NO_TLS)
