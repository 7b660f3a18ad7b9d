"""Warm processes for the trial runner's tests, and one gang at a time over in-test servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gangline.domain.allocation import ExitReport
from gangline.v1 import runner_pb2
from services.agent.allocations.warm import spare_options
from tests.support.runner_peers import GatewayPeer, SchedulerPeer
from tests.support.runner_process import TOKEN, Host, Runner, make_archive, make_spec
from tests.support.warm_program import WarmPair, folder
from tests.support.warm_template import WarmTemplate


@dataclass(frozen=True)
class Templates:
    runner: WarmTemplate
    rank: WarmTemplate


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    sockets = tmp_path_factory.mktemp("templates")
    pair = WarmPair(folder())
    runner = WarmTemplate(pair.services(), sockets / "runner.sock")
    rank = WarmTemplate(pair.ranks(), sockets / "rank.sock", spare_options(2))
    yield Templates(runner, rank)
    runner.close()
    rank.close()


@dataclass
class World:
    """One allocation, its runners and what they speak to."""

    templates: Templates
    folder: Path
    gateway: GatewayPeer
    schedulers: list[SchedulerPeer] = field(default_factory=list)
    specs: list[runner_pb2.RunnerSpec] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)

    @property
    def scheduler(self) -> SchedulerPeer:
        return self.schedulers[0]

    async def prepare(
        self,
        script: str,
        sizes: Sequence[int] = (2,),
        *,
        files: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        rendezvous_seconds: float = 10.0,
        entrypoint: str = "python3 -m gangline.launch.torch_distributed train.py",
        hparams: Mapping[str, Any] | None = None,
    ) -> None:
        """Servers, archive and specs, but no runner yet. script: the content of train.py. sizes: slots by node rank."""
        members = [(f"a{rank + 1}", size) for rank, size in enumerate(sizes)]
        loopback = ("loopback", [("lo", "127.0.0.1")] * len(members))
        scheduler = SchedulerPeer(TOKEN, [agent for agent, _ in members], [loopback])
        scheduler.rendezvous_seconds = rendezvous_seconds
        await scheduler.start()
        self.schedulers.append(scheduler)
        sha256, archive = make_archive({"train.py": script, **(files or {})})
        self.gateway.archives[sha256] = archive
        for rank in range(len(members)):
            spec = make_spec(
                members,
                rank,
                entrypoint,
                code_sha256=sha256,
                scheduler=[scheduler.address],
                gateway=[self.gateway.address],
                config=config,
            )
            spec.rendezvous_seconds = rendezvous_seconds
            spec.storage_url = f"file://{self.folder}/storage"
            spec.trial.hyperparameters_json = json.dumps(dict(hparams or {}))
            self.specs.append(spec)

    def launch(self, node_rank: int) -> Runner:
        spec = self.specs[node_rank]
        runner = self.host(spec.allocation.members[node_rank].agent_id).start(spec)
        self.runners.append(runner)
        return runner

    async def start(self, script: str, sizes: Sequence[int] = (2,), **settings: Any) -> list[Runner]:
        """`prepare`, then all runners."""
        await self.prepare(script, sizes, **settings)
        return [self.launch(rank) for rank in range(len(sizes))]

    def host(self, agent_id: str) -> Host:
        return Host(
            agent_id, self.folder / agent_id, self.templates.runner.socket_path, self.templates.rank.socket_path
        )

    async def wait(self, seconds: float = 60.0) -> list[ExitReport]:
        return await asyncio.gather(*(runner.wait(seconds) for runner in self.runners))

    def rank_pids(self) -> list[int]:
        """As the test scripts print them: "pid 123"."""
        return [int(line.split()[1]) for line in self.gateway.lines("stdout") if line.startswith("pid ")]

    async def wait_pids(self, count: int) -> list[int]:
        await self.gateway.wait_for(lambda: len(self.rank_pids()) >= count, 30, f"pids of {count} ranks")
        return self.rank_pids()


@pytest.fixture
async def world(templates: Templates, tmp_path: Path) -> AsyncIterator[World]:
    gateway = GatewayPeer(TOKEN)
    await gateway.start()
    made = World(templates, tmp_path, gateway)
    yield made
    for runner in made.runners:
        runner.kill(9)
    for scheduler in made.schedulers:
        await scheduler.stop()
    await gateway.stop()
