"""Routes and JSON of the records of tensor fusion."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from gangline.errors import not_found
from services.gateway.http.admission import Cases
from services.gateway.http.model import Answer, Instant
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["fusion"], route_class=Route, responses=ERRORS)


class FusionRecord(Answer):
    """Describes a tuning result. bucket_bytes: the caps of the buckets; empty when torch's default is best. gain_ratio:
    the default's step time over the tuned one's. bytes_per_second: 0 for a link whose bandwidth had no measurable
    effect."""

    key: str
    summary: str
    bucket_bytes: list[int]
    gain_ratio: float
    default_step_seconds: float
    tuned_step_seconds: float
    num_pairs: int
    steps: int
    alpha_seconds: float
    bytes_per_second: float
    batch_size: int
    flags: str
    total_bytes: int
    trial_id: str
    time: Instant = Field(validation_alias="created_at")


class FusionList(Answer):
    records: list[FusionRecord]


@router.get("/fusion")
async def list_fusion(cases: Cases) -> FusionList:
    return FusionList.model_validate({"records": cases.fusion.list()})


@router.delete("/fusion/{key}", status_code=204)
async def forget_fusion(key: str, cases: Cases) -> None:
    """Deletes a record, so that the next trial of this kind tunes anew."""
    if not await cases.fusion.forget(key):
        raise not_found("fusion.not_found", f"nothing is remembered under {key}; list it with: gangline fusion list")
