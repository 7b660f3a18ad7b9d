"""Hears of a new leader from the other schedulers, also while the old leader is silent or gone.

Keeps one call open to a scheduler that does not lead, which answers as soon as it knows a newer leader or other
schedulers. Without this an agent would stay with a paused leader until its connection broke. It opens no stream; the
link decides what to do about a new leader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
import structlog

from gangline import rpc
from gangline.v1 import agent_pb2, agent_pb2_grpc

# Longer than a scheduler keeps a question.
ANSWER_SECONDS = 30.0
PAUSE_SECONDS = 0.5
# Schedulers of earlier versions do not know the call.
UNKNOWN_CALL_SECONDS = 60.0

log = structlog.get_logger(__name__)


class LeaderWatch:
    """`run` is its long-lived task.

    candidates: the addresses to ask, never empty; called before each question. on_leader: called with the epoch
    and the address of each leader that is newer than all before. on_schedulers: called with the addresses of all
    schedulers that are alive.
    """

    def __init__(
        self,
        token: str,
        candidates: Callable[[], Sequence[str]],
        on_leader: Callable[[int, str], None],
        on_schedulers: Callable[[Sequence[str]], None],
    ) -> None:
        self._metadata = rpc.token_metadata(token)
        self._candidates = candidates
        self._on_leader = on_leader
        self._on_schedulers = on_schedulers
        self._epoch = 0
        self._schedulers: tuple[str, ...] = ()
        self._has_leader = asyncio.Event()

    def welcomed(self, epoch: int) -> None:
        """Only leaders of a newer epoch are news from now on. A question that is open at this leader ends."""
        self._epoch = max(self._epoch, epoch)
        self._has_leader.set()

    async def run(self) -> None:
        """Until cancelled."""
        num_failures = 0
        while True:
            candidates = self._candidates()
            address = candidates[num_failures % len(candidates)]
            try:
                async with grpc.aio.insecure_channel(address, options=rpc.CHANNEL_OPTIONS) as channel:
                    await self._ask_again_and_again(channel, address)
                num_failures = 0
            except grpc.aio.AioRpcError as failure:
                num_failures += 1
                if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                    await asyncio.sleep(UNKNOWN_CALL_SECONDS)
            except Exception:
                # The top of a long-lived task: the link goes on without it.
                num_failures += 1
                log.exception("asking for the leader failed", address=address)
            await self._pause()

    async def _ask_again_and_again(self, channel: grpc.aio.Channel, address: str) -> None:
        """Until this scheduler leads, or is no scheduler of the cluster any more."""
        stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        while address in self._candidates():
            answer = await self._ask(stub, address)
            if answer is None:
                return
            # A scheduler that has just started may not know any yet.
            if answer.scheduler_addresses and set(answer.scheduler_addresses) != set(self._schedulers):
                self._schedulers = tuple(answer.scheduler_addresses)
                self._on_schedulers(self._schedulers)
            if answer.epoch > self._epoch:
                self._epoch = answer.epoch
                self._on_leader(answer.epoch, answer.leader_address)
            await self._pause()

    async def _ask(
        self, stub: agent_pb2_grpc.AgentServiceAsyncStub, address: str
    ) -> agent_pb2.FindLeaderResponse | None:
        """None once this scheduler leads: it would not answer while it is paused, and its successor is what counts."""
        request = agent_pb2.FindLeaderRequest(epoch=self._epoch, scheduler_addresses=self._schedulers)
        asking = asyncio.ensure_future(stub.FindLeader(request, metadata=self._metadata, timeout=ANSWER_SECONDS))
        leading = asyncio.ensure_future(self._wait_until_leading(address))
        try:
            await asyncio.wait({asking, leading}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, leading):
                task.cancel()
            await asyncio.gather(asking, leading, return_exceptions=True)

    async def _wait_until_leading(self, address: str) -> None:
        while address in self._candidates():
            self._has_leader.clear()
            await self._has_leader.wait()

    async def _pause(self) -> None:
        """Between two questions, whatever is answered: no answer makes an agent ask in a tight loop."""
        await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
