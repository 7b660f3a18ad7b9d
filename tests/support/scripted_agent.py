"""An agent that does what a test tells it, over the real stream: it accepts what it is started with and ends it on
demand. Its journal is a dictionary. It looks for the leader among the addresses it is given, as the real one does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc
import grpc.aio

from gangline.domain.resource import Agent, NetworkInterface, Slot
from gangline.domain.state import ExitKind, State
from gangline.protocol import rpc, wire
from gangline.v1 import agent_pb2, ingest_pb2, runner_pb2, runner_pb2_grpc, types_pb2
from gangline.v1.agent_pb2_grpc import AgentServiceStub
from tests.support.scheduler import CLUSTER_TOKEN
from tests.support.wait import until

Addresses = Callable[[], Sequence[str]]


class ScriptedAgent:
    """journal: allocation id -> status. specs: what it was started with. stops: the stop commands it got.

    obeys_stop: whether it reports the end of what it is told to stop. is_silent: its stream lives, but it says nothing.
    greets_again: whether it looks for the leader once its stream has ended, as a process that runs does.
    clock_error_seconds: how far ahead its clock is. tells_time: False as agents of an earlier version.
    asks_before_commands: as in its hello.
    tells_accepts: whether it says what it has accepted before it says how that ended.
    num_unanswered: heartbeats that the leader has not answered on this stream.
    """

    def __init__(self, agent_id: str, addresses: Addresses, slots: int = 2, obeys_stop: bool = True) -> None:
        self.id = agent_id
        self.journal: dict[str, agent_pb2.AllocationStatus] = {}
        self.specs: dict[str, runner_pb2.RunnerSpec] = {}
        self.stops: dict[str, agent_pb2.StopAllocation] = {}
        self.welcomes: list[agent_pb2.AgentWelcome] = []
        self.gateways: list[str] = []
        self.accepts = True
        self.is_silent = False
        self.greets_again = True
        self.clock_error_seconds = 0.0
        self.tells_time = True
        self.tells_accepts = True
        self.asks_before_commands = False
        self.num_unanswered = 0
        self._obeys_stop = obeys_stop
        self._addresses = addresses
        self._outbox: asyncio.Queue[agent_pb2.ConnectRequest] = asyncio.Queue()
        self._running: asyncio.Task[None] | None = None
        self.record = Agent(
            id=agent_id,
            slots=tuple(Slot(f"{agent_id}/{number}") for number in range(slots)),
            interfaces=(NetworkInterface("eth0", "10.0.0.1", 24, 1000),),
            host_id="host",
            hostname="host",
        )

    async def connect(self) -> ScriptedAgent:
        """Returns once a leader has welcomed it; keeps reconnecting until `disconnect`."""
        num_welcomes = len(self.welcomes)
        self._running = asyncio.create_task(self._run())
        await until(lambda: len(self.welcomes) > num_welcomes, f"a welcome for {self.id}", 20)
        return self

    async def disconnect(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def started(self, count: int = 1) -> list[runner_pb2.RunnerSpec]:
        """The specs of everything that is alive here, once there are so many."""
        await until(lambda: len(self._alive()) >= count, f"{count} starts on {self.id}", 20)
        return [self.specs[allocation_id] for allocation_id in self._alive()]

    def has_sent_all(self) -> bool:
        """Whether every message was handed to the stream."""
        return self._outbox.empty()

    def finish(
        self,
        allocation_id: str,
        kind: ExitKind,
        message: str = "",
        rank: int | None = None,
        seconds_ago: float = 0.0,
        *,
        is_agent_at_fault: bool = False,
        has_not_begun: bool = False,
    ) -> None:
        """The member ends; told now, or with the next hello. seconds_ago: since when it is so."""
        at = self._now() - seconds_ago
        report = types_pb2.ExitReport(agent_id=self.id, message=message, rank=rank, failed_at=at, ended_at=at)
        report.is_agent_at_fault, report.has_not_begun = is_agent_at_fault, has_not_begun
        report.kind = wire.enum_number(kind)  # type: ignore[assignment]  # protobuf takes the number
        status = self.journal[allocation_id]
        status.state = types_pb2.STATE_TERMINAL
        status.exit.CopyFrom(report)
        self._outbox.put_nowait(agent_pb2.ConnectRequest(status=status))

    def tell_metrics(self, allocation_id: str, address: str) -> None:
        """The agent has seen the runner serve its metrics."""
        self.journal[allocation_id].metrics_address = address
        self._outbox.put_nowait(agent_pb2.ConnectRequest(status=self.journal[allocation_id]))

    def tell_slots(self, slots: Sequence[Slot], problem: str = "") -> None:
        """Changes its slots or its own health while it is connected; its next hello reports the same."""
        self.record = replace(self.record, slots=tuple(slots), problem=problem)
        message = agent_pb2.AgentSlots(slots=[wire.to_proto(slot) for slot in slots], problem=problem)
        self._outbox.put_nowait(agent_pb2.ConnectRequest(slots=message))

    def _now(self) -> float:
        return time.time() + self.clock_error_seconds

    def _stamped(self, request: agent_pb2.ConnectRequest) -> agent_pb2.ConnectRequest:
        request.sent_at = self._now() if self.tells_time else 0.0
        return request

    def _alive(self) -> list[str]:
        return [
            allocation_id for allocation_id, status in self.journal.items() if status.state != types_pb2.STATE_TERMINAL
        ]

    async def _run(self) -> None:
        while True:
            for address in self._addresses() if self.greets_again else ():
                with suppress(grpc.aio.AioRpcError):
                    async with grpc.aio.insecure_channel(address, options=rpc.CHANNEL_OPTIONS) as channel:
                        await self._hold(channel)
                rpc.raise_if_cancelled()
            await asyncio.sleep(0.05)

    async def _hold(self, channel: grpc.aio.Channel) -> None:
        self._outbox, self.num_unanswered = asyncio.Queue(), 0
        call = AgentServiceStub(channel).Connect(self._requests(), metadata=rpc.token_metadata(CLUSTER_TOKEN))
        async for response in call:
            self._obey(response)

    async def _requests(self) -> AsyncIterator[agent_pb2.ConnectRequest]:
        hello = agent_pb2.AgentHello(
            agent=wire.to_proto(self.record),
            allocations=self.journal.values(),
            asks_before_commands=self.asks_before_commands,
        )
        yield self._stamped(agent_pb2.ConnectRequest(hello=hello))
        while True:
            request = agent_pb2.ConnectRequest(heartbeat=agent_pb2.AgentHeartbeat())
            # Nothing is handed out inside of the timeout: it would cancel whoever took it.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    request = await self._outbox.get()
            if not (self.is_silent and request.HasField("heartbeat")):
                self.num_unanswered += request.HasField("heartbeat")
                yield self._stamped(request)

    def _obey(self, response: agent_pb2.ConnectResponse) -> None:
        match response.WhichOneof("message"):
            case "welcome":
                self.welcomes.append(response.welcome)
            case "heartbeat":
                self.num_unanswered -= 1
            case "start":
                self._start(response.start.spec)
            case "stop":
                self.stops[response.stop.allocation_id] = response.stop
                if self._obeys_stop and response.stop.allocation_id in self.journal:
                    kind = wire.enum_member(ExitKind, response.stop.kind)
                    assert kind is not None
                    self.finish(response.stop.allocation_id, kind)
            case "gateways":
                self.gateways = list(response.gateways.addresses)
            case "forget":
                self.journal.pop(response.forget.allocation_id, None)

    def _start(self, spec: runner_pb2.RunnerSpec) -> None:
        if not self.accepts:
            return
        self.specs[spec.allocation.id] = spec
        status = agent_pb2.AllocationStatus(
            allocation_id=spec.allocation.id, state=types_pb2.STATE_STARTING, accepted_at=self._now()
        )
        self.journal.setdefault(spec.allocation.id, status)
        if self.tells_accepts:
            self._outbox.put_nowait(agent_pb2.ConnectRequest(status=self.journal[spec.allocation.id]))


def validation_of(batches: int, metrics: dict[str, float]) -> ingest_pb2.MetricsPoint:
    return ingest_pb2.MetricsPoint(group="validation", batches_completed=batches, metrics=metrics)


class ScriptedRunner:
    """Speaks for one member of a gang, with its allocation's token."""

    def __init__(self, spec: runner_pb2.RunnerSpec, address: str) -> None:
        self.spec = spec
        self.address = address
        self._sequence = 0

    async def report(self, **report: object) -> runner_pb2.ReportTrialResponse:
        """One of running, progress, metrics, checkpoint."""
        self._sequence += 1
        return await self.send(runner_pb2.TrialReport(sequence=self._sequence, **report))  # type: ignore[arg-type]  # one of its fields

    async def send(self, report: runner_pb2.TrialReport) -> runner_pb2.ReportTrialResponse:
        request = runner_pb2.ReportTrialRequest(
            allocation_id=self.spec.allocation.id, node_rank=self.spec.node_rank, report=report
        )
        async with self._channel() as channel:
            stub = runner_pb2_grpc.RunnerServiceStub(channel)
            answer = await stub.ReportTrial(request, metadata=rpc.token_metadata(self.spec.token), timeout=10)
            assert isinstance(answer, runner_pb2.ReportTrialResponse)
            return answer

    async def run(self) -> None:
        """Says that its ranks are up."""
        now = time.time()
        timeline = types_pb2.Timeline(runner_up_at=now, rendezvous_at=now, ranks_up_at=now)
        await self.report(running=runner_pb2.RunningReport(timeline=timeline, metrics_address="127.0.0.1:1"))

    async def join(self, port: int = 4000) -> runner_pb2.JoinGangResponse:
        """Meets the others, says that it reached all of them, and returns how the rendezvous ended."""
        probing: asyncio.Queue[runner_pb2.JoinGangRequest] = asyncio.Queue()

        async def requests() -> AsyncIterator[runner_pb2.JoinGangRequest]:
            hello = runner_pb2.GangHello(
                allocation_id=self.spec.allocation.id, node_rank=self.spec.node_rank, port=port
            )
            yield runner_pb2.JoinGangRequest(hello=hello)
            while True:
                yield await probing.get()

        async with self._channel() as channel:
            stub = runner_pb2_grpc.RunnerServiceStub(channel)
            async for message in stub.JoinGang(requests(), metadata=rpc.token_metadata(self.spec.token)):
                if message.HasField("peers"):
                    probed = [
                        runner_pb2.ProbedCandidate(subnet=candidate.subnet) for candidate in message.peers.candidates
                    ]
                    result = runner_pb2.ProbeResult(candidates=probed)
                    probing.put_nowait(runner_pb2.JoinGangRequest(probe=result))
                elif message.HasField("chosen") or message.HasField("failed"):
                    return message
        raise AssertionError("the rendezvous ended without an answer")

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel(self.address, options=rpc.CHANNEL_OPTIONS) as channel:
            yield channel


def state_of(number: int) -> State | None:
    return wire.enum_member(State, number)
