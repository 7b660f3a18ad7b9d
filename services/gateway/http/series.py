"""Routes of charts: several metrics of several trials with few points each, and the names of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic_core import to_json

from gangline.domain.history import MetricSeries
from services.gateway.history.attempt import BatchRange
from services.gateway.http import model
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.history import Attempt, MaxPoints
from services.gateway.http.page import Offset
from services.gateway.http.route import ERRORS, Route
from services.gateway.table.table import show_time

router = APIRouter(prefix="/api/v1", tags=["history"], route_class=Route, responses=ERRORS)

TrialIds = Annotated[tuple[str, ...], Query(alias="trialIds", description="Up to 100 trials; repeat the parameter")]


@dataclass(frozen=True, slots=True)
class ChartQuery:
    """Selects metrics of trials, and the number of points of each."""

    trial_ids: TrialIds = ()
    metrics: Annotated[
        tuple[str, ...], Query(description="GROUP/NAME, such as validation/accuracy; training if there is no group")
    ] = ()
    max_points: MaxPoints = 500
    first: Annotated[int, Query(alias="fromBatch", ge=0, le=model.INT64_MAX, description="The first batch")] = 0
    last: Annotated[
        int | None, Query(alias="toBatch", ge=0, le=model.INT64_MAX, description="The last batch; no end if absent")
    ] = None
    attempt: Attempt = None


class ChartSeries(Answer):
    """Holds one metric of a trial in columns of equal length, in the order in which it was reported."""

    trial_id: str
    group: str
    metric: str
    batches: list[int]
    times: list[float]  # seconds since 1970
    values: list[float]
    num_values: int  # number of values in the range, of which the columns have some
    num_nonfinite: int  # number of values that are infinite or NaN, which are never in the columns
    last_time: str | None  # time of the last point; null without one


class ChartAnswer(Answer):
    series: list[ChartSeries]


class MetricName(Answer):
    group: str
    name: str


class MetricNames(Answer):
    """Lists metrics by group and name."""

    metrics: list[MetricName]
    total: int


@router.get("/metrics/series", response_model=ChartAnswer)
async def read_charts(cases: Cases, wanted: Annotated[ChartQuery, Depends()]) -> Response:
    """Returns metrics of up to 100 trials, each in at most so many points, of a range of batches or of all."""
    metrics = [_split(text) for text in wanted.metrics]
    listed = await cases.records.many_series(
        tuple(dict.fromkeys(wanted.trial_ids)),
        metrics,
        wanted.max_points,
        attempt=wanted.attempt,
        batch_range=BatchRange(wanted.first, wanted.last),
    )
    return Response(to_json({"series": [_columns(series) for series in listed]}), media_type="application/json")


@router.get("/metrics/names")
async def list_metric_names(
    cases: Cases,
    *,
    trial_ids: TrialIds = (),
    group: Annotated[str, Query(description="Only of this group")] = "",
    search: Annotated[str, Query(max_length=200, description="Only names that contain this, whatever the case")] = "",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=0, le=10_000)] = 100,
) -> MetricNames:
    """Lists the metrics that these trials have reported."""
    text = search.casefold()
    names = await cases.records.metric_names(tuple(dict.fromkeys(trial_ids)))
    wanted = [(of, name) for of, name in names if group in ("", of) and text in name.casefold()]
    page = wanted[offset : offset + limit]
    return MetricNames(metrics=[MetricName(group=of, name=name) for of, name in page], total=len(wanted))


def _split(text: str) -> tuple[str, str]:
    group, mark, name = text.partition("/")
    return (group, name) if mark else ("training", text)


def _columns(series: MetricSeries) -> dict[str, object]:
    points = series.points
    return {
        "trialId": series.trial_id,
        "group": series.group,
        "metric": series.metric,
        "batches": [point.batches_completed for point in points],
        "times": [point.at for point in points],
        "values": [point.value for point in points],
        "numValues": series.num_values,
        "numNonfinite": series.num_nonfinite,
        "lastTime": show_time(points[-1].at) if points else None,
    }
