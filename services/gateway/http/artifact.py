"""Routes of what an experiment leaves beside metrics: output files of its trials, traces, and the policies that delete
checkpoints and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import Field

from gangline.domain import trace
from gangline.domain.experiment import RetentionChange
from services.gateway.http import model
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.shared.following import begin

router = APIRouter(prefix="/api/v1", route_class=Route, responses=ERRORS)


class ProfileTrial(model.Body, example={"batches": 10}):
    batches: int = Field(default=10, description=f"1 to {trace.MOST_BATCHES}")


class TraceOrder(Answer, record=trace.TraceOrder): ...


class TraceAnswer(Answer):
    order: TraceOrder


@router.post("/trials/{trial_id}/profile", tags=["trials"])
async def profile_trial(trial_id: str, body: ProfileTrial, cases: Cases) -> TraceAnswer:
    """Has the trial's next batches traced with torch's profiler; its log says when the trace begins and where it is."""
    order = await cases.experiments.profile_trial(trial_id, body.batches)
    return TraceAnswer(order=TraceOrder.model_validate(order))


class OutputFile(Answer):
    """Describes a file."""

    path: str  # path below the output folder
    num_bytes: int


class OutputList(Answer):
    files: list[OutputFile]


@router.get("/trials/{trial_id}/output", tags=["trials"])
async def list_output(trial_id: str, cases: Cases) -> OutputList:
    """Lists the files that the trial's processes wrote into $GANGLINE_OUTPUT_DIR. Files are kept when the processes
    end."""
    sizes = await cases.outputs.list(trial_id)
    return OutputList(files=[OutputFile(path=path, num_bytes=num_bytes) for path, num_bytes in sizes.items()])


@router.get("/trials/{trial_id}/output/{path:path}", tags=["trials"], response_class=StreamingResponse)
async def get_output_file(trial_id: str, path: str, cases: Cases) -> StreamingResponse:
    """Returns one file of the trial's output."""
    chunks = await begin(cases.outputs.read_file(trial_id, path))
    return StreamingResponse(chunks, media_type="application/octet-stream")


@dataclass(frozen=True, slots=True)
class PolicyQuery:
    """A policy of checkpoints; an absent value stays as the experiment has it."""

    save_experiment_best: Annotated[model.Int64 | None, Query(alias="saveExperimentBest")] = None
    save_trial_best: Annotated[model.Int64 | None, Query(alias="saveTrialBest")] = None
    save_trial_latest: Annotated[model.Int64 | None, Query(alias="saveTrialLatest")] = None


class RetainLogs(model.Body, example={"numDays": 30}):
    num_days: int  # days after the end of each trial; -1 keeps the logs for ever


@router.get("/experiments/{experiment_id}/preview-gc", tags=["checkpoints"])
async def preview_gc(
    experiment_id: model.Int64, cases: Cases, policy: Annotated[PolicyQuery, Depends()]
) -> model.CheckpointList:
    """Lists the checkpoints that a change of the policy would delete. It changes nothing."""
    change = RetentionChange(policy.save_experiment_best, policy.save_trial_best, policy.save_trial_latest)
    checkpoints = await cases.checkpoints.preview_retention(experiment_id, change)
    return model.CheckpointList.model_validate({"checkpoints": checkpoints})


@router.put("/experiments/{experiment_id}/retain_logs", tags=["experiments"])
async def retain_logs(experiment_id: model.Int64, body: RetainLogs, cases: Cases) -> model.ExperimentAnswer:
    """Changes for how many days the logs of the experiment are kept, also after its end."""
    change = RetentionChange(log_retention_days=body.num_days)
    experiment = await cases.experiments.update(experiment_id, (change,))
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))
