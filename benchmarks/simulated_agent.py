"""Simulates an agent: it opens a real stream to the scheduler, accepts allocations and ends them in time.

Owns the check for what the scheduler must never do: give a slot to two live allocations, command with an old epoch, or
start the same allocation twice. It runs nothing and keeps no journal on disk. Any number of simulated agents share one
event loop, each with a connection of its own, like real agents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc.aio

from gangline.domain.resource import Agent
from gangline.protocol import rpc, wire
from gangline.v1 import agent_pb2, agent_pb2_grpc, runner_pb2, types_pb2

# Without this option, channels of one process to one address share a connection.
OPTIONS = [*rpc.SMALL_MESSAGE_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]

RunSeconds = Callable[[runner_pb2.RunnerSpec], float]


@dataclass
class Book:
    """Records what all agents of a run have seen."""

    # time of the last member's start by allocation id, for allocations with all members started
    started_at: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # allocations of which every member's end is on record
    faults: list[str] = field(default_factory=list)  # violations, as text
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    _num_members: dict[str, int] = field(default_factory=dict)
    _started: dict[str, set[str]] = field(default_factory=dict)
    _forgotten: dict[str, set[str]] = field(default_factory=dict)

    def start(self, allocation: types_pb2.Allocation, agent_id: str, now: float) -> None:
        """Records the start of a member; called for each member."""
        started = self._started.setdefault(allocation.id, set())
        if agent_id in started:
            self.faults.append(f"{allocation.id} was started twice on {agent_id}")
        started.add(agent_id)
        self._num_members[allocation.id] = len(allocation.members)
        if len(started) == len(allocation.members):
            self.started_at[allocation.id] = now

    def forget(self, allocation_id: str, agent_id: str) -> None:
        """Records that the scheduler has the end of a member on record; called for each member."""
        forgotten = self._forgotten.setdefault(allocation_id, set())
        forgotten.add(agent_id)
        if len(forgotten) == self._num_members.get(allocation_id):
            self.ended.add(allocation_id)


class SimulatedAgent:
    """Simulates one agent. run_seconds: returns how long an allocation runs here, by its spec."""

    def __init__(self, record: Agent, run_seconds: RunSeconds, book: Book) -> None:
        self._record = record
        self._run_seconds = run_seconds
        self._book = book
        self._outbox: asyncio.Queue[agent_pb2.ConnectRequest] = asyncio.Queue()
        self._owner_by_slot: dict[str, str] = {}
        self._epoch = 0

    async def run(self, address: str, token: str) -> None:
        """Runs until cancelled. Raises grpc.aio.AioRpcError when the scheduler ends the stream."""
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
            call = stub.Connect(self._requests(), metadata=rpc.token_metadata(token))
            beating: asyncio.Task[None] | None = None
            try:
                async for response in call:
                    if response.HasField("welcome"):
                        self._epoch = response.welcome.epoch
                        beating = asyncio.create_task(self._beat(response.welcome.heartbeat_seconds))
                    else:
                        self._obey(response)
            finally:
                if beating is not None:
                    beating.cancel()

    async def _requests(self) -> AsyncIterator[agent_pb2.ConnectRequest]:
        yield agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello(agent=wire.to_proto(self._record)))
        while True:
            yield await self._outbox.get()

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._outbox.put_nowait(agent_pb2.ConnectRequest(heartbeat=agent_pb2.AgentHeartbeat()))

    def _obey(self, response: agent_pb2.ConnectResponse) -> None:
        match response.WhichOneof("message"):
            case "start":
                self._check_epoch(response.start.epoch)
                self._start(response.start.spec)
            case "stop":
                self._book.faults.append(f"{response.stop.allocation_id} was to be stopped: {response.stop.reason}")
            case "forget":
                self._book.forget(response.forget.allocation_id, self._record.id)
        self._book.has_news.set()

    def _start(self, spec: runner_pb2.RunnerSpec) -> None:
        allocation_id, now = spec.allocation.id, time.time()
        self._book.start(spec.allocation, self._record.id, now)
        for slot_id in spec.allocation.members[spec.node_rank].slot_ids:
            owner = self._owner_by_slot.setdefault(slot_id, allocation_id)
            if owner != allocation_id:
                self._book.faults.append(f"slot {slot_id} is {owner}'s and was given to {allocation_id}")
        self._send(
            agent_pb2.AllocationStatus(allocation_id=allocation_id, state=types_pb2.STATE_STARTING, accepted_at=now)
        )
        asyncio.get_running_loop().call_later(self._run_seconds(spec), self._finish, spec, now)

    def _finish(self, spec: runner_pb2.RunnerSpec, accepted_at: float) -> None:
        now = time.time()
        for slot_id in spec.allocation.members[spec.node_rank].slot_ids:
            self._owner_by_slot.pop(slot_id, None)
        report = types_pb2.ExitReport(
            agent_id=self._record.id, kind=types_pb2.EXIT_KIND_COMPLETED, message="simulated", exit_code=0, ended_at=now
        )
        self._send(
            agent_pb2.AllocationStatus(
                allocation_id=spec.allocation.id, state=types_pb2.STATE_TERMINAL, accepted_at=accepted_at, exit=report
            )
        )

    def _send(self, status: agent_pb2.AllocationStatus) -> None:
        self._outbox.put_nowait(agent_pb2.ConnectRequest(status=status))

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._book.faults.append(f"{self._record.id} got a command of epoch {epoch}, its leader has {self._epoch}")
