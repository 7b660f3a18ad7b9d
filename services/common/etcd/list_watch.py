"""Yields the state of a prefix, and then every change to it, for ever.

Owns the step from a listing to the watch after it, and the new listing when etcd has compacted too much. A reader
replaces all it holds when a Listing arrives and applies the events of a WatchBatch. Used through
`EtcdClient.list_watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import structlog

from gangline.errors import ErrorKind, GanglineError
from services.common.etcd.metrics import RELISTS
from services.common.etcd.record import Compacted, Listing, WatchBatch

_log = structlog.get_logger(__name__)

_RELIST_SECONDS = 1.0


async def list_watch(
    list_prefix: Callable[[], Awaitable[Listing]],
    watch_from: Callable[[int], AsyncGenerator[WatchBatch, None]],
) -> AsyncGenerator[Listing | WatchBatch, None]:
    """Lists and watches. The first listing raises when etcd is away; later outages only make the reader wait."""
    listing = await list_prefix()
    while True:
        yield listing
        try:
            async with contextlib.aclosing(watch_from(listing.revision + 1)) as batches:
                async for batch in batches:
                    yield batch
        except Compacted as compacted:
            RELISTS.inc()
            _log.warning("watch fell behind a compaction, listing again", compacted=compacted.revision)
        listing = await _list_again(list_prefix)


async def _list_again(list_prefix: Callable[[], Awaitable[Listing]]) -> Listing:
    while True:
        try:
            return await list_prefix()
        except GanglineError as error:
            if error.kind is not ErrorKind.UNAVAILABLE:
                raise
            _log.warning("cannot list again yet", reason=error.message)
        await asyncio.sleep(_RELIST_SECONDS)
