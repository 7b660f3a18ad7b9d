"""A lease that is kept alive while a context is open.

Owns the heartbeats. A lease counts from the time at which a heartbeat was *sent*: etcd cannot count it from an earlier
moment. Missed heartbeats alone do not end it, because etcd extends leases while its own members hold an election; only
an answer of etcd does (TTL 0). Between the two `is_fresh` is False, and the holder of the lease starts nothing new.
Used by election and presence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import structlog

from gangline.errors import GanglineError
from services.common.etcd.failure import TryFailed
from services.common.etcd.metrics import LEASE_BEAT_TIME
from services.common.etcd.session import EtcdSession, pause_seconds
from services.common.etcd.stream import Stream
from services.common.etcd.stub import Operation, messages
from services.common.timer_grid import seconds_until_due

_log = structlog.get_logger(__name__)

# A revocation takes no longer, because it runs while a service stops.
_REVOKE_SECONDS = 2.0


class LeaseLost(Exception):
    """Reports that etcd has ended the lease, with every key that was tied to it."""


class Lease:
    """Represents a live lease. id: the value for `Put.lease`. lost: set once, when etcd answers that the lease has
    ended.

    beaten_again: set with every heartbeat that etcd has answered; a waiter clears it first.
    """

    def __init__(self, lease_id: int, ttl_seconds: float, beat_seconds: float, sent_at: float) -> None:
        self.id = lease_id
        self.ttl_seconds = ttl_seconds
        self.beat_seconds = beat_seconds
        self.lost = asyncio.Event()
        self.beaten_again = asyncio.Event()
        self._sent_at = sent_at

    @property
    def is_fresh(self) -> bool:
        """Returns whether etcd certainly still keeps the lease: a heartbeat sent less than a TTL ago was answered."""
        return not self.lost.is_set() and time.monotonic() < self._sent_at + self.ttl_seconds

    @property
    def silent_seconds(self) -> float:
        """Returns the time since the newest answered heartbeat was sent."""
        return time.monotonic() - self._sent_at

    def beaten(self, sent_at: float) -> None:
        self._sent_at = sent_at
        self.beaten_again.set()
        LEASE_BEAT_TIME.set_to_current_time()


@contextlib.asynccontextmanager
async def keep_lease(session: EtcdSession, ttl_seconds: float, beat_seconds: float | None) -> AsyncIterator[Lease]:
    """Grants a lease, sends heartbeats until the context ends, then revokes the lease, which deletes its keys."""
    lease = await _grant(session, ttl_seconds, beat_seconds)
    beating = asyncio.create_task(_beat(session, lease), name=f"lease-{lease.id:x}")
    try:
        yield lease
    finally:
        beating.cancel()
        await asyncio.wait({beating})
        if not lease.lost.is_set():
            await _revoke(session, lease)


async def _grant(session: EtcdSession, ttl_seconds: float, beat_seconds: float | None) -> Lease:
    sent_at = time.monotonic()
    answer = await session.call(Operation.LEASE_GRANT, messages.LeaseGrantRequest(TTL=round(ttl_seconds)))
    ttl = float(answer.message.TTL)
    return Lease(answer.message.ID, ttl, beat_seconds or ttl / 3, sent_at)


async def _revoke(session: EtcdSession, lease: Lease) -> None:
    """Revokes the lease. If that fails, the keys only stay until the lease expires, so the failure is just logged."""
    request = messages.LeaseRevokeRequest(ID=lease.id)
    try:
        await session.call(Operation.LEASE_REVOKE, request, deadline_seconds=_REVOKE_SECONDS)
    except GanglineError as error:
        _log.info("lease left to run out", lease=lease.id, ttl_seconds=lease.ttl_seconds, reason=error.message)


async def _beat(session: EtcdSession, lease: Lease) -> None:
    num_failures = 0
    while True:
        try:
            async with await session.open(Operation.KEEP_ALIVE) as stream:
                while True:
                    await _beat_once(session, lease, stream)
                    num_failures = 0
                    await asyncio.sleep(seconds_until_due(lease.beat_seconds, time.monotonic()))
        except LeaseLost:
            _log.warning("lease lost", lease=lease.id, ttl_seconds=lease.ttl_seconds)
            lease.lost.set()
            return
        except (TryFailed, GanglineError) as failure:
            num_failures += 1
            _log.warning("lease beat failed", lease=lease.id, is_fresh=lease.is_fresh, reason=str(failure))
        await asyncio.sleep(pause_seconds(num_failures))


async def _beat_once(session: EtcdSession, lease: Lease, stream: Stream) -> None:
    sent_at = time.monotonic()
    answer = await stream.ask(messages.LeaseKeepAliveRequest(ID=lease.id), session.settings.try_seconds)
    if answer.TTL <= 0:
        raise LeaseLost
    lease.beaten(sent_at)
