"""Routes and JSON of quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from gangline.domain.quota import QuotaChange, QuotaView
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.model import Body, Int64
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["quotas"], route_class=Route, responses=ERRORS)

Kind = Annotated[str, Path(description="user or workspace")]
# A workspace's name may hold slashes.
Subject = Annotated[str, Path(description="The name of the user or of the workspace")]


class Quota(
    Answer,
    record=QuotaView,
    shows="kind=subject.kind name max_slots held_slots left_slots slot_hours used_hours left_hours month changed_at "
    "changed_by",
):
    """Describes a quota with its use; limits are null where there are none."""


class QuotaAnswer(Answer):
    quota: Quota


class QuotaList(Answer):
    quotas: list[Quota]


class QuotaBody(Body, example={"maxSlots": 8, "slotHours": 500.0}):
    """Absent fields stay as they are; a negative value lifts the limit."""

    max_slots: Int64 | None = None
    slot_hours: float | None = None


@router.get("/quotas")
async def list_quotas(cases: Cases) -> QuotaList:
    """Lists quotas with their use. Administrators see all; a user sees the own one, and those of workspaces."""
    return QuotaList.model_validate({"quotas": cases.quotas.list_quotas()})


@router.get("/quotas/{kind}/{subject:path}")
async def get_quota(kind: Kind, subject: Subject, cases: Cases) -> QuotaAnswer:
    return QuotaAnswer(quota=Quota.model_validate(cases.quotas.find(kind, subject)))


@router.put("/quotas/{kind}/{subject:path}")
async def put_quota(kind: Kind, subject: Subject, body: QuotaBody, cases: KeyedCases) -> QuotaAnswer:
    """Sets limits; for administrators. What runs goes on when a limit is lowered, and nothing new starts."""
    view = await cases.quotas.set(kind, subject, QuotaChange(body.max_slots, body.slot_hours))
    return QuotaAnswer(quota=Quota.model_validate(view))


@router.delete("/quotas/{kind}/{subject:path}", status_code=204)
async def delete_quota(kind: Kind, subject: Subject, cases: KeyedCases) -> None:
    """Removes both limits; for administrators."""
    await cases.quotas.remove(kind, subject)
