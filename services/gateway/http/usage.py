"""The route of usage: the slots that were held in a period."""

from __future__ import annotations

import time
from datetime import UTC
from typing import Annotated

from fastapi import APIRouter, Query

from gangline.domain.state import UsageGroup
from gangline.errors import invalid
from gangline.when import parse_when
from services.gateway.http import model
from services.gateway.http.admission import Caller, Cases
from services.gateway.http.route import Route

router = APIRouter(prefix="/api/v1", tags=["cluster"], route_class=Route)


class UsageEntry(model.Answer):
    key: str
    gpu_slot_seconds: float
    cpu_slot_seconds: float
    num_allocations: int


class UsageReport(model.Answer):
    since: model.Instant
    until: model.Instant
    by: UsageGroup
    entries: list[UsageEntry]


@router.get("/usage")
async def get_usage(
    caller: Caller,
    cases: Cases,
    since: Annotated[str, Query(description="A date, a time, or an age such as 7d; UTC where it names no zone")],
    until: Annotated[str, Query(description="The same; now when absent")] = "",
    by: Annotated[str, Query(description="owner, pool or experiment")] = "owner",
) -> UsageReport:
    """Adds up the slots that were held in a period, the largest first. What still runs counts until now."""
    now = time.time()
    begin = parse_when(since, now, "since", UTC)
    end = parse_when(until, now, "until", UTC) if until else 0.0
    if by.upper() not in UsageGroup.__members__:
        raise invalid("usage.by", f"by is {by!r}; give owner, pool or experiment")
    report = await cases.usage.report(caller, begin, end, UsageGroup[by.upper()])
    return UsageReport.model_validate(report)
