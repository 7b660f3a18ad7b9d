"""The agent's stream to the leading scheduler: finds the leader, greets it, sends heartbeats, and changes to the next
one.

Owns connections and timing. `Peer`, the owner of the link, handles commands and makes the hello. A lost stream loses
nothing: the next hello carries the whole journal, and final statuses are sent again until the scheduler forgets them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import grpc
import grpc.aio
import structlog

from gangline.errors import GanglineError
from gangline.protocol import rpc
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.protocol.peer_status import PeerStatus
from gangline.v1 import agent_pb2, agent_pb2_grpc
from services.agent.connection.heartbeat import HeartbeatThread
from services.agent.connection.leader_answers import LeaderAnswers, Outbox
from services.agent.connection.leader_choice import (
    LeaderChoice,
    after_failure,
    after_learning,
    after_naming,
    after_new_leader,
    after_welcome,
    plan_delay,
)
from services.agent.connection.leader_watch import LeaderWatch
from services.agent.machine import metrics
from services.common.concurrency import cancel, first_of
from services.common.timer_grid import seconds_until_due

# Limit for the answer to a hello, after which the next scheduler is tried.
WELCOME_SECONDS = 10.0
# Pause between two sendings of the final statuses that the scheduler has not forgotten.
RESEND_SECONDS = 10.0

Call = grpc.aio.StreamStreamCall[agent_pb2.ConnectRequest, agent_pb2.ConnectResponse]
log = structlog.get_logger(__name__)


class Peer(Protocol):
    """The owner of a link."""

    def hello(self) -> agent_pb2.AgentHello: ...

    def refuse_leader(self, epoch: int) -> str:
        """Returns why a leader of this epoch is not obeyed. An empty result accepts the leader, and its epoch is
        remembered."""

    async def on_command(self, command: agent_pb2.ConnectResponse) -> None: ...

    def unforgotten(self) -> Sequence[agent_pb2.AllocationStatus]:
        """Returns the final statuses that the scheduler has not yet told the agent to forget."""


class NotLeadingError(Exception):
    """Raised if the process that answered does not lead this agent. leader: the address that it named, or empty."""

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class LeaderStream:
    """The connection to the leader. `run` is its long-lived task; `reconnect` may be called at any time.

    outbox: statuses and slots to send. Without a leader they accumulate; the next hello contains all of them, and the
    outbox is emptied.
    answers: is told of each heartbeat and each answer.
    dialer: opens the channels.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        peer: Peer,
        outbox: Outbox,
        answers: LeaderAnswers,
        *,
        dialer: Dialer = PLAIN,
    ) -> None:
        self._route = LeaderChoice(tuple(addresses))
        self._metadata = rpc.token_metadata(token)
        self._peer = peer
        self._outbox = outbox
        self._answers = answers
        self._stale = asyncio.Event()
        self._dialer = dialer
        self._leader_watch = LeaderWatch(
            token, lambda: self._route.others, self._on_leader, self._on_schedulers, dialer
        )
        self._attempted = ""
        self._agent_id = ""
        self._has_new_leader = asyncio.Event()
        self._last_errors: dict[str, str] = {}

    def reconnect(self) -> None:
        """Greets the leader again, to report what only a hello contains."""
        self._stale.set()

    async def run(self) -> None:
        """Holds a stream to the leader until it is cancelled."""
        watching = asyncio.create_task(self._leader_watch.run(), name="leader watch")
        try:
            while True:
                delay = plan_delay(self._route, random.random())  # noqa: S311 - jitter, no secret
                await first_of(asyncio.sleep(delay), self._has_new_leader.wait())
                self._has_new_leader.clear()
                await self._try_address(self._route.address)
        finally:
            await cancel(watching)

    async def _try_address(self, address: str) -> None:
        """Holds a stream to this address until it ends, or until a newer leader is known."""
        self._attempted = address
        try:
            await first_of(self._attempt(address), self._has_new_leader.wait())
        except NotLeadingError as error:
            self._move(after_naming(self._route, error.leader) if error.leader else after_failure(self._route))
            self._note(address, "not_leading", str(error))
        except GanglineError as error:
            self._move(after_failure(self._route))
            self._note(address, "failed", error.message)
        except Exception:
            # This is the top of a long-lived task: without its link the agent would be useless, so no error may end it.
            self._move(after_failure(self._route))
            log.exception("the stream to the scheduler broke", address=address)
            metrics.stream_attempts.labels(result="failed").inc()
        finally:
            self._attempted = ""

    def _move(self, route: LeaderChoice) -> None:
        """Takes the route after a failed attempt, unless a new leader has become known meanwhile, which is tried
        first."""
        if not self._has_new_leader.is_set():
            self._route = route

    def _on_leader(self, epoch: int, address: str) -> None:
        """Changes to a new leader. An attempt to greet the scheduler at its address continues, because this scheduler
        has begun to lead. A stream to it is of an earlier term of its own, so it is greeted again."""
        if address and address == self._attempted:
            if self._answers.is_connected:
                log.info("the scheduler leads anew", address=address, epoch=epoch)
                self._stale.set()
        elif address:
            log.info("another scheduler leads", address=address, epoch=epoch)
            self._route = after_new_leader(self._route, address)
            self._has_new_leader.set()

    def _on_schedulers(self, addresses: Sequence[str]) -> None:
        self._route = after_learning(self._route, addresses)

    async def _attempt(self, address: str) -> None:
        async with self._dialer.open_async(address, rpc.SMALL_MESSAGE_OPTIONS) as channel:
            stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
            call = stub.Connect(metadata=self._metadata)
            peer_status = PeerStatus(call)
            try:
                await self._hold(call, address)
            except grpc.aio.AioRpcError as failure:
                raise _to_error(peer_status.of(failure), address) from failure
            finally:
                self._answers.on_lost()
                metrics.stream_connected.set(0)

    async def _hold(self, call: Call, address: str) -> None:
        """Runs one stream from hello to end. The end is always an exception, unless the agent asked to reconnect."""
        greeted_at = time.monotonic()
        welcome = await self._greet(call)
        refusal = self._peer.refuse_leader(welcome.epoch)
        if refusal:
            raise NotLeadingError(refusal)
        newest = self._leader_watch.epoch
        if welcome.epoch < newest:
            # It was paused after the hello, and may know this stream no more since it leads anew.
            raise NotLeadingError(f"its welcome is of epoch {welcome.epoch}, and epoch {newest} leads")
        self._on_welcome(address, welcome, greeted_at)
        beat = agent_pb2.HeartbeatRequest(agent_id=self._agent_id, epoch=welcome.epoch)
        heartbeat_thread = HeartbeatThread(
            address,
            self._metadata,
            beat,
            welcome.heartbeat_seconds,
            lambda: self._answers.heartbeat_at or 0.0,
            dialer=self._dialer,
        )
        heartbeat_thread.start()
        try:
            await first_of(self._send(call, welcome.heartbeat_seconds), self._receive(call), self._stale.wait())
        finally:
            heartbeat_thread.stop()

    async def _greet(self, call: Call) -> agent_pb2.AgentWelcome:
        # From here on news is gathered in the emptied outbox, so none is lost between the hello and the sending.
        self._stale.clear()
        while not self._outbox.empty():
            self._outbox.get_nowait()
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                hello = self._peer.hello()
                self._agent_id = hello.agent.id
                await call.write(agent_pb2.ConnectRequest(hello=hello, sent_at=time.time()))
                first = await call.read()
        except TimeoutError as error:
            raise NotLeadingError(f"no welcome within {WELCOME_SECONDS:g} s") from error
        if not isinstance(first, agent_pb2.ConnectResponse) or not first.HasField("welcome"):
            raise NotLeadingError("it ended the stream without a welcome")
        return first.welcome

    async def _send(self, call: Call, heartbeat_seconds: float) -> None:
        """Sends heartbeats at their interval, news at once, and the unforgotten final statuses every RESEND_SECONDS."""
        beat_at = resend_at = time.monotonic()
        resend_at += RESEND_SECONDS
        while True:
            now = time.monotonic()
            if now >= beat_at:
                # The heartbeats of `HeartbeatThread` are due at the same times.
                beat_at = now + seconds_until_due(heartbeat_seconds, now)
                self._answers.on_heartbeat(now)
                await _write(call, agent_pb2.ConnectRequest(heartbeat=agent_pb2.AgentHeartbeat()))
                self._answers.heartbeat_at = now
            if now >= resend_at:
                resend_at = now + RESEND_SECONDS
                for status in self._peer.unforgotten():
                    await _write(call, agent_pb2.ConnectRequest(status=status))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + beat_at - time.monotonic()):
                    news = await self._outbox.get()
                if news.HasField("heartbeat"):
                    self._answers.on_question(time.monotonic())
                await _write(call, news)

    async def _receive(self, call: Call) -> None:
        while True:
            command = await call.read()
            if not isinstance(command, agent_pb2.ConnectResponse):
                raise NotLeadingError("it ended the stream")
            if command.HasField("heartbeat"):
                self._answers.on_answer()
            else:
                await self._peer.on_command(command)

    def _on_welcome(self, address: str, welcome: agent_pb2.AgentWelcome, greeted_at: float) -> None:
        self._answers.on_welcome(welcome, greeted_at)
        self._route = after_welcome(self._route)
        self._leader_watch.welcomed(welcome.epoch)
        self._last_errors.clear()
        metrics.stream_connected.set(1)
        metrics.stream_attempts.labels(result="welcomed").inc()
        log.info("a leader welcomed this agent", address=address, epoch=welcome.epoch)

    def _note(self, address: str, result: str, why: str) -> None:
        """Writes one log line for each change of the error, not one for each attempt while a scheduler is away."""
        metrics.stream_attempts.labels(result=result).inc()
        if why != self._last_errors.get(address):
            self._last_errors[address] = why
            log.warning("no leading scheduler there; trying on", address=address, why=why)


async def _write(call: Call, message: agent_pb2.ConnectRequest) -> None:
    message.sent_at = time.time()
    try:
        await call.write(message)
    except asyncio.InvalidStateError:
        # The stream has ended. The reader gets the reason at the same moment and raises it.
        await asyncio.Event().wait()


def _to_error(failure: grpc.RpcError, address: str) -> Exception:
    error = rpc.error_of(failure, f"the scheduler at {address}")
    if failure.code() is not grpc.StatusCode.FAILED_PRECONDITION:
        return error
    return NotLeadingError(error.message, error.leader_address)
