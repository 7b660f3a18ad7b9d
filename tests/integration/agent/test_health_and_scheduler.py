"""A GPU that fails and heals under a real scheduler: what runs goes on, nothing starts there meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.domain.allocation import Allocation
from gangline.domain.resource import Agent, Slot
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2, types_pb2
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support.agent_process import AgentProcess, is_running, wait_until
from tests.support.nvml import StandInNvml
from tests.support.scheduler import Caller, SchedulerProcess, config_json
from tests.support.wait import until_async

SECONDS = 60.0


class World:
    """An agent with the GPUs 3 and 4, connected to a scheduler on an empty etcd."""

    def __init__(self, folder: Path, scheduler: SchedulerProcess, etcd: EtcdClient) -> None:
        self.agent = AgentProcess(folder, [scheduler.address])
        self.caller = Caller(scheduler)
        self._etcd = etcd

    async def submit(self) -> str:
        """The id of the first allocation of a new experiment with one slot."""
        return f"{(await self.caller.submit(config_json(slots=1))).experiment.id}.1.1"

    async def runner(self, allocation_id: str) -> tuple[int, str]:
        """The pid of its trial runner and its slot, once it runs."""
        pid = await self.agent.runner(allocation_id)
        item = await self._etcd.get(keys.allocation(allocation_id))
        assert item is not None
        (slot_id,) = wire.decode(Allocation, item.value).members[0].slot_ids
        return pid, slot_id

    async def is_over(self, allocation_id: str) -> bool:
        return await self._etcd.get(keys.allocation(allocation_id)) is None

    async def sick_slots(self) -> list[Slot] | None:
        """None before the agent has joined."""
        item = await self._etcd.get(keys.agent("a1"))
        return None if item is None else [s for s in wire.decode(Agent, item.value).slots if not s.is_healthy]

    async def waiting(self, allocation_id: str) -> scheduler_pb2.PendingRequest | None:
        trial_id = allocation_id.rpartition(".")[0]
        return next((each for each in await self.caller.list_pending() if each.request.trial_id == trial_id), None)


@pytest.fixture
async def world(
    tmp_path: Path, etcd_settings: EtcdSettings, etcd: EtcdClient, nvml: StandInNvml
) -> AsyncIterator[World]:
    scheduler = await SchedulerProcess(tmp_path / "scheduler", etcd_settings).start()
    world = World(tmp_path, scheduler, etcd)
    try:
        nvml.break_queries([])
        environment = {**nvml.environment, "CUDA_VISIBLE_DEVICES": "3,4"}
        await world.agent.start("--slots", "auto", environment=environment)
        await wait_until(lambda: nvml.watched() == {3, 4})
        yield world
    finally:
        world.agent.close()
        scheduler.end()


async def test_gpu_that_fails_while_it_is_busy(world: World, nvml: StandInNvml) -> None:
    first, second = await world.submit(), await world.submit()
    pid, slot_id = await world.runner(first)
    _, other_id = await world.runner(second)
    assert slot_id != other_id
    gpu = int(slot_id.removeprefix("a1/GPU-")[0])

    nvml.break_queries([(gpu, "memory")])
    nvml.raise_xid(gpu, 79)
    (sick,) = await until_async(world.sick_slots, "a slot out of use", SECONDS)
    assert sick.id == slot_id
    # Whether a check or the XID confirms the other is a matter of moments.
    assert any(words in sick.problem for words in ("NVML says of GPU", "XID 79"))
    assert is_running(pid), "what runs there goes on"

    third = await world.submit()
    world.agent.finish(first)
    await until_async(lambda: world.is_over(first), "the end of the first", SECONDS)
    waiting = await until_async(lambda: world.waiting(third), "the third being in the queue", SECONDS)
    assert waiting.reason.code in (types_pb2.REASON_CODE_NO_CAPACITY, types_pb2.REASON_CODE_AGENTS_UNHEALTHY)
    assert world.agent.starts(third) == []

    nvml.break_queries([])
    _, healed_id = await world.runner(third)
    assert healed_id == slot_id
    assert await world.sick_slots() == []


async def test_application_that_faults(world: World, nvml: StandInNvml) -> None:
    first, second = await world.submit(), await world.submit()
    _, slot_id = await world.runner(first)
    await world.runner(second)
    for _ in range(5):
        nvml.raise_xid(int(slot_id.removeprefix("a1/GPU-")[0]), 31)
    await wait_until(lambda: 'gpu_xid_total{kind="application"} 5.0' in world.agent.scrape())
    third = await world.submit()
    world.agent.finish(first)
    assert await world.runner(third) == (world.agent.starts(third)[-1], slot_id)
    assert await world.sick_slots() == []
