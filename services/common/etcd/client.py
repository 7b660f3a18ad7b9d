"""The one client of etcd.

Owns the calls that services make: get, list, commit, watch, leases, and the check of etcd's version when it connects.
The modules beside it own rotation, retries, tokens and streams. It knows no key and no schema, which are in
`services.common.keys`. Open it with `async with EtcdClient(settings) as client`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any

import structlog

from gangline.domain.etcd_version import (
    Version,
    answers_progress_requests,
    is_safe,
    may_lose_entries,
    parse_version,
)
from gangline.domain.resource import EtcdHealth
from gangline.errors import GanglineError, unavailable
from services.common.concurrency import until_available
from services.common.etcd.failure import TryFailed
from services.common.etcd.health import PROBE_KEY, examine
from services.common.etcd.lease import Lease, keep_lease
from services.common.etcd.list_watch import list_watch
from services.common.etcd.record import (
    Committed,
    Compacted,
    Delete,
    Guard,
    KeyValue,
    Listing,
    Put,
    Status,
    Unsure,
    WatchBatch,
)
from services.common.etcd.session import EtcdSession
from services.common.etcd.settings import EtcdSettings
from services.common.etcd.stub import Operation, messages
from services.common.etcd.transaction import (
    applied_revision,
    evidence_request,
    key_value,
    prefix_end,
    transaction_answer,
    transaction_request,
)
from services.common.etcd.watch import EtcdWatch

_log = structlog.get_logger(__name__)

# Each page makes etcd count the rest of the range, so small pages double its work; 5000 values under 1 KB are 5 MB.
PAGE_KEYS = 5000


class EtcdClient:
    """Talks to etcd. Every method raises GanglineError `etcd.unreachable` when no endpoint answers within the
    deadline."""

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self._session = EtcdSession(settings)
        self._version: Version = (0, 0, 0)

    async def __aenter__(self) -> EtcdClient:
        try:
            await self._check_version()
        except BaseException:
            await self._session.rotation.close()
            raise
        return self

    @staticmethod
    async def connect_patiently(settings: EtcdSettings) -> EtcdClient:
        """Returns an entered client as soon as etcd answers, however long that takes. The caller exits it."""
        return await until_available(lambda: EtcdClient(settings).__aenter__(), "etcd")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.rotation.close()

    async def get(self, key: str) -> KeyValue | None:
        """Reads a key. The read is linearizable: it sees every write that was acknowledged before."""
        answer = await self._session.call(Operation.RANGE, messages.RangeRequest(key=key.encode()))
        return next((key_value(item) for item in answer.message.kvs), None)

    async def find_revision(self) -> int:
        """Returns etcd's present revision, by a linearizable read."""
        request = messages.RangeRequest(key=PROBE_KEY, keys_only=True)
        return int((await self._session.call(Operation.RANGE, request)).message.header.revision)

    async def list(self, prefix: str) -> Listing:
        """Lists everything under the prefix, sorted by key, in pages that all show one revision."""
        while True:
            try:
                return await self._list(prefix)
            except Compacted:
                _log.info("compacted while listing, starting over", prefix=prefix)

    async def commit(self, operations: Sequence[Put | Delete], guards: Sequence[Guard] = ()) -> Committed:
        """Applies all operations in one transaction, if every guard holds.

        When the answer to a try was lost, the next try may be refused because of the first one's own effect. Then the
        client reads the store: if it holds the wanted values, from one revision, the first try was applied.
        """
        answer = await self._session.call(Operation.TXN, transaction_request(operations, guards))
        result = transaction_answer(answer.message)
        if result.is_committed or not answer.is_retried:
            return result
        revision = await self.find_applied(operations)
        return result if revision is None else Committed(is_committed=True, revision=revision)

    async def commit_once(
        self, operations: Sequence[Put | Delete], guards: Sequence[Guard], try_seconds: float | None = None
    ) -> Committed:
        """Commits with a single try. Raises Unsure when it is open whether etcd applied the transaction."""
        request = transaction_request(operations, guards)
        try:
            message = await self._session.call_once(Operation.TXN, request, try_seconds or self.settings.try_seconds)
        except TryFailed as failure:
            raise Unsure(failure.reason) from failure
        return transaction_answer(message)

    async def find_applied(self, operations: Sequence[Put | Delete]) -> int | None:
        """Returns the revision that applied exactly these operations; None when the store does not show one."""
        answer = await self._session.call(Operation.TXN, evidence_request(operations))
        return applied_revision(operations, answer.message)

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yields every change from that revision on, one batch for each revision. Resumes by itself after a lost
        stream. Raises Compacted."""
        watch = EtcdWatch(self._session, prefix, from_revision, answers_progress_requests(self._version))
        return watch.batches()

    def list_watch(self, prefix: str) -> AsyncGenerator[Listing | WatchBatch, None]:
        """Yields a Listing, then a WatchBatch for every change. After a compaction it yields a new Listing, which
        replaces everything."""
        return list_watch(lambda: self.list(prefix), lambda revision: self.watch(prefix, revision))

    def keep_lease(
        self, ttl_seconds: float, beat_seconds: float | None = None
    ) -> contextlib.AbstractAsyncContextManager[Lease]:
        """Keeps a lease with a heartbeat every third of its TTL, or as given, and revokes it at the end of the
        context."""
        return keep_lease(self._session, ttl_seconds, beat_seconds)

    async def compact(self, revision: int) -> None:
        """Makes etcd drop the history before this revision."""
        await self._session.call(Operation.COMPACT, messages.CompactionRequest(revision=revision, physical=True))

    async def read_status(self) -> Status:
        """Returns the status of the member in use."""
        answer = (await self._session.call(Operation.STATUS, messages.StatusRequest())).message
        is_leader = answer.leader == answer.header.member_id
        return Status(answer.version, is_leader)

    async def examine(self) -> EtcdHealth:
        """Returns whether etcd can be written to, and why not, within 1.5 s."""
        return await examine(self._session)

    async def _list(self, prefix: str) -> Listing:
        items: list[KeyValue] = []
        end = prefix_end(prefix)
        start, revision = prefix.encode(), 0
        while True:
            request = messages.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS, revision=revision)
            page: Any = (await self._session.call(Operation.RANGE, request)).message
            items.extend(key_value(item) for item in page.kvs)
            revision = revision or page.header.revision
            if not page.more:
                return Listing(tuple(items), revision)
            start = page.kvs[-1].key + b"\0"

    async def _check_version(self) -> None:
        status = await self.read_status()
        self._version = parse_version(status.version)
        if is_safe(self._version):
            return
        num_members = await self._count_members()
        if may_lose_entries(self._version) and num_members > 1 and not self.settings.allow_unsafe_version:
            raise unavailable(
                "etcd.unsafe_version",
                f"etcd {status.version} with {num_members} members can lose acknowledged writes; "
                "use 3.4.22, 3.5.6 or newer",
            )
        _log.warning("etcd older than is safe for a cluster", version=status.version, num_members=num_members)

    async def _count_members(self) -> int:
        """Returns the number of members. A user without the right to ask gets the number of configured endpoints."""
        try:
            answer = await self._session.call(Operation.MEMBERS, messages.MemberListRequest())
        except GanglineError as error:
            if error.code != "etcd.permission_denied":
                raise
            return len(self.settings.endpoints)
        return len(answer.message.members)
