"""Bells wake every listener, and no listener misses a ring between reading and waiting."""

from __future__ import annotations

import asyncio

from services.gateway.mirror.notification import NotificationBoard
from tests.support.wait import within


async def test_ring_between_clear_and_wait_is_not_missed() -> None:
    board = NotificationBoard()
    with board.listen(1) as notification:
        notification.clear()
        board.ring([1])
        assert await within(1, notification.wait())


async def test_other_keys_do_not_ring() -> None:
    board = NotificationBoard()
    with board.listen(1) as notification:
        board.ring([2, 3])
        assert not await notification.wait(0.01)


async def test_one_bell_may_hang_on_two_boards() -> None:
    first, second = NotificationBoard(), NotificationBoard()
    with first.listen(1) as notification, second.listen(1, notification=notification):
        second.ring([1])
        assert await within(1, notification.wait())


async def test_all_listeners_of_a_key_wake_and_none_stays_behind() -> None:
    board = NotificationBoard()
    with board.listen(1) as first, board.listen(1) as second:
        board.ring_all()
        await within(1, asyncio.gather(first.wait(), second.wait()))
    assert board._bells == {}
