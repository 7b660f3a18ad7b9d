"""Sends the reports that decide over the trial (running, progress, validation, checkpoint) to the leading scheduler.

Owns the numbers of the reports and their order. It sends one report after another, and repeats each until a leader has
taken it. Reports that are undelivered when the runner ends go into exit.json; the agent passes them to the scheduler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
import structlog

from gangline.protocol.rpc import find_leader, token_metadata
from gangline.v1 import runner_pb2, runner_pb2_grpc, types_pb2
from services.trial_runner.delivery.channel_route import ChannelRoute

# Deadline of one call, after which the next scheduler is asked.
CALL_SECONDS = 5.0
# With these codes no scheduler will ever take this report.
_REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED}

# Returns why a checkpoint is not to be reported; empty if it is, and None if that cannot be found out.
FindFault = Callable[[types_pb2.Checkpoint], Awaitable[str | None]]

log = structlog.get_logger(__name__)


class Reporter:
    """Queues reports and delivers them; `run` is its long-lived task. on_answer: called with the scheduler's answer to
    each report that it has taken. on_refusal: called with the reason why a report will never be taken.

    Nothing is sent before `open`. If a runner ends at once, its reports go with its exit, which is cheaper for all than
    a connection of its own.
    """

    def __init__(
        self,
        route: ChannelRoute,
        allocation_id: str,
        node_rank: int,
        on_answer: Callable[[runner_pb2.ReportTrialResponse], None],
        *,
        on_refusal: Callable[[str], None],
        find_fault: FindFault,
    ) -> None:
        self._find_fault = find_fault
        self._route = route
        self._on_answer = on_answer
        self._on_refusal = on_refusal
        self._allocation_id = allocation_id
        self._node_rank = node_rank
        self._next = 1
        self._waiting: deque[runner_pb2.TrialReport] = deque()
        self._has_news = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._is_open = asyncio.Event()
        self._is_sending = False

    def open(self) -> None:
        """Starts sending. May be called again."""
        self._is_open.set()

    def add(self, report: runner_pb2.TrialReport) -> None:
        """Numbers the report and queues it. A progress report replaces one that still waits at the end of the queue,
        because only the newest counts."""
        # The first report may be on its way right now, so it is never replaced.
        last = self._waiting[-1] if len(self._waiting) > int(self._is_sending) else None
        if last is not None and last.HasField("progress") and report.HasField("progress"):
            last.progress.CopyFrom(report.progress)
            return
        report.sequence = self._next
        self._next += 1
        self._waiting.append(report)
        self._has_news.set()

    @property
    def undelivered(self) -> list[runner_pb2.TrialReport]:
        return list(self._waiting)

    async def screen(self) -> None:
        """Drops waiting reports of checkpoints with a fault, which the leader would not find. For the end of the
        runner, when `run` has ended."""
        for report in self.undelivered:
            fault = await self._fault_of(report)
            if fault is None:
                # The storage does not answer. Looking for the other checkpoints too would hold up the end.
                return
            if fault:
                self._waiting.remove(report)

    async def drain(self, deadline_seconds: float) -> bool:
        """Waits until the scheduler has everything. Returns False if the time ran out first, or if `open` was never
        called."""
        self._is_drained.clear()
        if not self._waiting or not self._is_open.is_set():
            return not self._waiting
        self._route.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                await self._is_drained.wait()
        return not self._waiting

    async def run(self, token: str) -> None:
        """Sends reports until it is cancelled."""
        await self._is_open.wait()
        while True:
            while not self._waiting:
                self._is_drained.set()
                self._has_news.clear()
                await self._has_news.wait()
            await self._send_first(token)

    async def _send_first(self, token: str) -> None:
        report = self._waiting[0]
        self._is_sending = True
        try:
            if await self._fault_of(report):
                self._waiting.popleft()
            else:
                await self._send(report, token)
        finally:
            self._is_sending = False

    async def _fault_of(self, report: runner_pb2.TrialReport) -> str | None:
        if not report.HasField("checkpoint"):
            return ""
        if fault := await self._find_fault(report.checkpoint):
            self._on_refusal(fault)
        return fault

    async def _send(self, report: runner_pb2.TrialReport, token: str) -> None:
        request = runner_pb2.ReportTrialRequest(
            allocation_id=self._allocation_id, node_rank=self._node_rank, report=report
        )
        try:
            stub = runner_pb2_grpc.RunnerServiceStub(self._route.channel())
            answer = await stub.ReportTrial(request, timeout=CALL_SECONDS, metadata=token_metadata(token))
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                log.error("the scheduler refuses a report", sequence=report.sequence, error=error.details())
                self._on_refusal(f"the scheduler refuses a report of this trial: {error.details()}")
                self._waiting.popleft()
            else:
                await self._route.failed(find_leader(error))
        else:
            self._route.succeeded()
            self._waiting.popleft()
            self._on_answer(answer)
