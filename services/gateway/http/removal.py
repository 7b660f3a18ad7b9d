"""Routes that archive and delete experiments."""

from __future__ import annotations

import uuid

from fastapi import APIRouter

from services.gateway.http import model
from services.gateway.http.admission import Caller, Cases
from services.gateway.http.route import Route


class DeletionAnswer(model.Answer):
    experiment: model.Experiment | None


router = APIRouter(prefix="/api/v1/experiments/{experiment_id}", tags=["experiments"], route_class=Route)


@router.delete("")
async def delete_experiment(experiment_id: model.Int64, caller: Caller, cases: Cases) -> DeletionAnswer:
    """Deletes an ended experiment with its checkpoints, TensorBoard files, logs, metrics, and its code where no other
    experiment has the same. `experiment` is null once it has been deleted. A second call changes nothing."""
    experiment = await cases.removals.delete(caller, str(uuid.uuid4()), experiment_id)
    return DeletionAnswer.model_validate({"experiment": experiment})


@router.post("/archive")
async def archive_experiment(experiment_id: model.Int64, caller: Caller, cases: Cases) -> model.ExperimentAnswer:
    """Takes an ended experiment out of listings; nothing else changes."""
    experiment = await cases.removals.archive(caller, str(uuid.uuid4()), experiment_id)
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))


@router.post("/unarchive")
async def unarchive_experiment(experiment_id: model.Int64, caller: Caller, cases: Cases) -> model.ExperimentAnswer:
    """Shows an archived experiment in listings again."""
    experiment = await cases.removals.unarchive(caller, str(uuid.uuid4()), experiment_id)
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))
