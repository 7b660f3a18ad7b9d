"""Routes of running and waiting work: tasks, job queues, explanations, and the planner's input."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from services.gateway.http import model, queue_model
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase import queue_preview

router = APIRouter(prefix="/api/v1", route_class=Route, responses=ERRORS)


@router.get("/tasks", tags=["queue"])
async def list_tasks(
    cases: Cases,
    *,
    experimentId: model.Int64 = 0,  # noqa: N803  the API's names are in camel case
    workspace: str = "",
    project: str = "",
) -> model.TaskList:
    """Lists running and waiting tasks, each waiting one with its reason. experimentId: only those of this
    experiment. workspace, project: only those in it, by name."""
    project_ids = await cases.projects.select(workspace, project)
    return model.TaskList.model_validate({"tasks": await cases.queue.list_tasks(experimentId, project_ids)})


@router.get("/job-queues", tags=["queue"])
async def list_jobs(
    cases: Cases,
    resourcePool: str = "",  # noqa: N803  as above
) -> queue_model.JobList:
    """Lists jobs that hold slots, the oldest first; then waiting ones, in the order in which their pool considers
    them."""
    tasks = await cases.queue.list_tasks()
    jobs = [queue_model.job_of(task) for task in tasks if resourcePool in ("", task.pool)]
    return queue_model.JobList(jobs=jobs)


@router.post("/job-queues", tags=["queue"])
async def update_queue(body: queue_model.UpdateJobQueue, cases: Cases) -> queue_model.ExperimentsChanged:
    """Changes priorities, weights and places; returns the changed experiments."""
    changed = [await cases.experiments.update(update.job_id, (update.change(),)) for update in body.updates]
    return queue_model.ExperimentsChanged.model_validate({"experiments": changed})


class PlannedStanding(Answer, record=queue_preview.PlannedStanding): ...


class PreviewDifference(Answer, record=queue_preview.Difference): ...


class PreviewAnswer(Answer, record=queue_preview.Preview):
    """Compares the planner's decisions on the present queue and on the changed one."""


@router.post("/job-queues/preview", tags=["queue"])
async def preview_queue(body: queue_model.QueueUpdate, cases: Cases) -> PreviewAnswer:
    """Shows what a change of priority, weight or place would start, stop and delay, and changes nothing. Each trial for
    which the planner decides otherwise has an entry."""
    return PreviewAnswer.model_validate(await cases.queue_preview.preview(body.job_id, body.change()))


@router.get("/jobs/{job_id}/explanation", tags=["queue"])
async def explain_job(job_id: str, cases: Cases) -> queue_model.Explanation:
    """Explains why an experiment (7) or a trial (7.1) waits, what would start it and when, or where it runs."""
    return queue_model.Explanation.model_validate(await cases.queue.explain(job_id))


@router.get("/snapshot", tags=["queue"], response_model=dict[str, Any])
async def get_snapshot(cases: Cases, pool: str = "") -> Response:
    """Returns the planner's present input, in the format of `gangline simulate`. pool: may be left out if there is only
    one."""
    snapshot_json = await cases.queue.snapshot(pool)
    return Response(snapshot_json, media_type="application/json")
