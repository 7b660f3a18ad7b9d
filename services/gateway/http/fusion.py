"""Routes and JSON of the records of tensor fusion."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gangline.domain import fusion
from gangline.errors import not_found
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["fusion"], route_class=Route, responses=ERRORS)


class FusionRecord(
    Answer,
    record=fusion.FusionRecord,
    shows="key summary bucket_bytes gain_ratio default_step_seconds tuned_step_seconds num_pairs steps alpha_seconds "
    "bytes_per_second batch_size flags total_bytes trial_id time=created_at",
): ...


class FusionList(Answer):
    records: list[FusionRecord]


@router.get("/fusion")
async def list_fusion(
    cases: Cases,
    trial_id: Annotated[str, Query(alias="trialId", description="Only records that this trial measured")] = "",
) -> FusionList:
    """Lists the remembered sizes of buckets."""
    records = [record for record in cases.fusion.list() if trial_id in ("", record.trial_id)]
    return FusionList.model_validate({"records": records})


@router.delete("/fusion/{key}", status_code=204)
async def forget_fusion(key: str, cases: Cases) -> None:
    """Deletes a record, so that the next trial of this kind tunes anew."""
    if not await cases.fusion.forget(key):
        raise not_found("fusion.not_found", f"nothing is remembered under {key}; list it with: gangline fusion list")
