"""A scheduler, a caller and agents for each test, all ended with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest_asyncio

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support.scheduler import Caller, SchedulerProcess
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until_async

R = TypeVar("R")


@dataclass
class Bench:
    """schedulers[0] was started first."""

    directory: Path
    settings: EtcdSettings
    etcd: EtcdClient
    schedulers: list[SchedulerProcess] = field(default_factory=list)
    agents: list[ScriptedAgent] = field(default_factory=list)

    async def scheduler(self, name: str = "s1", *flags: str) -> SchedulerProcess:
        process = SchedulerProcess(self.directory, self.settings, name, flags)
        self.schedulers.append(process)
        return await process.start()

    async def agent(self, agent_id: str, slots: int = 2, obeys_stop: bool = True) -> ScriptedAgent:
        agent = ScriptedAgent(agent_id, self.addresses, slots, obeys_stop)
        self.agents.append(agent)
        return await agent.connect()

    def addresses(self) -> list[str]:
        return [process.address for process in self.schedulers if process.address]

    @property
    def caller(self) -> Caller:
        return Caller(*self.schedulers)

    async def experiment(self, experiment_id: int) -> Experiment | None:
        return await self._find(Experiment, keys.experiment(experiment_id))

    async def trial(self, trial_id: str) -> Trial | None:
        return await self._find(Trial, keys.trial(trial_id))

    async def allocation(self, allocation_id: str) -> Allocation | None:
        return await self._find(Allocation, keys.allocation(allocation_id))

    async def record(self, agent_id: str) -> Agent | None:
        return await self._find(Agent, keys.agent(agent_id))

    async def eventually(
        self, find: Callable[[], Awaitable[R | None]], holds: Callable[[R], bool], seconds: float = 60
    ) -> R:
        """The record, once it is as wanted."""

        record: R | None = None

        async def check() -> R | None:
            nonlocal record
            record = await find()
            return record if record is not None and holds(record) else None

        return await until_async(check, lambda: f"the record as wanted, which is {record},", seconds)

    async def _find(self, kind: type[R], key: str) -> R | None:
        item = await self.etcd.get(key)
        return wire.decode(kind, item.value) if item else None

    async def close(self) -> None:
        # First, because a scheduler that outlives its test leads in all later tests of this etcd.
        for process in self.schedulers:
            process.end()
        for agent in self.agents:
            await agent.disconnect()


@pytest_asyncio.fixture
async def bench(tmp_path: Path, etcd_settings: EtcdSettings, etcd: EtcdClient) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, etcd_settings, etcd)
    yield bench
    await bench.close()
