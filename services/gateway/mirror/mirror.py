"""Keeps ClusterState equal to etcd by list and watch, and wakes the listeners of a change.

Reads of the gateway are served from here, so they work without a scheduler and while etcd is away (then they are as old
as the last revision seen). It writes nothing. One task of this module lives as long as the gateway.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import structlog

from gangline.errors import Effect, GanglineError, unavailable
from services.common import keys
from services.common.etcd import EtcdClient, Listing, WatchBatch
from services.gateway.mirror import metrics
from services.gateway.mirror.change_log import ChangeLog, Entry
from services.gateway.mirror.cluster_state import ClusterState, entries_of
from services.gateway.mirror.notification import NotificationBoard

# Time after which the start logs again that it waits for the first full listing of etcd.
WAIT_LOG_SECONDS = 10.0
# Keys of the notifications.
LEADER_NOTIFICATION = "leader"
CLEANUP_NOTIFICATION = "cleanup"
DELETION_NOTIFICATION = "deletion"
LOG_NOTIFICATION = "log"
# Time limits for reading etcd's present revision and waiting for it: before a record is reported as not there, and
# before the first answer to a client that comes from another gateway.
CONFIRM_SECONDS = 2.0
CATCH_UP_SECONDS = 1.0
# Pause after a watch that failed.
BACKOFF_SECONDS = 1.0
# For so long the end of an allocation is remembered. An older end is as old as the gateway for its readers.
ENDED_SECONDS = 600.0
LISTED = "listed"
ADVANCED = "advanced"

log = structlog.get_logger(__name__)


class Watched(Protocol):
    """Lists what the readers of the mirror need; tests provide a filled state instead of an etcd."""

    @property
    def state(self) -> ClusterState: ...

    @property
    def changes(self) -> NotificationBoard: ...

    @property
    def log(self) -> ChangeLog: ...

    async def wait_for_revision(self, revision: int, seconds: float) -> bool: ...

    async def confirm(self, key: str) -> None: ...

    def leaderless_seconds(self) -> float: ...

    def ended_for(self, allocation_id: str) -> float: ...


class Mirror:
    """Mirrors etcd. `state` is replaced as a whole after a compaction: read it anew after every await.

    `changes` rings an experiment's id when its view changed, LEADER_BELL when another scheduler leads or none, and
    CLEANUP_NOTIFICATION when files may have become superfluous, DELETION_NOTIFICATION after each change while an
    experiment is being deleted, and LOG_NOTIFICATION when `log` has new entries.
    """

    def __init__(self, client: EtcdClient) -> None:
        self.state = ClusterState()
        self.changes = NotificationBoard()
        self.log = ChangeLog()
        self.is_listed = False
        self._client = client
        self._revisions = NotificationBoard()
        self._leaderless_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        # When this gateway saw the ends of allocations, by their keys, the earliest first; and since when it sees them.
        self._ended_at: OrderedDict[str, float] = OrderedDict()
        self._listed_at = 0.0

    async def start(self) -> None:
        """Returns once the whole state was read; logs why when that takes long."""
        with self._revisions.listen(LISTED) as listed:
            self._task = asyncio.create_task(self._run(), name="mirror")
            while not await listed.wait(WAIT_LOG_SECONDS):
                log.warning("waits for etcd, from which nothing was read yet")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Returns True once everything up to this revision is in `state`; False when it took longer."""
        if self.state.revision >= revision:
            # The usual case: etcd tells the mirror of a write before the leader has answered.
            return True
        with self._revisions.listen(ADVANCED) as advanced:
            try:
                async with asyncio.timeout(seconds):
                    while self.state.revision < revision:
                        await advanced.wait()
                        advanced.clear()
            except TimeoutError:
                return False
        return True

    async def confirm(self, key: str) -> None:
        """Returns once `state` is as new as etcd for this key, which another gateway's answer may have named already.

        Raises GanglineError `gateway.behind` when etcd does not answer, or when the state stays older.
        """
        deadline = asyncio.get_running_loop().time() + CONFIRM_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                item = await self._client.get(key)
        except (TimeoutError, GanglineError) as failure:
            raise _behind("etcd does not answer") from failure
        left = deadline - asyncio.get_running_loop().time()
        if item is not None and not await self.wait_for_revision(item.mod_revision, left):
            raise _behind(f"it has read etcd up to revision {self.state.revision} of {item.mod_revision}")

    async def catch_up(self) -> None:
        """Waits until `state` is as new as etcd. Returns without that when etcd does not answer in time, because reads
        work while etcd is away; and when only keys outside of Gangline's prefix were written."""
        with suppress(TimeoutError, GanglineError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self.wait_for_revision(await self._client.find_revision(), CATCH_UP_SECONDS)

    def leaderless_seconds(self) -> float:
        """Returns for how long there has been no leader; 0 while there is one."""
        if self._leaderless_at is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._leaderless_at

    def ended_for(self, allocation_id: str) -> float:
        """Returns the seconds since this gateway saw the end of the allocation. For one whose end it has not seen, it
        returns the time for which it has mirrored etcd."""
        now = asyncio.get_running_loop().time()
        return now - self._ended_at.get(keys.allocation(allocation_id), self._listed_at)

    def _note_ends(self, ended_keys: Iterable[str]) -> None:
        now = asyncio.get_running_loop().time()
        for key in ended_keys:
            self._ended_at[key] = now
            self._ended_at.move_to_end(key)
        while self._ended_at and now - next(iter(self._ended_at.values())) > ENDED_SECONDS:
            self._ended_at.popitem(last=False)

    async def _run(self) -> None:
        while True:
            try:
                async for news in self._client.list_watch(keys.ROOT):
                    self._take(news)
            except Exception as failure:  # noqa: BLE001  top of a long-lived task: the reads go on with what is known
                metrics.MIRROR_FAILURES.inc()
                log.warning("watching etcd failed, beginning anew", error=str(failure))
            await asyncio.sleep(BACKOFF_SECONDS)

    def _take(self, news: Listing | WatchBatch) -> None:
        if isinstance(news, Listing):
            self._replace(news)
        else:
            self._advance(news)
        if self.state.leader is not None:
            self._leaderless_at = None
        elif self._leaderless_at is None:
            self._leaderless_at = asyncio.get_running_loop().time()
        metrics.MIRROR_REVISION.set(self.state.revision)
        self._revisions.ring((ADVANCED,))

    def _replace(self, listing: Listing) -> None:
        state = ClusterState()
        for item in listing.items:
            state.apply(item.key, item.value)
        state.revision = listing.revision
        if self.is_listed:
            before = (keys.allocation(allocation.id) for allocation in self.state.allocations.all())
            self._note_ends([key for key in before if state.allocations.find(key) is None])
        else:
            self._listed_at = asyncio.get_running_loop().time()
        self.log.begin(listing.revision, self.state.revision)
        self.state = state
        self.is_listed = True
        self._warn_unreadable(state.num_unreadable)
        self._revisions.ring((LISTED,))
        self.changes.ring_all()

    def _advance(self, batch: WatchBatch) -> None:
        unreadable_before = self.state.num_unreadable
        touched: set[int] = set()
        entries: set[Entry] = set()
        for event in batch.events:
            before = self.state.find(event.key)
            touched |= self.state.apply(event.key, event.value)
            entries |= entries_of((before, self.state.find(event.key)))
        self._note_ends(
            event.key for event in batch.events if event.value is None and event.key.startswith(keys.ALLOCATIONS)
        )
        self.state.revision = max(self.state.revision, batch.revision)
        self._warn_unreadable(self.state.num_unreadable - unreadable_before)
        self.changes.ring(touched)
        if entries:
            self.log.note(entries, self.state.revision)
            self.changes.ring((LOG_NOTIFICATION,))
        if any(event.key.startswith((keys.ROLES, keys.GROUPS)) for event in batch.events):
            # Streams of users who see less from now on end at once.
            self.changes.ring_all()
        if any(event.key == keys.LEADER for event in batch.events):
            self.changes.ring((LEADER_NOTIFICATION,))
        if any(_may_leave_files(event.key, event.value) for event in batch.events):
            self.changes.ring((CLEANUP_NOTIFICATION,))
        if self.state.deleting:
            self.changes.ring((DELETION_NOTIFICATION,))

    def _warn_unreadable(self, count: int) -> None:
        if count:
            log.warning("values in etcd that this version cannot read are left out", num_values=count)


def _behind(why: str) -> GanglineError:
    return unavailable(
        "gateway.behind",
        f"this gateway cannot be sure what there is now: {why}; ask again, or another gateway",
        Effect.NONE,
    )


def _may_leave_files(key: str, value: bytes | None) -> bool:
    return key.startswith(keys.CHECKPOINTS) or (value is None and key.startswith(keys.ALLOCATIONS))
