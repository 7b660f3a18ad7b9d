"""Routes of usage: the slots that were held in a period, and by day or month as Determined's REST API reports them."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from csv import DictWriter
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from gangline.domain import usage
from gangline.domain.state import UsageGroup
from gangline.errors import invalid
from gangline.when import parse_when
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.bundle import UserCases

router = APIRouter(prefix="/api/v1", tags=["cluster"], route_class=Route, responses=ERRORS)

DAILY = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY"
MONTHLY = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY"
# Days or months in one answer; each is a report of its own.
MAX_PERIODS = 100


class UsageEntry(Answer, record=usage.UsageEntry, shows="key gpu_slot_seconds cpu_slot_seconds num_allocations"): ...


class UsageReport(Answer, record=usage.UsageReport): ...


class ResourceEntry(Answer):
    """Describes one day or month."""

    period_start: date
    period: str
    seconds: float  # seconds of all slots together, of all kinds
    by_username: Mapping[str, float]
    by_resource_pool: Mapping[str, float]


class ResourceEntries(Answer):
    resource_entries: list[ResourceEntry]


@router.get("/usage")
async def get_usage(
    cases: Cases,
    since: Annotated[str, Query(description="A date, a time, or an age such as 7d; UTC where it names no zone")],
    until: Annotated[str, Query(description="The same; now when absent")] = "",
    by: Annotated[str, Query(description="owner, pool, experiment, project or workspace")] = "owner",
) -> UsageReport:
    """Adds up the slots that were held in a period, the largest first. What still runs counts until now."""
    now = time.time()
    begin = parse_when(since, now, "since", UTC)
    end = parse_when(until, now, "until", UTC) if until else 0.0
    if by.upper() not in UsageGroup.__members__:
        raise invalid("usage.by", f"by is {by!r}; give {', '.join(UsageGroup).lower()}")
    report = await cases.usage.report(begin, end, UsageGroup[by.upper()])
    return UsageReport.model_validate(report)


@router.get("/resources/allocation/aggregated")
async def get_aggregated(
    cases: Cases,
    start: Annotated[date, Query(alias="startDate", description="The first day, in UTC")],
    end: Annotated[date, Query(alias="endDate", description="The last day, or a day of the last month")],
    period: Annotated[str, Query(description=f"{DAILY} or {MONTHLY}")] = DAILY,
) -> ResourceEntries:
    """Adds up each day or month, oldest first; days that have not begun are left out."""
    entries: list[ResourceEntry] = []
    async for first, (by_owner, by_pool) in _add_up(cases, _periods(start, end, period), ("owner", "pool")):
        seconds = sum(by_owner.values())
        entries.append(
            ResourceEntry(
                period_start=first, period=period, seconds=seconds, by_username=by_owner, by_resource_pool=by_pool
            )
        )
    return ResourceEntries(resource_entries=entries)


class UsagePoint(Answer):
    """The slots that one key held in one day or month."""

    period_start: date
    key: str
    slot_seconds: float


class UsageHistory(Answer):
    points: list[UsagePoint]  # by period, the largest first


@router.get("/usage/history", response_model=UsageHistory, responses={200: {"content": {"text/csv": {}}}})
async def get_usage_history(
    cases: Cases,
    start: Annotated[date, Query(alias="startDate", description="The first day, in UTC")],
    end: Annotated[date, Query(alias="endDate", description="The last day, or a day of the last month")],
    by: Annotated[str, Query(description="owner, pool, experiment, project, workspace or label")] = "owner",
    *,
    monthly: Annotated[bool, Query(description="Months in place of days")] = False,
    csv: Annotated[bool, Query(description="Answer with CSV in place of JSON")] = False,
) -> Response:
    """Adds up each day or month by a key. An experiment with several labels counts for each of them."""
    if by != "label" and by.upper() not in UsageGroup.__members__:
        raise invalid("usage.by", f"by is {by!r}; give {', '.join(UsageGroup).lower()}, label")
    points: list[UsagePoint] = []
    periods = _periods(start, end, MONTHLY if monthly else DAILY)
    async for first, (seconds_by_key,) in _add_up(cases, periods, (by,)):
        largest_first = sorted(seconds_by_key.items(), key=lambda item: -item[1])
        points += [UsagePoint(period_start=first, key=key, slot_seconds=seconds) for key, seconds in largest_first]
    if csv:
        return Response(_csv(points, by), media_type="text/csv")
    document = UsageHistory(points=points).model_dump_json(by_alias=True)
    return Response(document, media_type="application/json")


def _csv(points: Iterable[UsagePoint], by: str) -> str:
    """Returns the rows with a heading. A key that a spreadsheet would take for a formula gets an apostrophe."""
    text = io.StringIO()
    writer = DictWriter(text, ("period_start", by, "slot_seconds"))
    writer.writeheader()
    for point in points:
        key = f"'{point.key}" if point.key[:1] in ("=", "+", "-", "@", "\t", "\r") else point.key
        writer.writerow({"period_start": point.period_start, by: key, "slot_seconds": f"{point.slot_seconds:.3f}"})
    return text.getvalue()


async def _add_up(
    cases: UserCases, periods: Sequence[tuple[date, date]], keys: Sequence[str]
) -> AsyncIterator[tuple[date, list[Mapping[str, float]]]]:
    """Yields the first day of each period with the slot seconds by each of these keys: "label", or a UsageGroup."""
    for first, after in periods:
        yield first, [await _seconds_by(cases, _midnight(first), _midnight(after), key) for key in keys]


async def _seconds_by(cases: UserCases, since: float, until: float, key: str) -> Mapping[str, float]:
    if key == "label":
        return await cases.usage.report_by_label(since, until)
    report = await cases.usage.report(since, until, UsageGroup[key.upper()])
    return {entry.key: entry.slot_seconds for entry in report.entries}


def _periods(start: date, end: date, period: str) -> list[tuple[date, date]]:
    """Returns the first day of each period that has begun, and the day after its last one. Raises GanglineError
    `usage.period`, `usage.periods`."""
    if period not in (DAILY, MONTHLY):
        raise invalid("usage.period", f"period is {period!r}; give {DAILY} or {MONTHLY}")
    if end < start:
        raise invalid("usage.period", f"endDate {end} is before startDate {start}; give a later one")
    periods: list[tuple[date, date]] = []
    today = datetime.now(UTC).date()
    first = start.replace(day=1) if period == MONTHLY else start
    while first <= min(end, today):
        if len(periods) == MAX_PERIODS:
            raise invalid("usage.periods", f"there are more than {MAX_PERIODS} periods; ask for fewer at once")
        # 32 days after the first of a month lie in the next month.
        after = (first + timedelta(days=32)).replace(day=1) if period == MONTHLY else first + timedelta(days=1)
        periods.append((first, after))
        first = after
    return periods


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
