"""A watch that survives its stream.

Owns resuming: after a lost stream, a moved endpoint or an expired token it continues at the revision after the last
delivered one, so no event is lost or delivered twice. The changes of one revision arrive in one batch, even if etcd
split them. Only a compaction ends the watch. Used through `EtcdClient.watch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from itertools import groupby
from typing import Any

import structlog

from gangline.errors import GanglineError
from services.common.etcd.failure import Remedy, TryFailed, read_cancel_reason
from services.common.etcd.metrics import WATCH_RESTARTS
from services.common.etcd.record import Compacted, Event, WatchBatch
from services.common.etcd.session import EtcdSession, pause_seconds
from services.common.etcd.stream import Stream
from services.common.etcd.stub import DELETED, Operation, messages
from services.common.etcd.transaction import prefix_end

_log = structlog.get_logger(__name__)

# After this silence the watch asks etcd for a progress notification.
PROGRESS_SECONDS = 30.0


class EtcdWatch:
    """Represents one watch. next_revision: the first revision that its reader has not seen."""

    def __init__(self, session: EtcdSession, prefix: str, from_revision: int, can_ask_progress: bool) -> None:
        self.next_revision = from_revision
        self._session = session
        self._prefix = prefix
        self._progress_seconds = PROGRESS_SECONDS if can_ask_progress else None
        self._fragments: list[Any] = []
        self._has_renewed_token = False

    async def batches(self) -> AsyncGenerator[WatchBatch, None]:
        """Yields batches. Raises Compacted; never ends by itself."""
        num_failures = 0
        while True:
            try:
                async with await self._session.open(Operation.WATCH) as stream:
                    await stream.write(self._create_request(), self._session.settings.try_seconds)
                    # A new stream sends the interrupted revision from its beginning.
                    self._fragments.clear()
                    async for message in self._messages(stream):
                        num_failures = 0
                        for batch in self._take(message):
                            self.next_revision = batch.revision + 1
                            yield batch
            except TryFailed as failure:
                num_failures += 1
                WATCH_RESTARTS.inc()
                self._report(num_failures, failure)
            await asyncio.sleep(pause_seconds(num_failures))

    async def _messages(self, stream: Stream) -> AsyncIterator[Any]:
        while True:
            message = await stream.read(self._progress_seconds)
            if message is None:
                request = messages.WatchRequest(progress_request=messages.WatchProgressRequest())
                await stream.write(request, self._session.settings.try_seconds)
                continue
            if message.canceled:
                raise self._read_cancel(message, stream)
            self._has_renewed_token = False
            yield message

    def _read_cancel(self, message: Any, stream: Stream) -> Exception:
        if message.compact_revision:
            return Compacted(message.compact_revision)
        failure = read_cancel_reason(message.cancel_reason, stream.endpoint)
        if isinstance(failure, GanglineError) and not self._has_renewed_token:
            # etcd 3.5.1 reports an expired token as a lack of permission; a fresh token shows which of the two it is.
            self._has_renewed_token = True
            failure = TryFailed(Remedy.LOGIN, failure.message)
        return stream.refuse(failure)

    def _take(self, message: Any) -> Iterator[WatchBatch]:
        if message.created:
            return
        self._fragments.extend(message.events)
        if message.fragment:
            return
        events, self._fragments = self._fragments, []
        yield from _batches(events)
        if not events:
            # Progress: everything up to this revision has been delivered. A reader that idles for longer than etcd
            # keeps its history would otherwise resume before the compaction.
            self.next_revision = max(self.next_revision, message.header.revision + 1)

    def _create_request(self) -> Any:
        create = messages.WatchCreateRequest(
            key=self._prefix.encode(),
            range_end=prefix_end(self._prefix),
            start_revision=self.next_revision,
            progress_notify=True,
            fragment=True,
        )
        return messages.WatchRequest(create_request=create)

    def _report(self, num_failures: int, failure: TryFailed) -> None:
        """Logs the first failure and then every power of two, so that an outage of an hour does not flood the log."""
        if num_failures & (num_failures - 1) == 0:
            _log.warning(
                "watch lost, resuming",
                prefix=self._prefix,
                next_revision=self.next_revision,
                num_failures=num_failures,
                reason=failure.reason,
            )


def _batches(events: Iterable[Any]) -> Iterator[WatchBatch]:
    for revision, group in groupby(events, key=lambda event: int(event.kv.mod_revision)):
        yield WatchBatch(revision, tuple(_event(event) for event in group))


def _event(event: Any) -> Event:
    value = None if event.type == DELETED else event.kv.value
    return Event(event.kv.key.decode(), value, event.kv.mod_revision, event.kv.create_revision)
