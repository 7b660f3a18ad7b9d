"""Which scheduler leads, and the only way for it to write.

Owns the leader key: one transaction creates it under the winner's lease, and its create revision is the fencing token
(epoch) that every write compares, so a leader that was paused past its lease cannot change anything. Owns fail-over
that is faster than the lease as well: a standby deposes a leader whose process has died (`tether.py`). What is written
is the scheduler's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog

from gangline import wire
from gangline.domain.resource import ServiceInstance
from gangline.errors import GanglineError, unavailable
from services.common import keys
from services.common.etcd import (
    Committed,
    Delete,
    EtcdClient,
    EtcdHealth,
    Guard,
    KeyValue,
    Lease,
    Listing,
    Put,
    Unsure,
)
from services.common.tether import leader_died

_log = structlog.get_logger(__name__)

LEASE_SECONDS = 5.0
BEAT_SECONDS = 1.0
_RETRY_SECONDS = 0.5
_RESIGN_SECONDS = 2.0


class Deposed(Exception):
    """Somebody else leads, or nobody does. Stop; nothing that this leader still writes is accepted."""


class Refused(Exception):
    """A guard of the caller did not hold, and nothing was written. found: the guards' keys as they are."""

    def __init__(self, found: tuple[KeyValue, ...]) -> None:
        super().__init__("a guard did not hold: " + ", ".join(f"{item.key}@{item.create_revision}" for item in found))
        self.found = found


class Leadership:
    """One term of one leader. epoch: its fencing token, larger than those of all earlier terms.

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
        """Whether a beat of the lease was answered within its TTL. While it was not: start nothing new."""
        return not self.lost.is_set() and self._lease.is_fresh

    @property
    def silent_seconds(self) -> float:
        """For how long etcd has answered no beat of the lease."""
        return self._lease.silent_seconds

    async def is_heard(self, seconds: float) -> bool:
        """Whether etcd answers: it missed no two beats in a row, or it answers one within so many seconds."""
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
        """In one sentence why etcd takes no write; empty when it answers. Takes 1.5 s at most. Callers that come
        meanwhile share one examination."""
        if self._examining is None or self._examining.done():
            self._examining = asyncio.create_task(self._client.examine(), name="etcd examination")
        return (await asyncio.shield(self._examining)).problem

    async def commit(self, operations: Sequence[Put | Delete], guards: Sequence[Guard] = ()) -> int:
        """Writes all of it in one transaction, if this leader still leads, and returns the revision.

        Raises Deposed, Refused when one of `guards` did not hold, or GanglineError `etcd.unreachable`: then it is open
        whether it was written, and the next commit settles that first. Concurrent calls must not touch the same key.
        """
        deadline = time.monotonic() + self._client.settings.deadline_seconds
        try_seconds = self._client.settings.try_seconds
        while not self.lost.is_set():
            if self.is_unsettled:
                # An earlier commit could not settle. Its try may be applied any time, over what this one writes.
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
        """The revision of a write whose answer was lost, None when it was not applied and never will be.

        A try that hangs in a stopped member may still be applied minutes later, over newer values. Writing the leader
        key anew moves its mod revision, which that try compares: from then on it is refused. Only then is looked.
        """
        result = await self._client.commit([self._leader], [Guard(self._leader.key, self.epoch)])
        if not result.is_committed:
            raise self._deposed()
        self._fence_revision = max(self._fence_revision, result.revision)
        self.is_unsettled = False
        return await self._client.find_applied(operations)

    def _read_refusal(self, result: Committed, fence: Guard) -> None:
        """Returns when only the fence revision was old, and the same may be tried again with the one found."""
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
        """Ends the term: deletes the key, if it is still ours, and the lease. May be called twice."""
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
    """instance: who this candidate is; its grpc_address is what standbys watch and others connect to.

    is_connected: set while this candidate stands by and is connected to the leader, so that it notices at once when
    the leader's process dies.
    """

    def __init__(self, client: EtcdClient, instance: ServiceInstance, lease_seconds: float = LEASE_SECONDS) -> None:
        self.is_connected = asyncio.Event()
        self._client = client
        self._instance = instance
        self._lease_seconds = lease_seconds

    async def campaign(self) -> Leadership:
        """Waits until this candidate leads; outages of etcd only make it wait longer. Cancel it to withdraw."""
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
        """Ends the term at once, so that a standby need not wait for the lease. Also after it was lost."""
        await leadership.close()

    async def find_leader(self) -> ServiceInstance | None:
        return await find_leader(self._client)

    async def _try_to_win(self) -> Leadership | None:
        async with contextlib.AsyncExitStack() as stack:
            beat_seconds = min(BEAT_SECONDS, self._lease_seconds / 3)
            lease = await stack.enter_async_context(self._client.keep_lease(self._lease_seconds, beat_seconds))
            put = Put(keys.LEADER, wire.encode(self._instance), lease.id)
            result = await self._client.commit([put], [Guard(keys.LEADER, 0)])
            if not result.is_committed:
                return None
            _log.info("elected", id=self._instance.id, epoch=result.revision)
            return Leadership(self._client, put, result.revision, lease, stack.pop_all())

    async def _stand_by(self, leader: KeyValue) -> None:
        """Returns when the leader key is gone, deleting it when the leader's process has died."""
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
        """Whether the leader was an earlier process of this candidate: under its id, or at its address, on which this
        candidate listens now.

        Only the younger process may conclude this: two schedulers that have one id or one address by mistake would
        otherwise depose each other for ever.
        """
        own = self._instance
        is_own = leader.id == own.id or leader.grpc_address == own.grpc_address
        return is_own and leader.started_at < own.started_at

    async def _depose(self, leader: KeyValue, instance: ServiceInstance) -> None:
        """Deletes the key of a leader whose process has died. Should that process live after all, the guard of its
        next write tells it: two leaders never both write."""
        _log.warning("leader's process is gone, not waiting for its lease", leader=instance.id)
        await self._client.commit([Delete(keys.LEADER)], [Guard(keys.LEADER, leader.create_revision)])


async def find_leader(client: EtcdClient) -> ServiceInstance | None:
    """Who leads now; None while nobody does."""
    found = await client.get(keys.LEADER)
    return wire.decode(ServiceInstance, found.value) if found else None


async def wait_until_gone(client: EtcdClient, epoch: int) -> None:
    """Returns when the leader key of this epoch no longer exists."""
    async with contextlib.aclosing(client.list_watch(keys.LEADER)) as changes:
        async for change in changes:
            if isinstance(change, Listing):
                if not any(item.key == keys.LEADER and item.create_revision == epoch for item in change.items):
                    return
            elif any(event.key == keys.LEADER and event.value is None for event in change.events):
                return
