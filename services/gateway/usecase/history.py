"""Reads logs and metrics: page by page, and further pages as they arrive until the experiment has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from gangline.domain.history import StoredLog, StoredMetrics
from gangline.domain.state import State
from gangline.errors import invalid
from services.common.server import Principal
from services.gateway.history.reader import Reader
from services.gateway.mirror.auth import check_user
from services.gateway.mirror.ingest_record import Scope
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.following import Following
from services.gateway.usecase.ingest import Ingest
from services.gateway.usecase.view import Views

# Rows of one query; a full page means that there may be more.
PAGE_ROWS = 500
# Gateways that share a PostgreSQL do not ring each other's notifications, so then a follower polls this often.
POLL_SECONDS = 1.0
# After the end of an experiment its runners may still deliver; a follower waits for them no longer than this.
LINGER_SECONDS = 10.0

Row = TypeVar("Row", StoredLog, StoredMetrics)
ReadAfter = Callable[[int], Awaitable[Sequence[Row]]]


class Records:
    def __init__(self, mirror: Watched, views: Views, reader: Reader, ingest: Ingest, following: Following) -> None:
        self._mirror = mirror
        self._views = views
        self._reader = reader
        self._ingest = ingest
        self._following = following

    async def logs(
        self, principal: Principal, scope: Scope, *, tail: int = 0, after_id: int = 0, follow: bool = False
    ) -> AsyncIterator[Sequence[StoredLog]]:
        """Yields pages of log lines in the order in which they were stored. tail: only the last so many of the present
        lines."""
        await self.confirm(principal, scope)
        self.check(principal, scope)
        if tail < 0:
            raise invalid("request.tail", f"tail is {tail}; give the number of lines, or 0 for all")
        if tail:
            after_id = max(after_id, await self._reader.find_tail(scope, tail))
        pages = self._pages(scope, lambda last_id: self._reader.logs_after(scope, last_id, PAGE_ROWS), after_id, follow)
        async for page in pages:
            yield page

    async def metrics(
        self, principal: Principal, scope: Scope, *, after_id: int = 0, follow: bool = False
    ) -> AsyncIterator[Sequence[StoredMetrics]]:
        await self.confirm(principal, scope)
        self.check(principal, scope)
        pages = self._pages(
            scope, lambda last_id: self._reader.metrics_after(scope, last_id, PAGE_ROWS), after_id, follow
        )
        async for page in pages:
            yield page

    async def log_page(
        self, principal: Principal, scope: Scope, after_id: int, limit: int, tail: int = 0
    ) -> list[StoredLog]:
        """Returns one page, for callers that page by themselves."""
        await self.confirm(principal, scope)
        self.check(principal, scope)
        if tail:
            after_id = max(after_id, await self._reader.find_tail(scope, tail))
        return await self._reader.logs_after(scope, after_id, limit)

    async def metrics_page(self, principal: Principal, scope: Scope, after_id: int, limit: int) -> list[StoredMetrics]:
        await self.confirm(principal, scope)
        self.check(principal, scope)
        return await self._reader.metrics_after(scope, after_id, limit)

    async def confirm(self, principal: Principal, scope: Scope) -> None:
        """Returns when it is certain whether the scope exists. Called before `check`. Raises GanglineError
        `gateway.behind`."""
        check_user(principal)
        await self._views.confirm(experiment_id=scope.experiment_id, trial_id=scope.trial_id)

    def check(self, principal: Principal, scope: Scope) -> None:
        """Checks that the caller may read this scope and that it exists. Raises GanglineError."""
        check_user(principal)
        self._views.experiment(scope.experiment_id)
        if scope.trial_id and self._views.trial(scope.trial_id).experiment_id != scope.experiment_id:
            raise invalid(
                "trial.elsewhere", f"trial {scope.trial_id} does not belong to experiment {scope.experiment_id}"
            )

    async def _pages(
        self, scope: Scope, read_after: ReadAfter[Row], last_id: int, follow: bool
    ) -> AsyncIterator[Sequence[Row]]:
        experiment_id = scope.experiment_id
        ending = _Ending(
            lambda: self._views.experiment(experiment_id).state is State.TERMINAL,
            lambda: self._ingest.has_stream(experiment_id),
        )
        with self._following.listen(experiment_id) as grew:
            while True:
                grew.clear()
                # Asked before the page is read: all that was stored before the end is in the pages after it.
                is_last = not follow or ending.is_over()
                page = await read_after(last_id)
                if page:
                    yield page
                    last_id = page[-1].id
                if len(page) == PAGE_ROWS:
                    continue
                if is_last:
                    return
                await self._following.wait(grew, self._poll_seconds(ending))

    def _poll_seconds(self, ending: _Ending) -> float | None:
        """Returns how often to poll; None when every change rings."""
        num_gateways = sum(instance.kind == "gateway" for instance in self._mirror.state.instances.all())
        return POLL_SECONDS if num_gateways > 1 or ending.has_begun else None


class _Ending:
    """Decides when a follower may end: the experiment has ended, and its runners have delivered all records."""

    def __init__(self, is_terminal: Callable[[], bool], is_delivering: Callable[[], bool]) -> None:
        self._is_terminal = is_terminal
        self._is_delivering = is_delivering
        self._began_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._began_at is not None

    def is_over(self) -> bool:
        if not self._is_terminal():
            return False
        now = asyncio.get_running_loop().time()
        if self._began_at is None:
            self._began_at = now
        return not self._is_delivering() or now - self._began_at >= LINGER_SECONDS
