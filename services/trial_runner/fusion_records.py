"""Passes the results of tensor-fusion tuning between the chief rank and the leading scheduler.

A rank that asks for earlier results waits for the answer before it trains. So it gets one within seconds: the
scheduler's records, or none if no scheduler answers. New results travel like all other reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import structlog

from gangline.protocol.rpc import find_leader, token_metadata
from gangline.v1 import rank_pb2, runner_pb2, runner_pb2_grpc, types_pb2
from services.common.concurrency import cancel
from services.common.state_folder import StateFolder
from services.trial_runner.delivery.channel_route import route_to_leader
from services.trial_runner.delivery.reporter import Reporter

CHIEF = 0
# Limit for the answer to the chief, which does not train while it waits.
ANSWER_SECONDS = 3.0

log = structlog.get_logger(__name__)


class FusionRelay:
    """Answers the chief's queries and forwards its results. send: sends a message to a rank. `close` may be called only
    when the ranks have gone."""

    def __init__(
        self,
        spec: runner_pb2.RunnerSpec,
        state: StateFolder,
        reporter: Reporter,
        send: Callable[[int, rank_pb2.RunnerMessage], None],
    ) -> None:
        self._spec = spec
        self._state = state
        self._reporter = reporter
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        """Takes the chief's messages about tensor fusion; ignores all others."""
        if rank != CHIEF:
            return
        match message.WhichOneof("message"):
            case "fusion_query":
                task = asyncio.create_task(self._answer(rank, message.fusion_query.family))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case "fusion_record":
                self._reporter.add(runner_pb2.TrialReport(fusion=message.fusion_record))
            case "fusion_forget":
                self._reporter.add(runner_pb2.TrialReport(forgotten_fusion=message.fusion_forget.key))

    async def close(self) -> None:
        await cancel(*self._tasks)

    async def _answer(self, rank: int, family: str) -> None:
        answer = rank_pb2.FusionAnswer(family=family)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer.records.extend(await self._find(family))
        except TimeoutError:
            log.warning("no scheduler says what it remembers of tensor fusion; the trial tunes anew")
        self._send(rank, rank_pb2.RunnerMessage(fusion_answer=answer))

    async def _find(self, family: str) -> list[types_pb2.FusionRecord]:
        """Asks one scheduler after another until one answers."""
        request = runner_pb2.FindFusionRequest(allocation_id=self._spec.allocation.id, family=family)
        route = route_to_leader(self._spec.scheduler_addresses, self._state)
        try:
            while True:
                try:
                    stub = runner_pb2_grpc.RunnerServiceStub(route.channel())
                    answer = await stub.FindFusion(
                        request, timeout=ANSWER_SECONDS, metadata=token_metadata(self._spec.token)
                    )
                    return list(answer.records)
                except grpc.aio.AioRpcError as error:
                    await route.failed(find_leader(error))
        finally:
            await route.close()
