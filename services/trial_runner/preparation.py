"""Prepares everything that ranks need to start: the code, the nursery with its store, the linked gang.

Runs the three at the same time; the failure of one ends the others. The runner calls `run` and `close` once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gangline.launch.chief_port import find_ports
from gangline.v1 import runner_pb2
from services.common.code_cache import CodeCache
from services.common.concurrency import cancel
from services.common.state_folder import SharedFolder
from services.trial_runner.code_folder import CodeSource, prepare_code
from services.trial_runner.container_setup import AttemptFiles, make_container
from services.trial_runner.delivery.channel_route import route_to_gateways, route_to_leader
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Network, Place
from services.trial_runner.gang.rendezvous import Rendezvous
from services.trial_runner.ranks.confinement import Confinement
from services.trial_runner.ranks.container import Container
from services.trial_runner.ranks.nursery_client import NurseryClient, NurseryProcess, start_nursery

# The address of rank 0 in a gang of one machine, whose ranks need no other network.
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class Preparation:
    """The conditions of a start and its results."""

    spec: runner_pb2.RunnerSpec
    place: Place
    folder: SharedFolder
    beat_paths: Mapping[int, Path]  # by rank
    confinement: Confinement
    rank_forkserver: str
    gang: GangLinks
    note: Callable[[str], None]
    forked: NurseryProcess | None = None  # a nursery that lives already, for ranks that need no warm process
    # container in which the nursery starts, once the code is there and the gang is linked; None for none
    container: Container | None = None
    nursery: NurseryClient | None = None  # set as soon as it lives, so that it can be closed even if another step fails
    rendezvous_at: float = 0.0  # time at which the gang was linked; 0 before

    async def run(self, on_container: Callable[[str], None]) -> Network:
        """Returns the network that connects the ranks. Raises the first error: GanglineError, OSError or
        RendezvousFailed.

        on_container: called with the image before a container starts, which may take as long as the fetch of its image.
        """
        files = AttemptFiles(self.spec, self.place, self.folder, self.beat_paths, self.confinement)
        self.container = make_container(files, self.note)
        chosen: asyncio.Future[Network] = asyncio.get_running_loop().create_future()

        async def network() -> None:
            chosen.set_result(await self._find_network())

        port: int | None = None

        has_code = asyncio.Event()

        async def code() -> None:
            await self._prepare_code()
            has_code.set()

        async def nursery() -> None:
            nonlocal port
            if self.container is not None:
                # The code's folder is mounted. The other members wait for their links no longer than a minute.
                await has_code.wait()
                await chosen
                on_container(self.container.image)
            nursery = await self._start_nursery()
            # The store listens on the gang's network alone, so it starts when that is known.
            port = await self._host_store(nursery, (await chosen).store_address)

        await run_together(code(), nursery(), network())
        connecting = chosen.result()
        if port is not None:
            self.gang.share_store(port)
        else:
            port = await self.gang.wait_store()
        return replace(connecting, store_port=port)

    async def close(self) -> None:
        """Ends the nursery and the container, if they live."""
        if self.nursery is not None and not self.nursery.is_gone:
            await self.nursery.close()
        if self.container is not None:
            await self.container.close()

    async def _prepare_code(self) -> None:
        if not self.spec.code_sha256:
            self.folder.code_path.mkdir(exist_ok=True)
            return
        route = route_to_gateways(self.spec.gateway_addresses, self.folder.state)
        try:
            cache = CodeCache(self.folder.state.code_archives)
            source = CodeSource(self.spec.code_sha256, cache, route, self.spec.token, self.note)
            await prepare_code(source, self.folder.code_path)
        finally:
            await route.close()

    async def _start_nursery(self) -> NurseryClient:
        if self.container is not None:
            self.nursery = await self.container.start()
        elif self.forked is not None:
            self.nursery = NurseryClient(self.forked)
        else:
            self.nursery = await start_nursery(self.rank_forkserver, self.folder.path, len(self.place.ranks))
        self.folder.write_nursery_pid(self.nursery.pid)
        return self.nursery

    async def _host_store(self, nursery: NurseryClient, address: str) -> int | None:
        """Returns the store's port on node rank 0, and None on any other. The port is 0 for a single rank, which has no
        store. For a script it is a free one, at which its own launcher may host a store."""
        if not self.place.is_head:
            return None
        if self.place.runs_once:
            return find_ports(address)
        if not self.place.needs_store:
            return 0
        nursery.ask_store(address)
        return await nursery.wait_store()

    async def _find_network(self) -> Network:
        if self.place.num_nodes == 1:
            self.rendezvous_at = time.time()
            return Network((LOOPBACK,), 0)
        rendezvous = Rendezvous(
            route_to_leader(self.spec.scheduler_addresses, self.folder.state),
            self.spec.token,
            runner_pb2.GangHello(
                allocation_id=self.spec.allocation.id,
                node_rank=self.place.node_rank,
                port=await self.gang.listen(),
            ),
            agent_id=self.place.agent_id,
            deadline_seconds=self.spec.rendezvous_seconds or 60.0,
            note=self.note,
        )
        try:
            candidate = await rendezvous.meet()
            await self.gang.link(candidate)
        finally:
            await rendezvous.close()
        self.rendezvous_at = time.time()
        own = candidate.endpoints[self.place.node_rank]
        by = ", by TLS" if self.gang.is_secure else ""
        self.note(
            f"the gang of {self.place.num_nodes} is linked over {own.interface} ({candidate.subnet or own.address}){by}"
        )
        return Network(tuple(member.address for member in candidate.endpoints), 0, own.interface)


async def run_together(*steps: Coroutine[Any, Any, None]) -> None:
    """Runs all steps at the same time. The first step that fails cancels the others, and its error is raised."""
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel(*tasks)
