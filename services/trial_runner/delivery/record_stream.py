"""Sends the spool to a gateway: one stream to any of its addresses, in batches, until each record is acknowledged.

It opens the stream when there is something to send, not before. Then it sends about once a second, or as fast as the
gateway takes records if more wait than one request holds. After a lost stream it sends everything above the last
acknowledged number again; the gateway stores nothing twice. A gateway that is away costs the training nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import grpc
import structlog

from gangline.protocol.peer_status import PeerStatus
from gangline.protocol.rpc import token_metadata
from gangline.v1 import ingest_pb2, ingest_pb2_grpc
from services.common.concurrency import cancel
from services.common.timer_grid import seconds_until_due
from services.trial_runner.delivery import metrics
from services.trial_runner.delivery.channel_route import ChannelRoute
from services.trial_runner.delivery.spool import Spool

# Cap on records that are sent but not acknowledged: enough to fill any network, few enough to send again.
WINDOW_RECORDS = 5000
# Period of the requests, in which records are gathered. Each request costs the gateway a transaction. If the gateway
# shares a machine with ranks that report every few steps, the ranks would pay for it.
GATHER_SECONDS = 1.0

log = structlog.get_logger(__name__)


class RecordStream:
    """Delivers one spool; `run` is its long-lived task.

    spool_id: "<allocation id>/<node rank>". on_over: called with the reason why the attempt is over, at each answer
    that has one.
    """

    def __init__(
        self,
        spool: Spool,
        has_news: asyncio.Event,
        route: ChannelRoute,
        *,
        spool_id: str,
        trial_id: str,
        on_over: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spool = spool
        self._has_news = has_news
        self._route = route
        self._spool_id = spool_id
        self._trial_id = trial_id
        self._on_over = on_over
        self._is_drained = asyncio.Event()
        self._is_hurried = asyncio.Event()

    async def run(self, find_token: Callable[[], str]) -> None:
        """Delivers until it is cancelled. find_token: returns the token, for each stream anew."""
        is_lost = False
        while True:
            await self._wait_for_records()
            if not self._route.address:
                log.warning("no gateway is registered; records wait on disk")
                await self._route.wait_address()
            try:
                await self._stream(find_token())
            except (grpc.aio.AioRpcError, OSError) as error:
                if not is_lost:
                    reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                    log.warning(
                        "no gateway takes records; they wait on disk", gateway=self._route.name, error=str(reason)
                    )
                is_lost = True
            else:
                # A gateway that shuts down ends the stream without an error.
                is_lost = False
            await self._route.failed()

    async def drain(self, deadline_seconds: float) -> bool:
        """Waits until the gateway has everything. Returns False if the time ran out first. Records are no longer
        gathered from now on."""
        self._is_drained.clear()
        self._is_hurried.set()
        if not self._spool.num_waiting:
            return True
        self._route.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                await self._is_drained.wait()
        return not self._spool.num_waiting

    async def _wait_for_records(self) -> None:
        while not self._spool.num_waiting:
            self._has_news.clear()
            await self._has_news.wait()

    async def _stream(self, token: str) -> None:
        stub = ingest_pb2_grpc.IngestServiceStub(self._route.channel())
        call = stub.Ingest(metadata=token_metadata(token))
        peer_status = PeerStatus(call)
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call))
        try:
            done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # A writer that breaks knows only that the stream is over; the reader knows why. An OSError of the
                # writer is different: its spool cannot be read, which the reader would never notice.
                if task is reader or isinstance(task.exception(), OSError | None):
                    task.result()
            await reader
        except grpc.aio.AioRpcError as failure:
            raise peer_status.of(failure) from None
        finally:
            call.cancel()
            await cancel(reader, writer)

    async def _read(self, call: grpc.aio.StreamStreamCall[ingest_pb2.IngestRequest, ingest_pb2.IngestResponse]) -> None:
        async for response in call:
            self._route.succeeded()
            self._spool.acknowledge(response.stored_sequence)
            if response.over_reason:
                self._on_over(response.over_reason)
            metrics.spool_waiting.set(self._spool.num_waiting)
            self._has_news.set()
            if not self._spool.num_waiting:
                self._is_drained.set()

    async def _write(
        self, call: grpc.aio.StreamStreamCall[ingest_pb2.IngestRequest, ingest_pb2.IngestResponse]
    ) -> None:
        sent = self._spool.acknowledged
        while True:
            sent = max(sent, self._spool.acknowledged)
            self._has_news.clear()
            is_open = sent - self._spool.acknowledged < WINDOW_RECORDS
            records = self._spool.read(sent) if is_open and sent < self._spool.last_sequence else []
            if not records:
                await self._has_news.wait()
                continue
            request = ingest_pb2.IngestRequest(spool_id=self._spool_id, trial_id=self._trial_id, records=records)
            await call.write(request)
            sent = records[-1].sequence
            if sent == self._spool.last_sequence:
                await self._gather()

    async def _gather(self) -> None:
        """Waits before the next request. The first records after a pause are sent at once; those that follow soon are
        sent together."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_until_due(GATHER_SECONDS, time.monotonic())):
                await self._is_hurried.wait()
