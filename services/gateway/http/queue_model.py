"""The JSON of waiting work and of operators' changes: jobs, their explanations, queues, agents and slots.

A job is one trial that holds slots or waits for them, under the names that Determined's job queue has for it.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gangline.domain import explanation
from gangline.domain.experiment import QueueMove, ResourceChange, RetentionChange, TextChange
from gangline.domain.state import State
from gangline.domain.task import Task
from gangline.errors import invalid
from services.gateway.http.answer import Answer, Instant
from services.gateway.http.model import INT64_MAX, Agent, Body, Experiment, Reason, Slot, label_change

JobId = Annotated[
    int, Field(ge=1, le=INT64_MAX, strict=False, description="The experiment's id; a number, or the same as text.")
]


class ResourcePatch(Body):
    """Changes resources; absent fields stay as they are."""

    # 0 lifts the cap. If it is below what the experiment holds, its newest trials checkpoint and wait again.
    max_slots: int | None = None
    when_free: bool = False  # with maxSlots: no trial is stopped
    weight: float | None = None  # share of a pool of type fair_share
    priority: int | None = None  # 1 (most urgent) to 99


class CheckpointStoragePatch(Body):
    """Changes how many checkpoints are kept. Those that the new policy does not keep are deleted."""

    save_experiment_best: int | None = None  # number of best checkpoints of the experiment
    save_trial_best: int | None = None  # number of best checkpoints of each trial
    save_trial_latest: int | None = None  # number of latest checkpoints of each trial


class RetentionPolicyPatch(Body):
    """Changes for how long logs and metrics are kept after the end of a trial."""

    log_retention_days: int | None = None  # -1 keeps logs for ever
    metric_retention_days: int | None = None  # -1 keeps metrics for ever


class PatchExperiment(Body, example={"name": "digits, long", "labels": ["night"]}):
    """Changes resources, what the experiment keeps, or texts and labels. Absent fields stay."""

    resources: ResourcePatch | None = None
    checkpoint_storage: CheckpointStoragePatch | None = None
    retention_policy: RetentionPolicyPatch | None = None
    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[str] | None = None  # all labels that the experiment has then
    add_labels: list[str] = Field(default_factory=list)  # a label that is there already stays
    remove_labels: list[str] = Field(default_factory=list)  # a label that is not there is no error

    def change(self) -> ResourceChange | TextChange | RetentionChange:
        """Returns the only change. Raises GanglineError `request.one_change`."""
        labels = label_change(self.labels, self.add_labels, self.remove_labels)
        texts = TextChange(self.name, self.description, self.notes, **labels)
        changes: list[ResourceChange | TextChange | RetentionChange] = []
        if texts != TextChange():
            changes.append(texts)
        if self.resources is not None:
            wanted = self.resources
            changes.append(ResourceChange(wanted.priority, wanted.weight, wanted.max_slots, wanted.when_free))
        if self.checkpoint_storage is not None or self.retention_policy is not None:
            storage = self.checkpoint_storage or CheckpointStoragePatch()
            policy = self.retention_policy or RetentionPolicyPatch()
            changes.append(RetentionChange(**storage.model_dump(), **policy.model_dump()))
        if len(changes) != 1:
            raise invalid(
                "request.one_change",
                "change either resources, or checkpointStorage and retentionPolicy, or name, description, notes and "
                "labels",
            )
        return changes[0]


class QueueUpdate(Body, example={"jobId": 3, "aheadOf": 1}):
    """Requests exactly one change."""

    job_id: JobId
    priority: int | None = None  # 1 (most urgent) to 99
    weight: float | None = None  # share of a pool of type fair_share
    ahead_of: JobId | None = None  # another experiment of the same pool
    behind_of: JobId | None = None  # another experiment of the same pool

    @model_validator(mode="after")
    def _is_one_change(self) -> Self:
        given = [name for name in ("priority", "weight", "ahead_of", "behind_of") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of priority, weight, aheadOf and behindOf")
        return self

    def change(self) -> ResourceChange | QueueMove:
        if self.ahead_of is not None:
            return QueueMove(self.ahead_of)
        if self.behind_of is not None:
            return QueueMove(self.behind_of, is_behind=True)
        return ResourceChange(self.priority, self.weight)


class UpdateJobQueue(Body, example={"updates": [{"jobId": 1, "priority": 10}]}):
    """Applies the changes one after another, in this order, up to the first that is refused."""

    updates: list[QueueUpdate] = Field(min_length=1)


class Disable(Body, example={"drain": True}):
    """Disables an agent or a slot."""

    drain: bool = False  # lets work that runs there continue to its end


class JobSummary(Answer):
    """Summarises a job."""

    state: State
    jobs_ahead: int  # requests of its pool that are considered before it; 0 for a job that holds slots


class Job(Answer):
    """Describes a trial that holds slots or waits for them."""

    summary: JobSummary
    job_id: str  # id of its experiment
    trial_id: str
    name: str
    username: str  # user who created the experiment
    resource_pool: str
    # priority of its experiment, else of its pool; null if it holds slots and no scheduler has reported the pool's yet
    priority: int | None
    weight: float  # share of a pool of type fair_share
    requested_slots: int
    allocated_slots: int  # 0 while it waits
    submission_time: Instant  # time of the request, else of the trial's creation
    queue_place: int  # from 1 within its pool; 0 if it holds slots or is paused, and while no scheduler leads
    reason: Reason | None  # why it waits; null if it does not, and while no scheduler leads
    eta_time: Instant  # estimated time of its start; null if not known


class JobList(Answer):
    jobs: list[Job]


class ExperimentsChanged(Answer):
    experiments: list[Experiment]


class Blocker(Answer, record=explanation.Blocker): ...


class TaskExplanation(Answer, record=explanation.TaskExplanation): ...


class Explanation(Answer, record=explanation.Explanation):
    """Explains a wait."""


class AgentAnswer(Answer):
    agent: Agent


class SlotAnswer(Answer):
    slot: Slot


def job_of(task: Task) -> Job:
    held = task.allocation.num_slots if task.allocation is not None else 0
    document: dict[str, Any] = {
        "summary": {"state": task.trial.state, "jobs_ahead": max(0, task.queue_place - 1)},
        "job_id": str(task.trial.experiment_id),
        "trial_id": task.trial.id,
        "name": task.experiment_name,
        "username": task.owner,
        "resource_pool": task.pool,
        "priority": task.priority,
        "weight": task.weight,
        "requested_slots": task.num_slots,
        "allocated_slots": held,
        "submission_time": task.submitted_at,
        "queue_place": task.queue_place,
        "reason": task.reason,
        "eta_time": task.reason.eta_at if task.reason is not None else None,
    }
    return Job.model_validate(document)
