"""Bells wake every listener, and no listener misses a ring between reading and waiting."""

from __future__ import annotations

import asyncio

from services.gateway.bell import BellBoard
from tests.support.wait import within


async def test_ring_between_clear_and_wait_is_not_missed() -> None:
    board = BellBoard()
    with board.listen(1) as bell:
        bell.clear()
        board.ring([1])
        assert await within(1, bell.wait())


async def test_other_keys_do_not_ring() -> None:
    board = BellBoard()
    with board.listen(1) as bell:
        board.ring([2, 3])
        assert not await bell.wait(0.01)


async def test_one_bell_may_hang_on_two_boards() -> None:
    first, second = BellBoard(), BellBoard()
    with first.listen(1) as bell, second.listen(1, bell=bell):
        second.ring([1])
        assert await within(1, bell.wait())


async def test_all_listeners_of_a_key_wake_and_none_stays_behind() -> None:
    board = BellBoard()
    with board.listen(1) as first, board.listen(1) as second:
        board.ring_all()
        await within(1, asyncio.gather(first.wait(), second.wait()))
    assert board._bells == {}
