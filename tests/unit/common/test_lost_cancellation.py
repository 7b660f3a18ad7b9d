"""A loop of calls ends when it is cancelled, although grpc.aio may drop the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gangline.protocol.rpc import raise_if_cancelled
from services.common.concurrency import cancel
from tests.support.wait import within


async def test_a_loop_ends_although_a_failing_call_drops_its_cancellation() -> None:
    async def repeat(call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await call()
            except ConnectionError:
                raise_if_cancelled()

    asked = asyncio.Event()

    async def drop() -> None:
        asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError from None

    task = asyncio.create_task(repeat(drop))
    await asked.wait()
    await within(10, cancel(task))
    assert task.cancelled()


async def test_a_task_that_nobody_cancelled_goes_on() -> None:
    raise_if_cancelled()
