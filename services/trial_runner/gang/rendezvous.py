"""The rendezvous of a gang's members at the leading scheduler, with a deadline.

Owns the JoinGang stream: it greets, probes the candidates that the scheduler names, reports the results, and learns
which network was chosen. After a lost stream, or if a scheduler no longer leads, all of this is repeated with the next
one, until the gang is linked. The trial's log names the missing members. A gang of one has no rendezvous.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import structlog

from gangline.domain.state import ExitKind
from gangline.protocol.rpc import error_of, find_leader, token_metadata
from gangline.protocol.wire import enum_member
from gangline.v1 import runner_pb2, runner_pb2_grpc
from services.common.concurrency import cancel
from services.trial_runner.delivery.channel_route import ChannelRoute
from services.trial_runner.gang import network_probe

# Members of one gang never arrive at the same instant, so only a longer wait is worth a line in the log.
ANNOUNCE_SECONDS = 0.5
# Added to the deadline here, so that the scheduler's own deadline expires first: it knows which members are missing.
PATIENCE_SECONDS = 5.0
# Codes of a refusal that no retry changes.
_HOPELESS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND}

log = structlog.get_logger(__name__)


class RendezvousFailed(Exception):
    """Raised if the members cannot meet. kind: RENDEZVOUS or NETWORK, or PEER_FAILED if node rank 0 is lost before its
    store. suspects: see ExitReport.suspect_agent_ids."""

    def __init__(self, kind: ExitKind, message: str, suspects: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.suspects = tuple(suspects)


class Rendezvous:
    """One member's part in the rendezvous. Usage: `meet`, link the gang, then `close`. note: takes a line for the
    trial's log."""

    def __init__(
        self,
        route: ChannelRoute,
        token: str,
        hello: runner_pb2.GangHello,
        *,
        agent_id: str,
        deadline_seconds: float,
        note: Callable[[str], None],
    ) -> None:
        self._route = route
        self._token = token
        self._hello = hello
        self._agent_id = agent_id
        self._deadline_seconds = deadline_seconds
        self._note = note
        self._missing = ""
        self._unreached: list[str] = []
        self._chosen: asyncio.Future[runner_pb2.NetworkCandidate] = asyncio.get_running_loop().create_future()
        self._joining: asyncio.Task[None] | None = None
        self._announcing: asyncio.TimerHandle | None = None

    async def meet(self) -> runner_pb2.NetworkCandidate:
        """Returns the chosen network. Raises RendezvousFailed. The stream stays open until `close`."""
        self._joining = asyncio.create_task(self._join())
        try:
            async with asyncio.timeout(self._deadline_seconds + PATIENCE_SECONDS):
                return await asyncio.shield(self._chosen)
        except TimeoutError as error:
            raise RendezvousFailed(ExitKind.RENDEZVOUS, self._overdue()) from error

    async def close(self) -> None:
        """Ends the stream, because the gang is linked or will never be."""
        self._unannounce()
        if self._joining is not None:
            await cancel(self._joining)
        if self._chosen.done():
            # Reading the exception keeps asyncio from logging it as never retrieved.
            self._chosen.exception()
        await self._route.close()

    def _overdue(self) -> str:
        after = f"the rendezvous was not complete after {self._deadline_seconds:g} s"
        return f"{after}: {self._missing or f'{self._route.name} did not answer'}"

    async def _join(self) -> None:
        while True:
            try:
                await self._join_once()
            except grpc.aio.AioRpcError as error:
                if error.code() in _HOPELESS:
                    self._fail(ExitKind.RENDEZVOUS, error_of(error, self._route.name).message)
                    return
                log.info(
                    "the rendezvous goes on with the next scheduler", scheduler=self._route.name, error=error.details()
                )
                await self._route.failed(find_leader(error))
            else:
                await self._route.failed()

    async def _join_once(self) -> None:
        requests: asyncio.Queue[runner_pb2.JoinGangRequest] = asyncio.Queue()
        requests.put_nowait(runner_pb2.JoinGangRequest(hello=self._hello))
        stub = runner_pb2_grpc.RunnerServiceStub(self._route.channel())
        call = stub.JoinGang(_drain(requests), metadata=token_metadata(self._token))
        try:
            async for response in call:
                self._route.succeeded()
                answer = await self._on_response(response)
                if answer is not None:
                    requests.put_nowait(answer)
        finally:
            call.cancel()

    async def _on_response(self, response: runner_pb2.JoinGangResponse) -> runner_pb2.JoinGangRequest | None:
        match response.WhichOneof("message"):
            case "waiting":
                self._on_waiting(response.waiting)
            case "peers":
                return await self._probe(response.peers)
            case "chosen":
                if not self._chosen.done():
                    self._chosen.set_result(response.chosen.candidate)
            case "failed":
                kind = enum_member(ExitKind, response.failed.kind) or ExitKind.RENDEZVOUS
                message = response.failed.message or "; ".join(self._unreached) or "the rendezvous failed"
                self._fail(kind, message, response.failed.suspect_agent_ids)
        return None

    def _on_waiting(self, waiting: runner_pb2.GangWaiting) -> None:
        self._unannounce()
        since = time.strftime("%H:%M:%S", time.gmtime(waiting.since_at))
        self._missing = f"{', '.join(waiting.missing_agent_ids)} missing since {since} UTC"
        line = f"waiting for the other members of the gang: {self._missing}"
        self._announcing = asyncio.get_running_loop().call_later(ANNOUNCE_SECONDS, self._note, line)

    def _unannounce(self) -> None:
        if self._announcing is not None:
            self._announcing.cancel()

    async def _probe(self, peers: runner_pb2.GangPeers) -> runner_pb2.JoinGangRequest:
        self._unannounce()
        result = await network_probe.probe_candidates(peers.candidates, self._hello.node_rank, self._token)
        self._unreached = network_probe.describe_failures(result, self._agent_id)
        for line in self._unreached:
            self._note(line)
        return runner_pb2.JoinGangRequest(probe=result)

    def _fail(self, kind: ExitKind, message: str, suspects: Sequence[str] = ()) -> None:
        if not self._chosen.done():
            self._chosen.set_exception(RendezvousFailed(kind, message, suspects))


async def _drain(requests: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while True:
        yield await requests.get()
