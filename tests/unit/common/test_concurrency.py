"""The first step that ends decides; the others have ended when the call returns, however it returns."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from services.common.concurrency import Turns, cancel, first_of


class _Step:
    """A step that ends when it is released. on_cancel: raised in place of the cancellation."""

    def __init__(self, on_cancel: BaseException | None = None) -> None:
        self.released: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.was_cancelled = False
        self._on_cancel = on_cancel

    async def run(self) -> str:
        try:
            return await self.released
        except asyncio.CancelledError:
            # A step may need further turns of the event loop to clean up.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.was_cancelled = True
            if self._on_cancel is not None:
                raise self._on_cancel from None
            raise


async def test_the_result_of_the_first_step_is_returned_and_the_others_have_ended() -> None:
    steps = [_Step() for _ in range(3)]
    asyncio.get_running_loop().call_soon(steps[1].released.set_result, "second")
    assert await first_of(*(step.run() for step in steps)) == "second"
    assert [step.was_cancelled for step in steps] == [True, False, True]


async def test_the_error_of_the_first_step_is_raised_and_the_others_have_ended() -> None:
    failing, other = _Step(), _Step()
    asyncio.get_running_loop().call_soon(failing.released.set_exception, ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await first_of(other.run(), failing.run())
    assert other.was_cancelled


async def test_of_steps_that_end_together_the_first_argument_counts() -> None:
    first, second = _Step(), _Step()
    second.released.set_result("second")
    first.released.set_result("first")
    assert await first_of(first.run(), second.run()) == "first"


async def test_of_steps_that_end_together_an_error_counts_before_a_result() -> None:
    first, second = _Step(), _Step()
    first.released.set_result("first")
    second.released.set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await first_of(first.run(), second.run())


async def test_an_error_of_a_cancelled_step_is_dropped() -> None:
    first, second = _Step(), _Step(on_cancel=ValueError("broken"))
    asyncio.get_running_loop().call_soon(first.released.set_result, "first")
    assert await first_of(first.run(), second.run()) == "first"
    assert second.was_cancelled


async def test_a_cancelled_caller_cancels_all_steps() -> None:
    steps = [_Step(), _Step()]
    caller = asyncio.create_task(first_of(*(step.run() for step in steps)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [step.was_cancelled for step in steps] == [True, True]


async def test_a_task_is_a_step_as_well() -> None:
    task, other = asyncio.create_task(asyncio.Event().wait()), _Step()
    asyncio.get_running_loop().call_soon(other.released.set_result, "done")
    assert await first_of(task, other.run()) == "done"
    assert task.cancelled()


async def test_a_step_that_is_cancelled_from_outside_cancels_the_caller() -> None:
    task, other = asyncio.create_task(asyncio.Event().wait()), _Step()
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await first_of(task, other.run())
    assert other.was_cancelled


async def test_cancel_returns_when_all_have_ended_and_drops_their_errors() -> None:
    step, failing = _Step(), _Step(on_cancel=ValueError("broken"))
    tasks = [asyncio.create_task(each.run()) for each in (step, failing)]
    ended = asyncio.create_task(asyncio.sleep(0))
    with suppress(asyncio.CancelledError):
        await ended
    await asyncio.sleep(0)
    await cancel(*tasks, ended)
    assert step.was_cancelled
    assert failing.was_cancelled
    assert [task.done() for task in tasks] == [True, True]


async def test_cancel_of_nothing_returns() -> None:
    await cancel()


async def test_callers_take_turns_each_for_itself_and_none_is_remembered() -> None:
    turns, order, begun, release = Turns(), list[str](), asyncio.Event(), asyncio.Event()

    async def work(caller: str, name: str) -> None:
        async with turns.of(caller):
            order.append(name)
            begun.set()
            await release.wait()

    tasks = [asyncio.create_task(work("alice", "first")), asyncio.create_task(work("alice", "second"))]
    await begun.wait()
    async with asyncio.timeout(5), turns.of("bob"):
        assert order == ["first"]
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["first", "second"]
    gc.collect()
    assert not turns._locks
