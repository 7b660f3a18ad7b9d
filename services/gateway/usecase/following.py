"""What calls that follow an experiment have in common: what wakes them, and that they end in order when the gateway
stops instead of being cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from gangline.errors import unavailable
from services.gateway import metric
from services.gateway.bell import Bell, BellBoard
from services.gateway.mirror import Watched


class Following:
    """news: rings an experiment's id when its history grew, or when one of its runners has gone."""

    def __init__(self, mirror: Watched, news: BellBoard) -> None:
        self._changes = mirror.changes
        self._news = news
        self._is_closing = False

    @contextmanager
    def listen(self, experiment_id: int, *keys: Hashable) -> Iterator[Bell]:
        """A bell for all that happens to the experiment. keys: of the mirror's changes, besides."""
        with (
            metric.FOLLOWERS.track_inprogress(),
            self._changes.listen(experiment_id, *keys) as bell,
            self._news.listen(experiment_id, bell=bell),
        ):
            yield bell

    async def wait(self, bell: Bell, seconds: float | None) -> None:
        """Until it rings or so much time went by. Raises GanglineError `gateway.stopping`."""
        self._check()
        await bell.wait(seconds)
        self._check()

    def close(self) -> None:
        """Ends everybody who waits or is going to."""
        self._is_closing = True
        self._changes.ring_all()
        self._news.ring_all()

    def _check(self) -> None:
        if self._is_closing:
            raise unavailable("gateway.stopping", "this gateway is stopping; call again to reach another, or it again")
