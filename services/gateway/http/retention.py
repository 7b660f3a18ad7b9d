"""Routes for what an experiment keeps: the checkpoints that a policy would delete, and the days of its logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gangline.domain.experiment import RetentionChange
from services.gateway.http import model
from services.gateway.http.admission import Cases
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", route_class=Route, responses=ERRORS)


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
