"""Submits that wait travel together; each keeps its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest

from gangline.config.bound import SMALL_TEXT
from gangline.errors import Effect, ErrorKind, GanglineError, invalid, unavailable
from gangline.protocol import rpc
from gangline.v1 import scheduler_pb2, types_pb2
from services.gateway.leader import submitter as submitter_module
from services.gateway.leader.leader_client import Leader
from services.gateway.leader.submitter import MAX_GROUP, Submitter
from tests.support.wait import until, within

Request = scheduler_pb2.SubmitExperimentRequest
Response = scheduler_pb2.SubmitExperimentResponse


class _Stub:
    SubmitExperiment = "one"
    SubmitExperiments = "group"


class _UnknownMethod(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNIMPLEMENTED


class StandInCalls:
    """Takes the place of `Leader`. calls: the request ids of each call, in order.

    gate: what every call waits for. failure: what every call raises. is_old: whether it knows single submits only.
    is_short: whether it leaves a result out.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        self.is_old = self.is_short = False

    async def call(self, choose: Callable[[Any], str], request: Any) -> Any:
        is_group = choose(_Stub) == "group"
        submits = list(request.submits) if is_group else [request]
        self.calls.append([submit.request_id for submit in submits])
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if is_group and self.is_old:
            raise GanglineError("rpc.failed", "unimplemented", ErrorKind.INTERNAL) from _UnknownMethod()
        results = [_result(submit) for submit in submits]
        if is_group:
            return scheduler_pb2.SubmitExperimentsResponse(results=results[self.is_short :])
        if results[0].HasField("error"):
            raise rpc.error_in(results[0].error, results[0].status)
        return results[0].created


def _result(request: Request) -> scheduler_pb2.SubmitResult:
    if request.config_json == "bad":
        error = invalid("config.bad", f"{request.request_id} is bad")
        return scheduler_pb2.SubmitResult(error=rpc.detail_of(error), status=rpc.status_number_of(error))
    experiment = types_pb2.Experiment(id=int(request.request_id), request_id=request.request_id)
    return scheduler_pb2.SubmitResult(created=Response(experiment=experiment, revision=1))


def _request(number: int, config_json: str = "{}") -> Request:
    return Request(request_id=str(number), config_json=config_json)


def _pair() -> tuple[StandInCalls, Submitter]:
    calls = StandInCalls()
    return calls, Submitter(cast("Leader", calls))


async def _start(calls: StandInCalls, submitter: Submitter, *requests: Request) -> list[asyncio.Task[Response]]:
    """All of them, the first one alone in a call that is under way."""
    first = asyncio.create_task(submitter.submit(requests[0]))
    await until(lambda: len(calls.calls) == 1, "the first call")
    others = [asyncio.create_task(submitter.submit(request)) for request in requests[1:]]
    await asyncio.sleep(0)
    return [first, *others]


async def test_what_comes_during_a_call_leaves_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, *(_request(number) for number in range(1, MAX_GROUP + 4)))
    calls.gate.set()
    answers = await within(5, asyncio.gather(*tasks))
    assert [answer.experiment.id for answer in answers] == list(range(1, MAX_GROUP + 4))
    assert [len(call) for call in calls.calls] == [1, MAX_GROUP, 2]
    assert calls.calls[1] == [str(number) for number in range(2, MAX_GROUP + 2)]


async def test_one_bad_submit_of_a_group_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3, "bad"), _request(4))
    calls.gate.set()
    results = await within(5, asyncio.gather(*tasks, return_exceptions=True))
    assert [result.experiment.id for result in results if isinstance(result, Response)] == [1, 2, 4]
    error = results[2]
    assert isinstance(error, GanglineError)
    assert (error.code, error.kind, error.effect) == ("config.bad", ErrorKind.INVALID, Effect.NONE)
    assert calls.calls == [["1"], ["2", "3", "4"]]


async def test_callers_that_were_answered_together_are_sent_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linger ends with the last of them, not with its time."""
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    monkeypatch.setattr(submitter_module, "LINGER_SECONDS", 60.0)
    calls, submitter = _pair()
    calls.gate.set()

    async def submit_in_turn(first: int) -> None:
        for number in range(first, first + 300, 100):
            await submitter.submit(_request(number))

    callers = [asyncio.create_task(submit_in_turn(first)) for first in (1, 2, 3)]
    await until(lambda: sum(map(len, calls.calls)) >= 7, "two rounds")
    assert [len(call) for call in calls.calls[:3]] == [1, 3, 3]
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)


async def test_a_linger_for_callers_that_have_gone_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3))
    calls.gate.set()
    await within(5, asyncio.gather(*tasks))
    assert (await within(5, submitter.submit(_request(4)))).experiment.id == 4
    # From then on it is a single caller, which waits for nothing.
    monkeypatch.setattr(submitter_module, "LINGER_SECONDS", 60.0)
    await within(5, submitter.submit(_request(5)))
    await within(5, submitter.submit(_request(6)))
    assert calls.calls[-3:] == [["4"], ["5"], ["6"]]


async def test_a_call_that_takes_long_holds_no_other_submit_up() -> None:
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3))
    await until(lambda: len(calls.calls) == 2, "the second call while the first one hangs")
    assert calls.calls == [["1"], ["2", "3"]]
    calls.gate.set()
    await within(5, asyncio.gather(*tasks))


async def test_a_large_configuration_leaves_by_itself_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2, "x" * (SMALL_TEXT + 1)), _request(3))
    await until(lambda: len(calls.calls) == 2, "the call of the large one")
    assert calls.calls == [["1"], ["2"]]
    calls.gate.set()
    await within(5, asyncio.gather(*tasks))
    assert calls.calls == [["1"], ["2"], ["3"]]


async def test_a_caller_that_left_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3))
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    calls.gate.set()
    await within(5, asyncio.gather(tasks[0], tasks[2]))
    assert calls.calls == [["1"], ["3"]]


async def test_when_all_that_waited_have_left_the_next_submit_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2))
    tasks[1].cancel()
    calls.gate.set()
    await within(5, tasks[0])
    assert (await within(5, submitter.submit(_request(3)))).experiment.id == 3


async def test_a_call_that_fails_as_a_whole_gives_each_caller_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3))
    calls.failure = unavailable("state.unwritable", "etcd has no quorum", Effect.UNKNOWN)
    calls.gate.set()
    errors = await within(5, asyncio.gather(*tasks, return_exceptions=True))
    refusals = [error for error in errors if isinstance(error, GanglineError)]
    assert [(error.code, error.effect) for error in refusals] == [("state.unwritable", Effect.UNKNOWN)] * 3
    assert len({id(error) for error in refusals}) == 3


async def test_an_older_leader_gets_them_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    calls.is_old = True
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3, "bad"), _request(4))
    calls.gate.set()
    results = await within(5, asyncio.gather(*tasks, return_exceptions=True))
    assert [result.experiment.id for result in results if isinstance(result, Response)] == [1, 2, 4]
    assert isinstance(results[2], GanglineError)
    assert results[2].code == "config.bad"


async def test_an_answer_with_too_few_results_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter_module, "LONGEST_HOLD_SECONDS", 60.0)
    calls, submitter = _pair()
    calls.is_short = True
    tasks = await _start(calls, submitter, _request(1), _request(2), _request(3))
    calls.gate.set()
    results = await within(5, asyncio.gather(*tasks, return_exceptions=True))
    refusals = [result for result in results if isinstance(result, GanglineError)]
    assert [(error.code, error.effect) for error in refusals] == [("gateway.bad_answer", Effect.UNKNOWN)] * 2


async def test_the_end_of_the_gateway_ends_those_that_wait_for_an_answer() -> None:
    calls, submitter = _pair()
    [task] = await _start(calls, submitter, _request(1))
    await within(5, submitter.close())
    with pytest.raises(asyncio.CancelledError):
        await within(5, task)
