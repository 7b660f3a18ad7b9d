"""Sends the users' submits to the leader, several in one call where several wait.

A submit leaves at once while no call is under way. Submits that come meanwhile leave together in the next call, so a
burst costs the gateway, the leader and etcd one call for several submits. After a call with several submits the next
one lingers for a few milliseconds, because the callers that were just answered often submit again. Each submit keeps
its own result. A large configuration is sent by itself, because the leader takes a tenth of a second to read it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.config.bound import is_small
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol import rpc
from gangline.v1 import scheduler_pb2
from services.common.concurrency import cancel
from services.gateway.leader.leader_client import Leader

# The leader takes 64. So many small submits stay far below the limit of one message.
MAX_GROUP = 32
# A call that takes longer holds up no other submit.
LONGEST_HOLD_SECONDS = 0.05
# Callers that were answered together often submit again at once. The next call waits for so many submits as there were
# callers, but not longer than this. A single caller never waits.
LINGER_SECONDS = 0.004


@dataclass(eq=False, slots=True)
class _Submit:
    request: scheduler_pb2.SubmitExperimentRequest
    answer: asyncio.Future[scheduler_pb2.SubmitExperimentResponse]


class Submitter:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._waiting: deque[_Submit] = deque()
        # Whether the newest call, or the linger after it, holds up the submits that wait; and until how many wait.
        self._is_holding = False
        self._num_expected = MAX_GROUP
        self._release: asyncio.TimerHandle | None = None
        self._newest: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, request: scheduler_pb2.SubmitExperimentRequest) -> scheduler_pb2.SubmitExperimentResponse:
        """The leader's answer, as by `Leader.call`. Raises GanglineError."""
        if not is_small(request.config_json):
            return await self._call_one(request)
        submit = _Submit(request, asyncio.get_running_loop().create_future())
        self._waiting.append(submit)
        if not self._is_holding or len(self._waiting) >= self._num_expected:
            self._send_next()
        return await submit.answer

    async def close(self) -> None:
        """Ends the calls that are under way, and drops what waits. The gateway's servers have stopped before."""
        for submit in self._waiting:
            submit.answer.cancel()
        await cancel(*self._calls)

    def _send_next(self) -> None:
        """Sends what waits, and holds up what comes next."""
        self._stop_holding()
        group: list[_Submit] = []
        while self._waiting and len(group) < MAX_GROUP:
            submit = self._waiting.popleft()
            # The answer is done when the caller has left before its submit was sent.
            if not submit.answer.done():
                group.append(submit)
        if not group:
            return
        call = asyncio.create_task(self._send(group), name="submits")
        self._calls.add(call)
        self._newest = call
        call.add_done_callback(self._calls.discard)
        self._hold(MAX_GROUP, LONGEST_HOLD_SECONDS)

    def _on_answer(self, num_answered: int) -> None:
        """Runs before the callers hear of it, so every submit that waits is of another caller."""
        if asyncio.current_task() is not self._newest or not self._is_holding:
            return
        num_callers = min(num_answered + len(self._waiting), MAX_GROUP)
        if len(self._waiting) < num_callers and num_callers > 1:
            self._hold(num_callers, LINGER_SECONDS)
        else:
            self._send_next()

    def _hold(self, num_expected: int, seconds: float) -> None:
        """Until so many submits wait or the time is over."""
        self._stop_holding()
        self._is_holding, self._num_expected = True, num_expected
        self._release = asyncio.get_running_loop().call_later(seconds, self._send_next)

    def _stop_holding(self) -> None:
        self._is_holding = False
        if self._release is not None:
            self._release.cancel()
            self._release = None

    async def _send(self, group: Sequence[_Submit]) -> None:
        """Gives every submit of the group its answer or its error."""
        requests = [submit.request for submit in group]
        outcomes: Sequence[scheduler_pb2.SubmitExperimentResponse | BaseException]
        try:
            outcomes = await self._call(requests)
        except GanglineError as error:
            # Each caller adds to its error, so each gets one of its own.
            outcomes = [error.reworded(error.message) for _ in group]
        except BaseException as error:  # noqa: BLE001 - a bug, or the end of the gateway: every caller gets it
            outcomes = [error for _ in group]
        self._on_answer(len(group))
        for submit, outcome in zip(group, outcomes, strict=True):
            if submit.answer.done():
                continue
            if isinstance(outcome, asyncio.CancelledError):
                submit.answer.cancel()
            elif isinstance(outcome, BaseException):
                submit.answer.set_exception(outcome)
            else:
                submit.answer.set_result(outcome)

    async def _call(
        self, requests: Sequence[scheduler_pb2.SubmitExperimentRequest]
    ) -> Sequence[scheduler_pb2.SubmitExperimentResponse | BaseException]:
        """One outcome for each request. Raises GanglineError when the call failed as a whole."""
        if len(requests) == 1:
            return [await self._call_one(requests[0])]
        group = scheduler_pb2.SubmitExperimentsRequest(submits=requests)
        try:
            answer = await self._leader.call(lambda scheduler: scheduler.SubmitExperiments, group)
        except GanglineError as error:
            if not rpc.is_unknown_method(error):
                raise
            # A leader of an older version.
            return await asyncio.gather(*(self._call_one(request) for request in requests), return_exceptions=True)
        if len(answer.results) != len(requests):
            text = f"the leader answered {len(requests)} submits with {len(answer.results)} results; see its log"
            raise GanglineError("gateway.bad_answer", text, ErrorKind.INTERNAL)
        return [_outcome(result) for result in answer.results]

    async def _call_one(self, request: scheduler_pb2.SubmitExperimentRequest) -> scheduler_pb2.SubmitExperimentResponse:
        return await self._leader.call(lambda scheduler: scheduler.SubmitExperiment, request)


def _outcome(result: scheduler_pb2.SubmitResult) -> scheduler_pb2.SubmitExperimentResponse | GanglineError:
    return result.created if result.HasField("created") else rpc.error_in(result.error, result.status)
