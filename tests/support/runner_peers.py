"""In-test servers for what a trial runner speaks to: the leading scheduler's RunnerService and a gateway's
IngestService. They behave as the real ones must towards a runner, and remember all they were told."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from gangline.domain.state import ExitKind
from gangline.errors import not_found
from gangline.protocol.rpc import SERVER_OPTIONS, find_token, status_of
from gangline.protocol.wire import enum_number
from gangline.v1 import ingest_pb2, ingest_pb2_grpc, runner_pb2, runner_pb2_grpc
from services.common.leader_probe import not_leader


class _Server:
    """A grpc server that can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1") -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._add(self._server)
        self.port = self._server.add_insecure_port(f"{host}:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def _add(self, server: grpc.aio.Server) -> None:
        raise AssertionError("a subclass adds its service")


class GatewayPeer(_Server, ingest_pb2_grpc.IngestServiceServicer):
    """records: by spool id, each sequence number once. num_resent: records that came more than once. num_requests:
    batches of records. num_fetches: of code. held_code: set while downloads stop after their first chunk. over_reason:
    told with each answer."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token
        self.archives: dict[str, bytes] = {}
        self.records: dict[str, dict[int, ingest_pb2.IngestRecord]] = {}
        self.num_resent = 0
        self.num_streams = 0
        self.num_requests = 0
        self.num_fetches = 0
        self.held_code: asyncio.Event | None = None
        self.over_reason = ""
        self.changed = asyncio.Event()

    def _add(self, server: grpc.aio.Server) -> None:
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(self, server)

    async def Ingest(  # noqa: N802 - the method's name in the proto
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[ingest_pb2.IngestResponse]:
        assert find_token(context.invocation_metadata()) == self.token
        self.num_streams += 1
        async for request in request_iterator:
            stored = self.records.setdefault(request.spool_id, {})
            for record in request.records:
                self.num_resent += record.sequence in stored
                stored[record.sequence] = record
            self.num_requests += 1
            self.changed.set()
            yield ingest_pb2.IngestResponse(
                spool_id=request.spool_id, stored_sequence=max(stored), over_reason=self.over_reason
            )

    async def FetchCode(  # noqa: N802 - the method's name in the proto
        self, request: ingest_pb2.FetchCodeRequest, context: Any
    ) -> AsyncIterator[Any]:
        assert find_token(context.invocation_metadata()) == self.token
        self.num_fetches += 1
        if request.code_sha256 not in self.archives:
            await context.abort(*status_of(not_found("code.not_found", f"no code {request.code_sha256[:12]}")))
        content = self.archives[request.code_sha256]
        for start in range(0, len(content), 1 << 16):
            yield ingest_pb2.FetchCodeResponse(chunk=content[start : start + (1 << 16)])
            if self.held_code is not None:
                await self.held_code.wait()

    async def OfferTunnels(  # noqa: N802 - the method's name in the proto
        self, request: ingest_pb2.OfferTunnelsRequest, context: Any
    ) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this stand-in opens no tunnels")
        yield

    async def Tunnel(  # noqa: N802 - the method's name in the proto
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this stand-in opens no tunnels")
        yield

    def lines(self, stream: str | None = None, rank: int | None = None) -> list[str]:
        """All log lines, in the order of their spools and numbers."""
        return [
            record.log.text
            for records in self.records.values()
            for _, record in sorted(records.items())
            if record.HasField("log")
            and (stream is None or record.log.stream == stream)
            and (rank is None or (record.log.HasField("rank") and record.log.rank == rank))
        ]

    async def wait_line(self, text: str, seconds: float = 60.0) -> None:
        await self.wait_for(lambda: any(text in line for line in self.lines()), seconds, f"line {text!r}")

    async def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {what} within {seconds} s; lines: {self.lines()[-20:]}") from None


@dataclass
class _Meeting:
    """One gang on its way to one another."""

    hellos: dict[int, runner_pb2.GangHello] = field(default_factory=dict)
    probes: dict[int, runner_pb2.ProbeResult] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class SchedulerPeer(_Server, runner_pb2_grpc.RunnerServiceServicer):
    """agent_ids: by node rank. networks: the candidates in order of preference, each (subnet, [(interface, address) by
    node rank]). reports: by node rank, each sequence number once. leader_address: set on a standby. gateways: the
    answer to each report. traces: batches to trace, one order in the answer to each report of progress. lease_seconds:
    granted with each renewal. over_reason, stop_order: told with each renewal; over_reason with each report too.
    num_renewals: by node rank. other_schedulers: named beside this one."""

    def __init__(self, token: str, agent_ids: list[str], networks: list[tuple[str, list[tuple[str, str]]]]) -> None:
        super().__init__()
        self.token = token
        self.agent_ids = agent_ids
        self.networks = networks
        self.rendezvous_seconds = 10.0
        self.reports: dict[int, dict[int, runner_pb2.TrialReport]] = {}
        self.num_joins = 0
        self.leader_address = ""
        self.gateways: list[str] = []
        self.traces: list[int] = []
        self.chosen: list[str] = []
        self.lease_seconds = 2.0
        self.other_schedulers: list[str] = []
        self.over_reason = ""
        self.stop_order: runner_pb2.AttemptStop | None = None
        self.num_renewals: Counter[int] = Counter()
        self._meeting = _Meeting()

    def _add(self, server: grpc.aio.Server) -> None:
        runner_pb2_grpc.add_RunnerServiceServicer_to_server(self, server)

    async def ReportTrial(  # noqa: N802 - the method's name in the proto
        self, request: runner_pb2.ReportTrialRequest, context: Any
    ) -> runner_pb2.ReportTrialResponse:
        await self._admit(context)
        self.reports.setdefault(request.node_rank, {})[request.report.sequence] = request.report
        answer = runner_pb2.ReportTrialResponse(gateway_addresses=self.gateways, over_reason=self.over_reason)
        if self.traces and request.report.HasField("progress"):
            answer.trace.batches = self.traces.pop(0)
        return answer

    async def RenewAttempt(  # noqa: N802 - the method's name in the proto
        self, request: runner_pb2.RenewAttemptRequest, context: Any
    ) -> runner_pb2.RenewAttemptResponse:
        await self._admit(context)
        self.num_renewals[request.node_rank] += 1
        return runner_pb2.RenewAttemptResponse(
            over_reason=self.over_reason,
            lease_seconds=self.lease_seconds,
            committee=[runner_pb2.Witness(agent_id=agent_id) for agent_id in [*self.agent_ids, "a8", "a9"]],
            stop=self.stop_order,
            scheduler_addresses=[self.address, *self.other_schedulers],
        )

    async def FindFusion(  # noqa: N802 - the method's name in the proto
        self, request: runner_pb2.FindFusionRequest, context: Any
    ) -> runner_pb2.FindFusionResponse:
        await self._admit(context)
        return runner_pb2.FindFusionResponse()

    async def FindTrialFacts(  # noqa: N802 - the method's name in the proto
        self, request: runner_pb2.FindTrialFactsRequest, context: Any
    ) -> runner_pb2.FindTrialFactsResponse:
        """Answers with the metadata that were reported last."""
        await self._admit(context)
        if self.over_reason:
            await context.abort(*status_of(not_found("allocation.not_found", self.over_reason)))
        metadata = ["", *self.reports_of("metadata")]
        values = [report.metrics["loss"] for report in self.reports_of("metrics")]
        return runner_pb2.FindTrialFactsResponse(metadata_json=metadata[-1], best_validation=min(values, default=None))

    def forget(self) -> None:
        """Resets the state to that of a scheduler that has just begun to lead: no agent has said hello."""
        self._meeting = _Meeting()

    def reports_of(self, kind: str, node_rank: int = 0) -> list[Any]:
        reports = sorted(self.reports.get(node_rank, {}).items())
        return [getattr(report, kind) for _, report in reports if report.HasField(kind)]  # type: ignore[arg-type]

    async def JoinGang(  # noqa: N802 - the method's name in the proto
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[runner_pb2.JoinGangResponse]:
        await self._admit(context)
        self.num_joins += 1
        meeting = self._meeting
        deadline = time.monotonic() + self.rendezvous_seconds
        hello = (await anext(request_iterator)).hello
        await _note(meeting, meeting.hellos, hello.node_rank, hello)
        while len(meeting.hellos) < len(self.agent_ids):
            missing = [agent for rank, agent in enumerate(self.agent_ids) if rank not in meeting.hellos]
            waiting = runner_pb2.GangWaiting(missing_agent_ids=missing, since_at=time.time())
            yield runner_pb2.JoinGangResponse(waiting=waiting)
            if not await _wait_change(meeting, deadline):
                message = f"{', '.join(missing)} did not arrive within {self.rendezvous_seconds:g} s"
                yield _failed(ExitKind.RENDEZVOUS, message)
                return
        candidates = [self._candidate(meeting, network) for network in self.networks]
        yield runner_pb2.JoinGangResponse(peers=runner_pb2.GangPeers(candidates=candidates))
        probe = (await anext(request_iterator)).probe
        await _note(meeting, meeting.probes, hello.node_rank, probe)
        while len(meeting.probes) < len(self.agent_ids):
            assert await _wait_change(meeting, deadline)
        for index, candidate in enumerate(candidates):
            if not any(result.candidates[index].failures for result in meeting.probes.values()):
                self.chosen.append(candidate.subnet)
                yield runner_pb2.JoinGangResponse(chosen=runner_pb2.GangChosen(candidate=candidate))
                break
        else:
            # Without a message: a runner must be able to say by itself what it saw.
            yield _failed(ExitKind.NETWORK, "")
            return
        async for _ in request_iterator:
            pass

    async def _admit(self, context: Any) -> None:
        assert find_token(context.invocation_metadata()) == self.token
        if self.leader_address:
            await context.abort(*status_of(not_leader(self.leader_address)))

    def _candidate(self, meeting: _Meeting, network: tuple[str, list[tuple[str, str]]]) -> runner_pb2.NetworkCandidate:
        subnet, places = network
        return runner_pb2.NetworkCandidate(
            subnet=subnet,
            endpoints=[
                runner_pb2.MemberEndpoint(
                    agent_id=self.agent_ids[rank], interface=interface, address=address, port=meeting.hellos[rank].port
                )
                for rank, (interface, address) in enumerate(places)
            ],
        )


async def _note(meeting: _Meeting, table: dict[int, Any], node_rank: int, value: Any) -> None:
    async with meeting.changed:
        table[node_rank] = value
        meeting.changed.notify_all()


async def _wait_change(meeting: _Meeting, deadline: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())), meeting.changed:
            await meeting.changed.wait()
    except TimeoutError:
        return False
    return True


def _failed(kind: ExitKind, message: str) -> runner_pb2.JoinGangResponse:
    number: Any = enum_number(kind)
    return runner_pb2.JoinGangResponse(failed=runner_pb2.GangFailed(kind=number, message=message))
