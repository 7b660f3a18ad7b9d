"""Helpers that use cases share: waiting for changes of an experiment or for the own write, blocking iterators in
threads, and the first item of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gangline.errors import unavailable
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import LOG_NOTIFICATION, Watched
from services.gateway.mirror.notification import Notification, NotificationBoard


class Following:
    """Wakes followers. news: rings an experiment's id when its history grew, or when one of its runners has
    disconnected."""

    def __init__(self, mirror: Watched, news: NotificationBoard) -> None:
        self._changes = mirror.changes
        self._news = news
        self._is_closing = False

    @contextmanager
    def listen(self, experiment_id: int, *keys: Hashable) -> Iterator[Notification]:
        """Yields a notification for all changes of the experiment. keys: further keys of the mirror's changes."""
        with (
            metrics.FOLLOWERS.track_inprogress(),
            self._changes.listen(experiment_id, *keys) as notification,
            self._news.listen(experiment_id, notification=notification),
        ):
            yield notification

    @contextmanager
    def listen_to_all(self, experiment_ids: Collection[int]) -> Iterator[Notification]:
        """Yields a notification for all changes of the mirror's log, and for the history of these experiments."""
        with (
            metrics.FOLLOWERS.track_inprogress(),
            self._changes.listen(LOG_NOTIFICATION) as notification,
            self._news.listen(*experiment_ids, notification=notification),
        ):
            yield notification

    async def wait(self, notification: Notification, seconds: float | None) -> None:
        """Waits until the notification is set or so much time has passed. Raises GanglineError `gateway.stopping`."""
        self._check()
        await notification.wait(seconds)
        self._check()

    def close(self) -> None:
        """Ends all calls that wait, and those that are about to."""
        self._is_closing = True
        self._changes.ring_all()
        self._news.ring_all()

    def _check(self) -> None:
        if self._is_closing:
            raise unavailable("gateway.stopping", "this gateway is stopping; call again to reach another, or it again")


T = TypeVar("T")


async def begin(items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Returns an iterator over the same items, with the first one fetched. Where an answer is streamed, a refusal comes
    before the answer begins, so that it has a status of its own."""
    try:
        first = await anext(items)
    except StopAsyncIteration:
        return items

    async def all_items() -> AsyncIterator[T]:
        yield first
        async for item in items:
            yield item

    return all_items()


async def in_thread(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yields the items. make: called in the thread as well. The iterator is not closed early but left to the garbage
    collector, because a step may still run when the reader goes."""
    # Opening a file blocks as well.
    iterator = await asyncio.to_thread(make)
    while True:
        step = await asyncio.to_thread(_step, iterator)
        if not step:
            return
        yield step[0]


def _step(iterator: Iterator[T]) -> tuple[T, ...]:
    """Returns the next item in a tuple, empty at the end: StopIteration cannot cross a future."""
    for item in iterator:
        return (item,)
    return ()
