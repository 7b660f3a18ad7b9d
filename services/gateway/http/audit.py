"""Routes and JSON of the audit log, for administrators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from gangline.audit_csv import csv_of
from gangline.domain import audit
from gangline.domain.audit import MAX_FILTER_LENGTH, MAX_LIMIT, AuditFilter
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.log_model import ZonedTime
from services.gateway.http.model import INT64_MAX
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.bundle import UserCases
from services.gateway.usecase.shared.following import begin

router = APIRouter(prefix="/api/v1", tags=["audit"], route_class=Route, responses=ERRORS)

Text = Annotated[str, Query(max_length=MAX_FILTER_LENGTH)]


class AuditRecord(
    Answer,
    record=audit.AuditRecord,
    shows="id time=at actor_kind actor credential address surface action object_kind object_id workspace changes "
    "outcome request_id",
): ...


class AuditPage(Answer):
    records: list[AuditRecord]
    next: str  # `before` of the next page; empty at the end


class AuditQuery:
    """The filters of both routes."""

    def __init__(
        self,
        *,
        user: Text = "",
        action: Text = "",
        object: Text = "",
        since: ZonedTime | None = None,
        until: ZonedTime | None = None,
        outcome: Text = "",
        address: Text = "",
    ) -> None:
        begins = since.timestamp() if since is not None else 0.0
        ends = until.timestamp() if until is not None else 0.0
        self.wanted = AuditFilter(user, action, object, begins, ends, outcome, address)


@router.get("/audit")
async def list_audit(
    cases: Cases,
    query: Annotated[AuditQuery, Depends()],
    limit: Annotated[int, Query(ge=0, le=INT64_MAX)] = 0,
    before: Annotated[str, Query(max_length=100)] = "",
) -> AuditPage:
    """Lists what was changed and what was refused, the newest first. user: who did it. action: such as
    experiment.kill, or experiment for all actions on experiments. object: KIND or KIND/ID, such as experiment/7.
    outcome: done, repeated, failed, or the code of an error. limit: 100 when absent, at most 1000. before: `next` of
    the page before."""
    records, following = await cases.audit.list(query.wanted, min(limit, MAX_LIMIT + 1), before)
    return AuditPage.model_validate({"records": records, "next": following})


@router.get("/audit.csv", response_class=StreamingResponse, responses={200: {"content": {"text/csv": {}}}})
async def download_audit(cases: Cases, query: Annotated[AuditQuery, Depends()]) -> StreamingResponse:
    """Returns all records that match as CSV, the newest first. Cells that a spreadsheet would take for a formula begin
    with an apostrophe."""
    lines = await begin(_lines(cases, query.wanted))
    headers = {"content-disposition": 'attachment; filename="audit.csv"', "cache-control": "no-store"}
    return StreamingResponse(lines, media_type="text/csv", headers=headers)


async def _lines(cases: UserCases, wanted: AuditFilter) -> AsyncIterator[str]:
    before, is_first = "", True
    while is_first or before:
        records, before = await cases.audit.list(wanted, MAX_LIMIT, before)
        yield csv_of(records, with_header=is_first)
        is_first = False
