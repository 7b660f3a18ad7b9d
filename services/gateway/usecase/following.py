"""The common part of calls that follow an experiment: what wakes them, and their orderly end when the gateway stops."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from gangline.errors import unavailable
from services.gateway import metric
from services.gateway.bell import Bell, BellBoard
from services.gateway.mirror import Watched


class Following:
    """Wakes followers. news: rings an experiment's id when its history grew, or when one of its runners has
    disconnected."""

    def __init__(self, mirror: Watched, news: BellBoard) -> None:
        self._changes = mirror.changes
        self._news = news
        self._is_closing = False

    @contextmanager
    def listen(self, experiment_id: int, *keys: Hashable) -> Iterator[Bell]:
        """Yields a bell for all changes of the experiment. keys: further keys of the mirror's changes."""
        with (
            metric.FOLLOWERS.track_inprogress(),
            self._changes.listen(experiment_id, *keys) as bell,
            self._news.listen(experiment_id, bell=bell),
        ):
            yield bell

    async def wait(self, bell: Bell, seconds: float | None) -> None:
        """Waits until the bell rings or so much time has passed. Raises GanglineError `gateway.stopping`."""
        self._check()
        await bell.wait(seconds)
        self._check()

    def close(self) -> None:
        """Ends all calls that wait, and those that are about to."""
        self._is_closing = True
        self._changes.ring_all()
        self._news.ring_all()

    def _check(self) -> None:
        if self._is_closing:
            raise unavailable("gateway.stopping", "this gateway is stopping; call again to reach another, or it again")
