"""A scheduler for the agent's tests: a real gRPC server of AgentService that records what it hears and sends what a
test tells it to. It may be a standby, which refuses and names the leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc.aio

from gangline.errors import GanglineError, unauthenticated
from gangline.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from services.common.leader_probe import not_leader
from services.common.server import Principal, Server, serve

TOKEN = "cluster-token-of-the-tests"
T = TypeVar("T")


class StandInScheduler(agent_pb2_grpc.AgentServiceServicer):
    """hellos, statuses, heartbeats, slots: what came in, in order, over all streams. latencies: of every
    message, by the time that it carries.

    answers: whether it answers heartbeats now. welcomes: set while it sends its welcomes. promises_answers: whether a
    welcome says that it answers heartbeats.
    problems: what is wrong with slots, by slot id, as the newest message says.
    """

    def __init__(self, epoch: int = 10) -> None:
        self.epoch = epoch
        self.lease_seconds = 0.5
        self.answers = False
        self.welcomes = asyncio.Event()
        self.welcomes.set()
        self.promises_answers = False
        self.leader = ""
        self.address = ""
        self.hellos: list[agent_pb2.AgentHello] = []
        self.statuses: list[agent_pb2.AllocationStatus] = []
        self.slots: list[agent_pb2.AgentSlots] = []
        self.latencies: list[float] = []
        self.problems: dict[str, str] = {}
        self.num_heartbeats = self.num_refused = self.num_unauthenticated = self.num_questions = 0
        self.beaten_at: list[float] = []
        self.pulses: list[tuple[float, agent_pb2.HeartbeatRequest]] = []
        self.newest_epoch = 0
        self.newest_leader = ""
        self.schedulers: tuple[str, ...] = ()
        self._told = asyncio.Event()
        self.streams: set[asyncio.Queue[agent_pb2.ConnectResponse | None]] = set()
        self._changed = asyncio.Event()
        self._server: Server | None = None

    async def start(self, listen: str = "127.0.0.1:0") -> None:
        def add(server: grpc.aio.Server) -> None:
            agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)

        self._server = await serve(listen, add, self._authenticate)
        self.address = self._server.address

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)
            self._server = None

    async def Connect(  # noqa: N802 - gRPC's name; a handler here is an async generator
        self, requests: AsyncIterator[agent_pb2.ConnectRequest], context: Any
    ) -> AsyncIterator[agent_pb2.ConnectResponse]:
        if self.leader:
            self.num_refused += 1
            raise not_leader(self.leader)
        outgoing: asyncio.Queue[agent_pb2.ConnectResponse | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(requests, outgoing))
        try:
            while (message := await outgoing.get()) is not None:
                yield message
        finally:
            self.streams.discard(outgoing)
            reader.cancel()
            self._notify()

    async def FindLeader(  # noqa: N802 - gRPC's name
        self, request: agent_pb2.FindLeaderRequest, _context: Any
    ) -> agent_pb2.FindLeaderResponse:
        """Keeps the question until the test names a newer leader or other schedulers."""
        self.num_questions += 1
        self._notify()
        while self.newest_epoch <= request.epoch and set(self.schedulers) == set(request.scheduler_addresses):
            await self._told.wait()
        return agent_pb2.FindLeaderResponse(
            epoch=self.newest_epoch, leader_address=self.newest_leader, scheduler_addresses=self.schedulers
        )

    async def Heartbeat(  # noqa: N802 - gRPC's name
        self, requests: AsyncIterator[agent_pb2.HeartbeatRequest], _context: Any
    ) -> agent_pb2.HeartbeatResponse:
        async for request in requests:
            self.pulses.append((time.monotonic(), request))
            self._notify()
        return agent_pb2.HeartbeatResponse()

    def tell(self, epoch: int = 0, leader: str = "", schedulers: Sequence[str] = ()) -> None:
        """Sets the answer to agents that ask for the leader."""
        self.newest_epoch, self.newest_leader, self.schedulers = epoch, leader, tuple(schedulers)
        self._told.set()
        self._told = asyncio.Event()

    async def _read(
        self,
        requests: AsyncIterator[agent_pb2.ConnectRequest],
        outgoing: asyncio.Queue[agent_pb2.ConnectResponse | None],
    ) -> None:
        async for request in requests:
            kind = request.WhichOneof("message")
            self.latencies.append(time.time() - request.sent_at)
            if kind == "hello":
                self.hellos.append(request.hello)
                self.problems = _problems(request.hello.agent.slots)
                self.statuses.extend(request.hello.allocations)
                welcome = agent_pb2.AgentWelcome(
                    epoch=self.epoch,
                    heartbeat_seconds=self.lease_seconds / 5,
                    lease_seconds=self.lease_seconds,
                    answers_heartbeats=self.promises_answers,
                )
                self._notify()
                await self.welcomes.wait()
                outgoing.put_nowait(agent_pb2.ConnectResponse(welcome=welcome))
                self.streams.add(outgoing)
            elif kind == "status":
                self.statuses.append(request.status)
            elif kind == "slots":
                self.slots.append(request.slots)
                self.problems = _problems(request.slots.slots)
            else:
                self.num_heartbeats += 1
                self.beaten_at.append(time.monotonic())
                if self.answers:
                    outgoing.put_nowait(agent_pb2.ConnectResponse(heartbeat=agent_pb2.HeartbeatAnswer()))
            self._notify()
        outgoing.put_nowait(None)

    def start_allocation(self, spec: Any, epoch: int | None = None) -> None:
        self._send(start=agent_pb2.StartAllocation(epoch=epoch or self.epoch, spec=spec))

    def stop_allocation(
        self,
        allocation_id: str,
        kind: types_pb2.ExitKind.ValueType,
        grace_seconds: float = 30.0,
        epoch: int | None = None,
    ) -> None:
        command = agent_pb2.StopAllocation(
            epoch=epoch or self.epoch,
            allocation_id=allocation_id,
            kind=kind,
            grace_seconds=grace_seconds,
            reason="the test says so",
        )
        self._send(stop=command)

    def forget(self, allocation_id: str) -> None:
        self._send(forget=agent_pb2.ForgetAllocation(allocation_id=allocation_id))

    def answer(self) -> None:
        """Answers one heartbeat on every stream."""
        self._send(heartbeat=agent_pb2.HeartbeatAnswer())

    def drop_streams(self) -> None:
        """Ends every stream, as a scheduler that steps down."""
        for outgoing in self.streams:
            outgoing.put_nowait(None)

    async def wait_for(self, find: Callable[[], T | None], seconds: float = 60.0) -> T:
        """Returns the result of `find` as soon as it is true; evaluated after each message."""
        async with asyncio.timeout(seconds):
            while not (result := find()):
                await self._changed.wait()
                self._changed = asyncio.Event()
        return result

    async def wait_silent(self, seconds: float = 0.5) -> None:
        """Until nothing has come over the streams for so long."""
        seen = -1
        while seen != len(self.latencies):
            seen = len(self.latencies)
            await asyncio.sleep(seconds)

    async def wait_greeted(self, known: int) -> agent_pb2.AgentHello:
        """Returns the newest greeting when there are more than `known`. An agent may greet more often than a test
        expects, as one that learns of a newer term while its first welcome arrives."""
        await self.wait_for(lambda: len(self.hellos) > known)
        return self.hellos[-1]

    async def wait_connected(self) -> None:
        await self.wait_for(lambda: bool(self.streams))

    async def wait_status(self, allocation_id: str, state: types_pb2.State.ValueType) -> agent_pb2.AllocationStatus:
        return await self.wait_for(lambda: self.find_status(allocation_id, state))

    def find_status(self, allocation_id: str, state: types_pb2.State.ValueType) -> agent_pb2.AllocationStatus | None:
        matches = [each for each in self.statuses if each.allocation_id == allocation_id and each.state == state]
        return matches[-1] if matches else None

    def _send(self, **command: Any) -> None:
        assert self.streams, "no agent is connected"
        for outgoing in self.streams:
            outgoing.put_nowait(agent_pb2.ConnectResponse(**command))

    async def _authenticate(self, _method: str, token: str | None) -> Principal:
        if token != TOKEN:
            self.num_unauthenticated += 1
            raise _wrong_token()
        return Principal("cluster", "cluster")

    def _notify(self) -> None:
        self._changed.set()


def _problems(slots: Iterable[types_pb2.Slot]) -> dict[str, str]:
    return {slot.id: slot.problem for slot in slots if not slot.is_healthy}


def _wrong_token() -> GanglineError:
    return unauthenticated("auth.wrong_token", "this is not the cluster's token")
