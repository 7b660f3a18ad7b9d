"""Learns of a new leader from the other schedulers, even while the old leader is silent or gone.

It keeps one call open to a scheduler that does not lead. This scheduler answers as soon as it knows a newer leader or
other schedulers. Without the call an agent would stay with a paused leader until its connection broke. This module
opens no stream; the link decides what follows from a new leader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
import structlog

from gangline.protocol import rpc
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.v1 import agent_pb2, agent_pb2_grpc
from services.common.concurrency import first_of

# Deadline of one call. It is longer than a scheduler keeps a call open.
ANSWER_SECONDS = 30.0
# Longest pause between two calls.
PAUSE_SECONDS = 0.5
# Pause after a scheduler of an earlier version, which does not know the call.
UNKNOWN_CALL_SECONDS = 60.0

log = structlog.get_logger(__name__)


class LeaderWatch:
    """Watches for new leaders. `run` is its long-lived task.

    candidates: returns the addresses to ask, never empty; called before each call.
    on_leader: called with the epoch and the address of each leader that is newer than all before.
    on_schedulers: called with the addresses of all schedulers that are alive.
    dialer: opens the channels.
    """

    def __init__(
        self,
        token: str,
        candidates: Callable[[], Sequence[str]],
        on_leader: Callable[[int, str], None],
        on_schedulers: Callable[[Sequence[str]], None],
        dialer: Dialer = PLAIN,
    ) -> None:
        self._metadata = rpc.token_metadata(token)
        self._candidates = candidates
        self._on_leader = on_leader
        self._on_schedulers = on_schedulers
        self._dialer = dialer
        self._epoch = 0
        self._schedulers: tuple[str, ...] = ()
        self._has_leader = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Returns the epoch of the newest leader that is known; 0 before the first."""
        return self._epoch

    def welcomed(self, epoch: int) -> None:
        """Notes the current leader. From now on only leaders of a newer epoch are reported. An open call to this leader
        ends."""
        self._epoch = max(self._epoch, epoch)
        self._has_leader.set()

    async def run(self) -> None:
        """Watches until it is cancelled."""
        num_failures = 0
        while True:
            candidates = self._candidates()
            address = candidates[num_failures % len(candidates)]
            try:
                async with self._dialer.open_async(address, rpc.CHANNEL_OPTIONS) as channel:
                    await self._ask_again_and_again(channel, address)
                num_failures = 0
            except grpc.aio.AioRpcError as failure:
                num_failures += 1
                if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                    await asyncio.sleep(UNKNOWN_CALL_SECONDS)
            except Exception:
                # This is the top of a long-lived task; the link continues without it.
                num_failures += 1
                log.exception("asking for the leader failed", address=address)
            await self._pause()

    async def _ask_again_and_again(self, channel: grpc.aio.Channel, address: str) -> None:
        """Asks until this scheduler leads, or is no scheduler of the cluster any more."""
        stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        while address in self._candidates():
            answer = await self._ask(stub, address)
            if answer is None:
                return
            # A scheduler that has just started may not know any scheduler yet.
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
        """Makes one call. Returns None once this scheduler leads: it would not answer while it is paused, and its
        successor is what the agent must learn."""
        request = agent_pb2.FindLeaderRequest(epoch=self._epoch, scheduler_addresses=self._schedulers)
        asking = stub.FindLeader(request, metadata=self._metadata, timeout=ANSWER_SECONDS)
        return await first_of(asking, self._wait_until_leading(address))

    async def _wait_until_leading(self, address: str) -> None:
        while address in self._candidates():
            self._has_leader.clear()
            await self._has_leader.wait()

    async def _pause(self) -> None:
        """Waits between two calls, so that no answer makes an agent ask in a tight loop."""
        await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
