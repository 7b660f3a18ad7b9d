"""Routes of logs and metrics: a page of JSON, or server-sent events for followers.

An event's id is its row's id, so a client that reconnects with Last-Event-ID continues where it was. The last event is
`end`. An EventSource must be closed after it, since it would connect again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Header, Query
from sse_starlette import EventSourceResponse, ServerSentEvent

from gangline.domain.history import ALL_ATTEMPTS, MAX_SERIES_POINTS, MIN_SERIES_POINTS, StoredMetrics
from gangline.domain.id import experiment_id_of
from gangline.domain.view import ExperimentView
from gangline.errors import GanglineError, invalid
from services.gateway.history import log_scan
from services.gateway.http import log_model, model
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.log_model import (
    LineSelection,
    LogPage,
    LogPlace,
    MetricSeries,
    MetricsPage,
    Selected,
    StoredLog,
)
from services.gateway.http.route import ERRORS, Route
from services.gateway.mirror.ingest_record import Scope
from services.gateway.usecase.bundle import UserCases

router = APIRouter(prefix="/api/v1", tags=["history"], route_class=Route, responses=ERRORS)
log = structlog.get_logger(__name__)

# Bounds the memory of one answer.
MAX_PAGE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """Selects rows, and whether to follow new ones."""

    follow: Annotated[bool, Query(description="Answer with server-sent events until the experiment has ended")] = False
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_ROWS)] = 1000
    after_id: Annotated[
        int, Query(alias="afterId", ge=0, le=model.INT64_MAX, description="Only rows with a greater id")
    ] = 0
    before_id: Annotated[
        int | None,
        Query(alias="beforeId", ge=1, le=model.INT64_MAX, description="Of logs: the last rows with a smaller id"),
    ] = None
    resume_id: Annotated[int, Header(alias="Last-Event-ID", ge=0, le=model.INT64_MAX)] = 0

    @property
    def last_id(self) -> int:
        return max(self.after_id, self.resume_id)


Attempt = Annotated[
    int | None,
    Query(
        ge=ALL_ATTEMPTS,
        le=2**31 - 1,
        description="One attempt of each trial, or 0 for all; when absent, newer attempts replace older ones",
    ),
]

MaxPoints = Annotated[
    int,
    Query(
        alias="maxDatapoints",
        ge=MIN_SERIES_POINTS,
        le=MAX_SERIES_POINTS,
        description="A longer series keeps its first and last value, and the extremes of equal parts",
    ),
]


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """Selects a metric, and the number of points."""

    metric: Annotated[str, Query(description="The metric's name, such as loss")]
    group: Annotated[str, Query(description="The name under which it was reported")] = "training"
    max_points: MaxPoints = 1000
    attempt: Attempt = None


Wanted = Annotated[Window, Depends()]
Group = Annotated[str, Query(description="training, validation or any other that was reported; all when absent")]


@router.get("/experiments/{experiment_id}/events", response_class=EventSourceResponse)
async def watch_experiment(experiment_id: model.Int64, cases: Cases) -> EventSourceResponse:
    """Streams the experiment's view at once and after each change, until it has ended."""
    await cases.experiments.view(experiment_id)
    return _stream(_view_events(cases.experiments.watch(experiment_id)))


@router.get("/experiments/{experiment_id}/logs", response_model=LogPage)
async def experiment_logs(
    experiment_id: model.Int64, cases: Cases, window: Wanted, selection: Selected
) -> LogPage | EventSourceResponse:
    return await _logs(cases, Scope(experiment_id), window, selection)


Time = Annotated[log_model.ZonedTime, Query(description="A time with a zone")]


@router.get("/experiments/{experiment_id}/logs/place")
async def experiment_log_place(experiment_id: model.Int64, cases: Cases, time: Time) -> LogPlace:
    """Finds the line from which on the log is of a time or later."""
    return LogPlace(id=await cases.records.find_log_time(Scope(experiment_id), time.timestamp()))


@router.get("/trials/{trial_id}/logs/place")
async def trial_log_place(trial_id: str, cases: Cases, time: Time) -> LogPlace:
    """Finds the line from which on the log is of a time or later."""
    scope = Scope(experiment_id_of(trial_id), trial_id)
    return LogPlace(id=await cases.records.find_log_time(scope, time.timestamp()))


@router.get("/trials/{trial_id}/logs", response_model=LogPage)
async def trial_logs(trial_id: str, cases: Cases, window: Wanted, selection: Selected) -> LogPage | EventSourceResponse:
    scope = Scope(experiment_id_of(trial_id), trial_id)
    return await _logs(cases, scope, window, selection)


@router.get("/experiments/{experiment_id}/metrics", response_model=MetricsPage)
async def experiment_metrics(
    experiment_id: model.Int64,
    cases: Cases,
    window: Wanted,
    group: Group = "",
    *,
    attempt: Attempt = None,
) -> MetricsPage | EventSourceResponse:
    return await _metrics(cases, Scope(experiment_id, group=group, attempt=attempt), window)


@router.get("/trials/{trial_id}/metrics", response_model=MetricsPage)
async def trial_metrics(
    trial_id: str, cases: Cases, window: Wanted, group: Group = "", *, attempt: Attempt = None
) -> MetricsPage | EventSourceResponse:
    return await _metrics(cases, Scope(experiment_id_of(trial_id), trial_id, group, attempt), window)


@router.get("/trials/{trial_id}/metrics/series", response_model=MetricSeries)
async def trial_series(trial_id: str, cases: Cases, wanted: Annotated[SeriesQuery, Depends()]) -> MetricSeries:
    """Returns one metric of a trial, in at most so many points."""
    scope = Scope(experiment_id_of(trial_id), trial_id, wanted.group, wanted.attempt)
    series = await cases.records.series(scope, wanted.metric, wanted.max_points)
    return MetricSeries.model_validate(series)


async def _logs(
    cases: UserCases, scope: Scope, window: Window, selection: LineSelection
) -> LogPage | EventSourceResponse:
    # Checked before following too: an event stream that has begun can no longer answer with an error.
    wanted = selection.to_filter()
    await cases.records.check_logs(scope, wanted)
    if window.before_id is not None:
        return await _logs_before(cases, scope, window, selection)
    # A client that resumes has the tail already; with the tail of now it would miss lines that were stored meanwhile.
    tail = 0 if window.resume_id else selection.tail
    if window.follow:
        pages = cases.records.logs(scope, tail=tail, after_id=window.last_id, follow=True, wanted=wanted)
        return _stream(_log_events(pages))
    page = await cases.records.log_page(scope, window.last_id, window.limit, tail=tail, wanted=wanted)
    next_after_id = None if page.is_last else page.last_id
    return LogPage.model_validate({"logs": page.rows, "next_after_id": next_after_id})


async def _logs_before(cases: UserCases, scope: Scope, window: Window, selection: LineSelection) -> LogPage:
    if window.follow or window.last_id or selection.tail:
        raise invalid("logs.before", "beforeId excludes follow, afterId and tail; give beforeId alone")
    rows, next_id = await cases.records.logs_before(
        scope, window.before_id or 0, window.limit, wanted=selection.to_filter()
    )
    return LogPage.model_validate({"logs": rows, "next_after_id": None, "next_before_id": next_id})


async def _metrics(cases: UserCases, scope: Scope, window: Window) -> MetricsPage | EventSourceResponse:
    await cases.records.confirm(scope)
    cases.records.check(scope)
    if window.follow:
        pages = cases.records.metrics(scope, after_id=window.last_id, follow=True)
        return _stream(_metrics_events(pages))
    page = await cases.records.metrics_page(scope, window.last_id, window.limit)
    next_after_id = None if page.is_last else page.rows[-1].id
    return MetricsPage.model_validate({"metrics": page.rows, "next_after_id": next_after_id})


async def _view_events(views: AsyncIterator[ExperimentView]) -> AsyncIterator[ServerSentEvent]:
    async for view in views:
        yield ServerSentEvent(_json(model.ExperimentView.model_validate(view)), event="experiment")


async def _log_events(pages: AsyncIterator[log_scan.LogPage]) -> AsyncIterator[ServerSentEvent]:
    async for page in pages:
        for row in page.rows:
            yield ServerSentEvent(_json(StoredLog.model_validate(row)), event="log", id=str(row.id))


async def _metrics_events(pages: AsyncIterator[Sequence[StoredMetrics]]) -> AsyncIterator[ServerSentEvent]:
    async for page in pages:
        for row in page:
            yield ServerSentEvent(_json(log_model.StoredMetrics.model_validate(row)), event="metrics", id=str(row.id))


def _stream(events: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    return EventSourceResponse(_until_end(events))


async def _until_end(events: AsyncIterator[ServerSentEvent]) -> AsyncIterator[ServerSentEvent]:
    """Appends `end` to a complete stream. Without `end`, a client knows that it has to connect again: the answer has
    begun and can carry no error."""
    try:
        async for event in events:
            yield event
    except GanglineError as error:
        log.info("an event stream ended early", reason=error.message)
        return
    yield ServerSentEvent("{}", event="end")


def _json(answer: Answer) -> str:
    return answer.model_dump_json(by_alias=True)
