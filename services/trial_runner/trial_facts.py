"""Passes the metadata of the trial between its ranks and the leading scheduler, and answers what is on record of it.

A rank that asks waits for the answer. So it gets one within seconds: the scheduler's, or the reason why there is none.
What a rank has reported before counts, because the answer waits until the scheduler has it. New metadata travel like
all other reports, so an outage loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import structlog

from gangline.config.strategy_choice import parse_choice
from gangline.domain.metric_value import check_metadata
from gangline.errors import GanglineError
from gangline.protocol.rpc import find_leader, token_metadata
from gangline.v1 import rank_pb2, runner_pb2, runner_pb2_grpc
from services.common.concurrency import cancel
from services.common.state_folder import StateFolder
from services.trial_runner.delivery.channel_route import route_to_leader
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.reporter import Reporter

# Limit for the whole answer to a rank, and for one call of a scheduler.
ANSWER_SECONDS = 10.0
CALL_SECONDS = 5.0
# Questions that are answered at a time. A program that asks more often, or whose threads do, waits.
MAX_QUESTIONS = 100
# With these codes every scheduler gives the same answer.
_REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED}

log = structlog.get_logger(__name__)


class TrialFacts:
    """Answers questions about the trial and forwards its metadata. send: sends a message to a rank. `close` may be
    called only when the ranks have gone."""

    def __init__(
        self,
        spec: runner_pb2.RunnerSpec,
        state: StateFolder,
        reporter: Reporter,
        recorder: Recorder,
        send: Callable[[int, rank_pb2.RunnerMessage], None],
    ) -> None:
        self._spec = spec
        self._state = state
        self._reporter = reporter
        self._recorder = recorder
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        """Takes the ranks' messages about the trial; ignores all others."""
        match message.WhichOneof("message"):
            case "trial_metadata":
                self._on_metadata(message.trial_metadata)
            case "strategy_choice":
                self._on_choice(message.strategy_choice)
            case "trial_query":
                self._on_query(rank, message.trial_query.number)

    async def close(self) -> None:
        await cancel(*self._tasks)

    def _on_metadata(self, metadata_json: str) -> None:
        """Reports metadata. A rank has checked them, unless its program has sent them past the library."""
        try:
            check_metadata(metadata_json)
        except GanglineError as error:
            self._recorder.warn(f"metadata are not kept: {error.message}")
            return
        self._reporter.add(runner_pb2.TrialReport(metadata=metadata_json))

    def _on_choice(self, text: str) -> None:
        try:
            parse_choice(text)
        except GanglineError as error:
            self._recorder.warn(error.message)
            return
        self._reporter.add(runner_pb2.TrialReport(strategy_choice=text))

    def _on_query(self, rank: int, number: int) -> None:
        if len(self._tasks) >= MAX_QUESTIONS:
            self._answer(rank, rank_pb2.TrialAnswer(number=number, problem="too many questions are open"))
            return
        task = asyncio.create_task(self._look_up(rank, number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer(self, rank: int, answer: rank_pb2.TrialAnswer) -> None:
        self._send(rank, rank_pb2.RunnerMessage(trial_answer=answer))

    async def _look_up(self, rank: int, number: int) -> None:
        answer = rank_pb2.TrialAnswer(number=number)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._reporter.drain(ANSWER_SECONDS)
                facts = await self._find()
        except TimeoutError:
            answer.problem = f"no scheduler has answered for {ANSWER_SECONDS:.0f} s"
        except grpc.aio.AioRpcError as error:
            answer.problem = f"the scheduler refuses to answer: {error.details()}"
        else:
            answer.metadata_json, answer.stop_reason = facts.metadata_json, facts.stop_reason
            if facts.HasField("best_validation"):
                answer.best_validation = facts.best_validation
        if answer.problem:
            log.warning("a rank's question about its trial has no answer", rank=rank, problem=answer.problem)
        self._answer(rank, answer)

    async def _find(self) -> runner_pb2.FindTrialFactsResponse:
        """Asks one scheduler after another until one answers. Raises AioRpcError where it refuses to."""
        request = runner_pb2.FindTrialFactsRequest(allocation_id=self._spec.allocation.id)
        route = route_to_leader(self._spec.scheduler_addresses, self._state)
        try:
            while True:
                try:
                    stub = runner_pb2_grpc.RunnerServiceStub(route.channel())
                    return await stub.FindTrialFacts(
                        request, timeout=CALL_SECONDS, metadata=token_metadata(self._spec.token)
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() in _REFUSALS:
                        raise
                    await route.failed(find_leader(error))
        finally:
            await route.close()
