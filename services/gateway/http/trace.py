"""Route and JSON of ordered traces of running trials."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from gangline.domain import trace
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.model import Body
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["trials"], route_class=Route, responses=ERRORS)


class ProfileTrial(Body, example={"batches": 10}):
    batches: int = Field(default=10, description=f"1 to {trace.MOST_BATCHES}")


class TraceOrder(Answer, record=trace.TraceOrder): ...


class TraceAnswer(Answer):
    order: TraceOrder


@router.post("/trials/{trial_id}/profile")
async def profile_trial(trial_id: str, body: ProfileTrial, cases: Cases) -> TraceAnswer:
    """Has the trial's next batches traced with torch's profiler; its log says when the trace begins and where it is."""
    order = await cases.experiments.profile_trial(trial_id, body.batches)
    return TraceAnswer(order=TraceOrder.model_validate(order))
