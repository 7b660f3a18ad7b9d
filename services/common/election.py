"""The election of the leading scheduler, and the only way for it to write.

Owns the leader key. One transaction creates it under the winner's lease; its create revision is the fencing token
(epoch) that every write compares, so a leader that was paused past its lease cannot change anything. Also owns a
fail-over that is faster than the lease: a standby deposes a leader whose process has died (`leader_probe.py`). The
contents of the writes are the scheduler's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog

from gangline.domain.resource import EtcdHealth, ServiceInstance
from gangline.errors import GanglineError, unavailable
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import (
    Committed,
    Delete,
    EtcdClient,
    Guard,
    KeyValue,
    Lease,
    Listing,
    Put,
    Unsure,
)
from services.common.leader_probe import leader_died

_log = structlog.get_logger(__name__)

# A host that falls silent is replaced after this time; a process that dies, at once (see leader_probe.py).
LEASE_SECONDS = 5.0
# Heartbeats of the lease: several may be missed before it ends.
BEAT_SECONDS = 1.0
# Pause of a campaign after an error of etcd.
_RETRY_SECONDS = 0.5
# A resignation takes no longer, because it runs while the scheduler stops.
_RESIGN_SECONDS = 2.0


class Deposed(Exception):
    """Reports that this leader's term is over. The caller stops; etcd accepts none of this leader's further writes."""


class Refused(Exception):
    """Reports that a guard of the caller did not hold, and that nothing was written. found: the current values of the
    guards' keys."""

    def __init__(self, found: tuple[KeyValue, ...]) -> None:
        super().__init__("a guard did not hold: " + ", ".join(f"{item.key}@{item.create_revision}" for item in found))
        self.found = found


class Leadership:
    """Represents one term of one leader. epoch: its fencing token, larger than those of all earlier terms.

    lost: set once, when this leader finds out that it no longer leads, by its lease, the key, or a refused write.
    is_unsettled: it is open whether the last commit that failed was written.
    """

    def __init__(self, client: EtcdClient, leader: Put, epoch: int, lease: Lease, stack: contextlib.AsyncExitStack):
        self.epoch = epoch
        self.lost = asyncio.Event()
        self._client = client
        self._leader = leader
        self._lease = lease
        self._stack = stack
        self._fence_revision = epoch
        # Whether a write whose answer was lost may still be applied: only `_settle` rules that out.
        self.is_unsettled = False
        self._examining: asyncio.Task[EtcdHealth] | None = None
        self._watching = asyncio.create_task(self._watch(), name="leadership")

    @property
    def is_fresh(self) -> bool:
        """Returns whether a heartbeat of the lease was answered within its TTL. While it was not, the leader starts
        nothing new."""
        return not self.lost.is_set() and self._lease.is_fresh

    @property
    def silent_seconds(self) -> float:
        """Returns for how long etcd has answered no heartbeat of the lease."""
        return self._lease.silent_seconds

    async def is_heard(self, seconds: float) -> bool:
        """Returns whether etcd answers: it has not missed two heartbeats in a row, or it answers one within so many
        seconds."""
        give_up_at = time.monotonic() + seconds
        while self._lease.silent_seconds > 2 * self._lease.beat_seconds:
            self._lease.beaten_again.clear()
            try:
                async with asyncio.timeout(give_up_at - time.monotonic()):
                    await self._lease.beaten_again.wait()
            except TimeoutError:
                return False
        return True

    async def explain_silence(self) -> str:
        """Returns in one sentence why etcd takes no write; empty when it answers. Takes 1.5 s at most. Concurrent
        callers share one examination."""
        if self._examining is None or self._examining.done():
            self._examining = asyncio.create_task(self._client.examine(), name="etcd examination")
        return (await asyncio.shield(self._examining)).problem

    async def commit(self, operations: Sequence[Put | Delete], guards: Sequence[Guard] = ()) -> int:
        """Writes all operations in one transaction, if this leader still leads, and returns the revision.

        Raises Deposed; Refused when one of `guards` did not hold; or GanglineError `etcd.unreachable`. In the last case
        it is open whether the write was applied, and the next commit settles that first. Concurrent calls must not
        touch the same key.
        """
        deadline = time.monotonic() + self._client.settings.deadline_seconds
        try_seconds = self._client.settings.try_seconds
        while not self.lost.is_set():
            if self.is_unsettled:
                # An earlier commit could not settle. Its try may be applied at any time, over what this one writes.
                revision = await self._settle(operations)
                if revision is not None:
                    return revision
            fence = Guard(self._leader.key, self.epoch, self._fence_revision)
            try:
                result = await self._client.commit_once(operations, (fence, *guards), try_seconds)
            except Unsure as failure:
                self.is_unsettled = True
                revision = await self._settle(operations)
                if revision is not None:
                    return revision
                if time.monotonic() > deadline:
                    raise unavailable("etcd.unreachable", f"etcd takes no write: {failure}") from failure
                try_seconds *= 2
                continue
            if result.is_committed:
                return result.revision
            self._read_refusal(result, fence)
        raise self._deposed()

    async def _settle(self, operations: Sequence[Put | Delete]) -> int | None:
        """Returns the revision of a write whose answer was lost; None when it was not applied and never will be.

        A try that hangs in a stopped member may still be applied minutes later, over newer values. Writing the leader
        key anew moves its mod revision, which that try compares: from then on etcd refuses it. Only then does this
        method read the store.
        """
        result = await self._client.commit([self._leader], [Guard(self._leader.key, self.epoch)])
        if not result.is_committed:
            raise self._deposed()
        self._fence_revision = max(self._fence_revision, result.revision)
        self.is_unsettled = False
        return await self._client.find_applied(operations)

    def _read_refusal(self, result: Committed, fence: Guard) -> None:
        """Returns normally when only the fence revision was old, so that the caller retries with the one found. Raises
        Deposed or Refused otherwise."""
        leader = next((item for item in result.found if item.key == self._leader.key), None)
        if leader is None or leader.create_revision != self.epoch:
            raise self._deposed()
        if leader.mod_revision == fence.mod_revision:
            raise Refused(tuple(item for item in result.found if item.key != self._leader.key))
        self._fence_revision = max(self._fence_revision, leader.mod_revision)

    def _deposed(self) -> Deposed:
        self._lose("a write was refused")
        return Deposed(f"leadership {self.epoch} is over: the leader key is another's or gone")

    async def close(self) -> None:
        """Ends the term: deletes the key, if it is still this leader's, and the lease. May be called twice."""
        self._lose("closed")
        self._watching.cancel()
        await asyncio.wait({self._watching})
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._client.commit([Delete(self._leader.key)], [Guard(self._leader.key, self.epoch)])
        except (GanglineError, TimeoutError) as error:
            _log.warning("leader key left to its lease", epoch=self.epoch, reason=str(error))
        await self._stack.aclose()

    async def _watch(self) -> None:
        lease_lost = asyncio.create_task(self._lease.lost.wait())
        key_gone = asyncio.create_task(wait_until_gone(self._client, self.epoch))
        try:
            await asyncio.wait({lease_lost, key_gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lease_lost.cancel()
            key_gone.cancel()
        self._lose("the lease ended" if self._lease.lost.is_set() else "the leader key is gone")

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self.lost.set()
            _log.info("leadership over", epoch=self.epoch, reason=reason)


class Election:
    """Takes part in the election as one candidate. instance: this candidate; standbys watch its grpc_address, and other
    services connect to it.

    is_connected: set while this candidate stands by and is connected to the leader, so that it notices at once when the
    leader's process dies.
    """

    def __init__(self, client: EtcdClient, instance: ServiceInstance, lease_seconds: float = LEASE_SECONDS) -> None:
        self.is_connected = asyncio.Event()
        self._client = client
        self._instance = instance
        self._lease_seconds = lease_seconds

    async def campaign(self) -> Leadership:
        """Waits until this candidate leads; outages of etcd only make it wait longer. Cancelling it withdraws the
        candidate."""
        while True:
            try:
                leader = await self._client.get(keys.LEADER)
                if leader is None:
                    leadership = await self._try_to_win()
                    if leadership is not None:
                        return leadership
                else:
                    await self._stand_by(leader)
            except GanglineError as error:
                _log.warning("campaign waits", reason=error.message)
                await asyncio.sleep(_RETRY_SECONDS)

    async def resign(self, leadership: Leadership) -> None:
        """Ends the term at once, so that a standby need not wait for the lease. May also be called after the term was
        lost."""
        await leadership.close()

    async def find_leader(self) -> ServiceInstance | None:
        return await find_leader(self._client)

    async def _try_to_win(self) -> Leadership | None:
        async with contextlib.AsyncExitStack() as stack:
            beat_seconds = min(BEAT_SECONDS, self._lease_seconds / 3)
            lease = await stack.enter_async_context(self._client.keep_lease(self._lease_seconds, beat_seconds))
            put = Put(keys.LEADER, wire.encode(self._instance), lease.id)
            # Only one candidate finds the key absent; its create revision becomes the epoch.
            result = await self._client.commit([put], [Guard(keys.LEADER, 0)])
            if not result.is_committed:
                return None
            _log.info("elected", id=self._instance.id, epoch=result.revision)
            return Leadership(self._client, put, result.revision, lease, stack.pop_all())

    async def _stand_by(self, leader: KeyValue) -> None:
        """Returns when the leader key is gone; deletes it when the leader's process has died."""
        instance = wire.decode(ServiceInstance, leader.value)
        if self._has_replaced(instance):
            await self._depose(leader, instance)
            return
        _log.info("standing by", leader=instance.id, address=instance.grpc_address, epoch=leader.create_revision)
        gone = asyncio.create_task(wait_until_gone(self._client, leader.create_revision))
        died = asyncio.create_task(leader_died(instance.grpc_address, self.is_connected.set))
        try:
            await asyncio.wait({gone, died}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                await gone
                return
            await self._depose(leader, instance)
        finally:
            self.is_connected.clear()
            gone.cancel()
            died.cancel()
            await asyncio.wait({gone, died})

    def _has_replaced(self, leader: ServiceInstance) -> bool:
        """Returns whether the leader was an earlier process of this candidate: under its id, or at its address, on
        which this candidate listens now.

        Only the younger process may conclude this. Otherwise two schedulers that share an id or an address by mistake
        would depose each other for ever.
        """
        own = self._instance
        is_own = leader.id == own.id or leader.grpc_address == own.grpc_address
        return is_own and leader.started_at < own.started_at

    async def _depose(self, leader: KeyValue, instance: ServiceInstance) -> None:
        """Deletes the key of a leader whose process has died. If that process is alive after all, the guard of its next
        write fails: two leaders never both write."""
        _log.warning("leader's process is gone, not waiting for its lease", leader=instance.id)
        await self._client.commit([Delete(keys.LEADER)], [Guard(keys.LEADER, leader.create_revision)])


async def find_leader(client: EtcdClient) -> ServiceInstance | None:
    """Returns the current leader; None while there is none."""
    leader = await client.get(keys.LEADER)
    return wire.decode(ServiceInstance, leader.value) if leader else None


async def wait_until_gone(client: EtcdClient, epoch: int) -> None:
    """Returns when the leader key of this epoch no longer exists."""
    async with contextlib.aclosing(client.list_watch(keys.LEADER)) as changes:
        async for change in changes:
            if isinstance(change, Listing):
                if not any(item.key == keys.LEADER and item.create_revision == epoch for item in change.items):
                    return
            elif any(event.key == keys.LEADER and event.value is None for event in change.events):
                return
