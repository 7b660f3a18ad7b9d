"""What ends a read or a write of a stream to etcd: the caller, a rotation, the time limit, or the other side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from services.common.etcd.failure import Remedy, TryFailed
from services.common.etcd.stream import Stream


class _Call:
    """Stands in for a call of grpc. Its reads wait for a message, and end like those of grpc when it is cancelled."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.reading: asyncio.Task[Any] | None = None
        self.is_read = asyncio.Event()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        pass

    async def write(self, message: Any) -> None:
        pass

    async def read(self) -> Any:
        self.reading = asyncio.ensure_future(self.messages.get())
        self.is_read.set()
        return await self.reading

    def cancel(self) -> None:
        if self.reading is not None:
            self.reading.cancel()


class _Connection:
    def __init__(self) -> None:
        self.endpoint = "member-1:2379"
        self.streams: set[Any] = set()


OPERATIONS: list[Callable[[Stream], Awaitable[Any]]] = [
    lambda stream: stream.ask("beat", 30),
    lambda stream: stream.read(30),
]
OPERATION_NAMES = ["ask", "read"]


def _open(call: _Call) -> Stream:
    return Stream(call, _Connection(), lambda failure: failure)  # type: ignore[arg-type]  # what it uses of one


async def _begin(call: _Call, operation: Awaitable[Any]) -> asyncio.Task[Any]:
    """Returns the operation as a task that waits for the other side."""
    task = asyncio.ensure_future(operation)
    await call.is_read.wait()
    return task


@pytest.mark.parametrize("operate", OPERATIONS, ids=OPERATION_NAMES)
async def test_a_caller_that_is_cancelled_is_cancelled(operate: Callable[[Stream], Awaitable[Any]]) -> None:
    call = _Call()
    async with _open(call) as stream:
        task = await _begin(call, operate(stream))
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


@pytest.mark.parametrize("operate", OPERATIONS, ids=OPERATION_NAMES)
async def test_a_rotation_is_a_failed_try(operate: Callable[[Stream], Awaitable[Any]]) -> None:
    call = _Call()
    async with _open(call) as stream:
        task = await _begin(call, operate(stream))
        call.cancel()
        with pytest.raises(TryFailed, match="left for another endpoint") as raised:
            await task
        assert raised.value.remedy is Remedy.WAIT


@pytest.mark.parametrize("operate", OPERATIONS, ids=OPERATION_NAMES)
async def test_the_end_of_the_stream_is_a_failed_try(operate: Callable[[Stream], Awaitable[Any]]) -> None:
    call = _Call()
    call.messages.put_nowait(grpc.aio.EOF)
    async with _open(call) as stream:
        with pytest.raises(TryFailed, match="member-1:2379: the stream ended"):
            await operate(stream)


async def test_a_question_without_an_answer_is_a_failed_try() -> None:
    async with _open(_Call()) as stream:
        with pytest.raises(TryFailed, match=r"no answer for 0\.01 s"):
            await stream.ask("beat", 0.01)


async def test_a_read_without_a_message_may_be_repeated() -> None:
    call = _Call()
    async with _open(call) as stream:
        assert await stream.read(0.01) is None
        call.messages.put_nowait("event")
        assert await stream.read(30) == "event"
