"""Reads logs and metrics: page by page, and further pages as they arrive until the experiment has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gangline.domain.history import (
    NO_FILTER,
    LogFilter,
    MetricSeries,
    StoredLog,
    StoredMetrics,
    check_attempt,
    check_filter,
    check_ranks_exist,
    check_series,
)
from gangline.domain.id import experiment_id_of
from gangline.domain.settled.reading import settle
from gangline.domain.state import State
from gangline.errors import invalid
from gangline.pattern import BadPattern, compile_pattern
from services.gateway.history.attempt import EVERY_BATCH, BatchRange
from services.gateway.history.log_scan import LogPage, LogQuery
from services.gateway.history.reader import MetricsPage, Reader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.ingest_record import Scope
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.delivery import Deliveries
from services.gateway.usecase.shared.following import Following
from services.gateway.usecase.shared.parsing import off_loop, read_text
from services.gateway.usecase.shared.view import Views

# Rows of one query; a full page means that there may be more.
PAGE_ROWS = 500
# Gateways that share a PostgreSQL do not ring each other's notifications, so then a follower polls this often.
POLL_SECONDS = 1.0
# After the end of an experiment its runners may still deliver; a follower waits for them no longer than this.
LINGER_SECONDS = 10.0

# Trials, series and points of one answer.
MAX_TRIALS = 100
MAX_SERIES = 400
MAX_POINTS = 200_000

# Time after which a page with a selective filter is answered as it is.
PAGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _MetricsPage:
    rows: list[StoredMetrics]
    last_id: int
    is_last: bool


Page = TypeVar("Page", LogPage, _MetricsPage)


class HistoryRecords:
    def __init__(
        self,
        caller: Caller,
        mirror: Watched,
        views: Views,
        reader: Reader,
        *,
        deliveries: Deliveries,
        following: Following,
    ) -> None:
        self._caller = caller
        self._mirror = mirror
        self._views = views
        self._reader = reader
        self._deliveries = deliveries
        self._following = following

    async def logs(
        self,
        scope: Scope,
        *,
        tail: int = 0,
        after_id: int = 0,
        follow: bool = False,
        wanted: LogFilter = NO_FILTER,
    ) -> AsyncIterator[LogPage]:
        """Yields pages of log lines in the order in which they were stored. tail: only the last so many of the present
        lines that match. A page without lines reports how far the history is read."""
        query = await self.check_logs(scope, wanted)
        if tail < 0:
            raise invalid("request.tail", f"tail is {tail}; give the number of lines, or 0 for all")
        if after_id < 0:
            raise invalid("request.after_id", f"after_id is {after_id}; give the id of a line, or 0 for all")
        told_id = after_id
        if tail:
            # The first page is yielded even if it is empty: it tells a caller that the tail is settled. A caller that
            # asked for a tail again would miss lines that were stored meanwhile.
            after_id, told_id = max(after_id, await self._reader.find_tail(scope, tail, query)), -1
        async for page in self._pages(scope, lambda last_id: self._log_page(scope, query, last_id), after_id, follow):
            if page.rows or page.last_id > told_id:
                told_id = page.last_id
                yield page

    async def _log_page(self, scope: Scope, query: LogQuery, last_id: int) -> LogPage:
        return await self._reader.logs_after(scope, last_id, PAGE_ROWS, query)

    async def metrics(
        self, scope: Scope, *, after_id: int = 0, follow: bool = False
    ) -> AsyncIterator[Sequence[StoredMetrics]]:
        await self.confirm(scope)
        self.check(scope)
        check_attempt(scope.attempt)
        async for page in self._pages(scope, lambda last_id: self._metrics_page(scope, last_id), after_id, follow):
            if page.rows:
                yield page.rows

    async def _metrics_page(self, scope: Scope, last_id: int) -> _MetricsPage:
        page = await self._reader.metrics_after(scope, last_id, PAGE_ROWS)
        return _MetricsPage(page.rows, page.rows[-1].id if page.rows else last_id, page.is_last)

    async def log_page(
        self,
        scope: Scope,
        after_id: int,
        limit: int,
        *,
        tail: int = 0,
        wanted: LogFilter = NO_FILTER,
    ) -> LogPage:
        """Returns one page, for callers that page by themselves. A page with a selective filter may have fewer lines
        than `limit`, because the search for more would take longer than PAGE_SECONDS."""
        query = await self.check_logs(scope, wanted)
        if tail:
            after_id = max(after_id, await self._reader.find_tail(scope, tail, query))
        deadline = time.monotonic() + PAGE_SECONDS
        page = await self._reader.logs_after(scope, after_id, limit, query)
        rows = page.rows
        while not page.is_last and len(rows) < limit and time.monotonic() < deadline:
            page = await self._reader.logs_after(scope, page.last_id, limit - len(rows), query)
            rows = [*rows, *page.rows]
        return LogPage(rows, page.last_id, page.is_last)

    async def logs_before(
        self, scope: Scope, before_id: int, limit: int, *, wanted: LogFilter = NO_FILTER
    ) -> tuple[list[StoredLog], int | None]:
        """Returns the last matching lines with a smaller id, oldest first, and the id before which further ones may be;
        None at the beginning of the log. A page with a selective filter may have fewer lines than `limit`."""
        query = await self.check_logs(scope, wanted)
        return await self._reader.logs_before(scope, before_id, limit, query, PAGE_SECONDS)

    async def find_log_time(self, scope: Scope, at: float) -> int:
        """Returns the id of the line from which on lines are of this time or later; beyond the newest line if none
        is."""
        await self.confirm(scope)
        self.check(scope)
        return await self._reader.find_log_time(scope, at)

    async def metrics_page(self, scope: Scope, after_id: int, limit: int, *, has_values: bool = True) -> MetricsPage:
        """Returns one page, for callers that page by themselves; `Reader.metrics_after` has the arguments."""
        await self.confirm(scope)
        self.check(scope)
        check_attempt(scope.attempt)
        return await self._reader.metrics_after(scope, after_id, limit, has_values=has_values)

    async def series(self, scope: Scope, metric: str, max_points: int) -> MetricSeries:
        """Returns one metric of the scope's trial. Raises GanglineError `series.*`, `metrics.attempt`, `history.*` and
        as `check` does."""
        check_attempt(scope.attempt)
        await self.confirm(scope)
        self.check(scope)
        check_series(metric, max_points)
        return await self._reader.series(scope, metric, max_points)

    async def many_series(
        self,
        trial_ids: Sequence[str],
        metrics: Sequence[tuple[str, str]],
        max_points: int,
        *,
        attempt: int | None = None,
        batch_range: BatchRange = EVERY_BATCH,
    ) -> list[MetricSeries]:
        """Returns these metrics, each a group and a name, of these trials. Raises GanglineError as `series` does, and
        `series.too_many`."""
        if len(trial_ids) > MAX_TRIALS or len(trial_ids) * len(metrics) > MAX_SERIES:
            raise invalid(
                "series.too_many",
                f"{len(trial_ids)} trials and {len(metrics)} metrics are too many; ask for at most {MAX_TRIALS} trials "
                f"and {MAX_SERIES} series at once",
            )
        if len(trial_ids) * len(metrics) * max_points > MAX_POINTS:
            raise invalid(
                "series.max_points",
                f"{len(trial_ids) * len(metrics)} series with {max_points} points each are more than {MAX_POINTS} "
                "points; ask for fewer points",
            )
        check_attempt(attempt)
        await self._check_trials(trial_ids)
        for _, metric in metrics:
            check_series(metric, max_points)
        # One after the other: the database's driver hands over to other threads at each row, which takes several times
        # as long as the reading where they all do the same.
        return [
            await self._reader.series(
                Scope(experiment_id_of(trial_id), trial_id, group, attempt), metric, max_points, batch_range=batch_range
            )
            for trial_id in trial_ids
            for group, metric in metrics
        ]

    async def metric_names(self, trial_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Returns the groups and names of the metrics that these trials have reported, sorted. Raises GanglineError
        `series.too_many`, and as `check` does."""
        if len(trial_ids) > MAX_TRIALS:
            raise invalid("series.too_many", f"these are {len(trial_ids)} trials; ask for at most {MAX_TRIALS} at once")
        await self._check_trials(trial_ids)
        return sorted(await self._reader.metric_names(trial_ids))

    async def _check_trials(self, trial_ids: Sequence[str]) -> None:
        for trial_id in trial_ids:
            scope = Scope(experiment_id_of(trial_id), trial_id)
            await self.confirm(scope)
            self.check(scope)

    async def confirm(self, scope: Scope) -> None:
        """Returns when it is certain whether the scope exists. Called before `check`. Raises GanglineError
        `gateway.behind`."""
        await self._views.confirm(experiment_id=scope.experiment_id, trial_id=scope.trial_id)

    def check(self, scope: Scope) -> None:
        """Checks that this scope exists. Raises GanglineError."""
        self._views.experiment(scope.experiment_id)
        if scope.trial_id and self._views.trial(scope.trial_id).experiment_id != scope.experiment_id:
            raise invalid(
                "trial.elsewhere", f"trial {scope.trial_id} does not belong to experiment {scope.experiment_id}"
            )

    async def check_logs(self, scope: Scope, wanted: LogFilter) -> LogQuery:
        """Returns the query for a filter. Raises GanglineError as `check` does, and `logs.*` for a filter that cannot
        be carried out."""
        await self.confirm(scope)
        self.check(scope)
        check_filter(wanted)
        if wanted.ranks:
            await self._check_ranks(scope, wanted.ranks)
        if not wanted.pattern:
            return LogQuery(wanted)
        try:
            return LogQuery(wanted, await off_loop(compile_pattern, wanted.pattern))
        except BadPattern as error:
            raise invalid("logs.pattern", f"{error}; its syntax is that of https://github.com/google/re2") from error

    async def _check_ranks(self, scope: Scope, ranks: Sequence[int]) -> None:
        """Checks that the ranks can have occurred."""
        settled = await read_text(settle, self._views.experiment(scope.experiment_id).config_json)
        trials = self._mirror.state.trials.of(scope.experiment_id)
        num_ranks = max([1, settled.resources.slots_per_trial, *(trial.attempt_slots for trial in trials)])
        check_ranks_exist(ranks, num_ranks, f"each trial of experiment {scope.experiment_id}")

    async def _pages(
        self, scope: Scope, read_after: Callable[[int], Awaitable[Page]], last_id: int, follow: bool
    ) -> AsyncIterator[Page]:
        """Yields every page, also empty ones, and waits at the end for new rows when it follows."""
        experiment_id = scope.experiment_id
        ending = _Ending(
            lambda: self._views.experiment(experiment_id).state is State.TERMINAL,
            lambda: self._deliveries.has_stream(experiment_id),
        )
        with self._following.listen(experiment_id) as grew:
            while True:
                grew.clear()
                # Asked before the page is read: all that was stored before the end is in the pages after it.
                is_last = not follow or ending.is_over()
                page = await read_after(last_id)
                yield page
                last_id = page.last_id
                if not page.is_last:
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
