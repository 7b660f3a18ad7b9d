"""IngestService: the calls of trial runners, and the reading of the records that they deliver."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from typing import Any

from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.id import experiment_id_of
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import ingest_pb2 as pb
from gangline.v1.ingest_pb2_grpc import IngestServiceServicer
from services.common.server import current_principal
from services.gateway.mirror.ingest_record import IngestRecord
from services.gateway.usecase.bundle import RunnerCases, UseCases

Context = Any


class IngestService(IngestServiceServicer):
    def __init__(self, usecases: UseCases) -> None:
        self._usecases = usecases

    def _cases(self) -> RunnerCases:
        """Returns the use cases of this call. Raises GanglineError `auth.forbidden`."""
        return self._usecases.of_runner(current_principal())

    async def Ingest(
        self, request_iterator: AsyncIterator[pb.IngestRequest], context: Context
    ) -> AsyncIterator[pb.IngestResponse]:
        """Answers each request after its commit. Requests that arrive meanwhile wait in the connection."""
        ingest = self._cases().ingest
        connected_ids: set[int] = set()
        with ExitStack() as connections:
            async for request in request_iterator:
                experiment_id = experiment_id_of(request.trial_id)
                if experiment_id not in connected_ids:
                    connections.enter_context(ingest.connected(experiment_id))
                    connected_ids.add(experiment_id)
                stored = await ingest.store(request.spool_id, request.trial_id, records_from_proto(request.records))
                yield pb.IngestResponse(
                    spool_id=request.spool_id,
                    stored_sequence=stored,
                    over_reason=ingest.why_over(request.spool_id),
                )
                if ingest.is_closed(request.spool_id):
                    return

    async def FetchCode(self, request: pb.FetchCodeRequest, context: Context) -> AsyncIterator[pb.FetchCodeResponse]:
        async for chunk in self._cases().code.fetch(request.code_sha256):
            yield pb.FetchCodeResponse(chunk=chunk)

    async def OfferTunnels(
        self, request: pb.OfferTunnelsRequest, context: Context
    ) -> AsyncIterator[pb.OfferTunnelsResponse]:
        offering = self._cases().tunnels.offer(request.allocation_id, request.user)
        async for key, order in offering:
            yield pb.OfferTunnelsResponse(authorized_key=key, tunnel_id=order)

    async def Tunnel(
        self, request_iterator: AsyncIterator[pb.TunnelRequest], context: Context
    ) -> AsyncIterator[pb.TunnelResponse]:
        tunnels = self._cases().tunnels
        first = await anext(aiter(request_iterator))
        tunnel = tunnels.take(first.tunnel_id)
        tunnel.attach((request.data async for request in request_iterator), first.problem)
        try:
            async for data in tunnel.outgoing():
                yield pb.TunnelResponse(data=data)
        finally:
            tunnel.close()


def records_from_proto(messages: Iterable[pb.IngestRecord]) -> tuple[IngestRecord, ...]:
    """Reads records. Raises GanglineError `ingest.empty_record` for a record of a kind that this version does not
    know."""
    return tuple(IngestRecord(message.sequence, message.at, _content_from_proto(message)) for message in messages)


def _content_from_proto(message: pb.IngestRecord) -> LogLine | MetricsPoint | ProgressPoint:
    match message.WhichOneof("record"):
        case "log":
            return wire.from_proto(LogLine, message.log)
        case "metrics":
            return wire.from_proto(MetricsPoint, message.metrics)
        case "progress":
            return wire.from_proto(ProgressPoint, message.progress)
    raise invalid("ingest.empty_record", f"record {message.sequence} holds no log, metrics or progress")
