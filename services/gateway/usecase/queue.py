"""Running and waiting tasks, why they wait, and the planner's input."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from gangline.domain.access import Role, lacks_role
from gangline.domain.allocation import Allocation, Member, Request
from gangline.domain.experiment import Trial
from gangline.domain.explanation import Explanation, explain
from gangline.domain.history import Newest
from gangline.domain.id import parse_job_id
from gangline.domain.settled.reading import settle
from gangline.domain.settled.record import SettledResources
from gangline.domain.state import State
from gangline.domain.task import Task
from gangline.errors import GanglineError
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.history.reader import Reader
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import sight_of
from services.gateway.usecase.shared.pending import EXPLAIN_SECONDS, FETCH_SECONDS, Pending, Standing
from services.gateway.usecase.shared.view import Views, shown_trial

# In place of the name of an experiment that the caller does not see.
UNSEEN_NAME = "a request of another workspace"


class JobQueue:
    def __init__(
        self, caller: Caller, mirror: Watched, reader: Reader, leader: Leader, *, views: Views, pending: Pending
    ) -> None:
        self._caller = caller
        self._mirror = mirror
        self._reader = reader
        self._leader = leader
        self._views = views
        self._pending = pending

    async def list_tasks(
        self,
        experiment_id: int = 0,
        project_ids: Collection[int] | None = None,
        *,
        seconds: float = FETCH_SECONDS,
    ) -> list[Task]:
        """Returns tasks that hold slots, the oldest first; then waiting ones, in the order in which the planner
        considers them; then those of paused experiments. Of a task that the caller does not see, only the slots and
        the place are told, under a number that stands for its trial.

        experiment_id: 0 for all of them. project_ids: only those in these projects; None for all. seconds: limit of the
        call to the leader for the reasons. Raises GanglineError `experiment.not_found`.
        """
        if experiment_id:
            await self._views.confirm(experiment_id=experiment_id)
            self._views.experiment(experiment_id)
        return (await self._read(experiment_id, project_ids, seconds))[1]

    async def list_in_scope(self) -> tuple[Hashable, list[Task]]:
        """Returns all tasks, and the `Sight.key` by which they were chosen: the caller's roles may have changed while
        the leader was asked."""
        return await self._read(0, None, FETCH_SECONDS)

    async def _read(
        self, experiment_id: int, project_ids: Collection[int] | None, seconds: float
    ) -> tuple[Hashable, list[Task]]:
        waiting = [request.trial_id for request in self._mirror.state.whole.requests.all()]
        running = self._running()
        standings = await self._pending.standings(waiting, seconds) if waiting or running else {}
        # Nothing is awaited before all tasks are chosen, so one sight chooses them.
        scope = sight_of(self._mirror.state, self._caller.principal).key
        records: list[Allocation | Request] = [*running, *self._waiting(standings)]
        wanted = [
            record
            for record in records
            if experiment_id in (0, record.experiment_id) and self._is_in(record.experiment_id, project_ids)
        ]
        tasks = (self._task(record, standings.get(record.trial_id)) for record in wanted)
        return scope, await self._with_progress([task for task in tasks if task is not None])

    def _is_in(self, experiment_id: int, project_ids: Collection[int] | None) -> bool:
        if project_ids is None:
            return True
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        return experiment is not None and experiment.home_id in project_ids

    async def explain(self, job_id: str) -> Explanation:
        """Explains why a job waits. job_id: of an experiment ("7") or of a trial ("7.1")."""
        experiment_id, trial_id = parse_job_id(job_id)
        # Before the tasks are read: a gateway that is behind would not find the task of a trial that it then finds.
        await self._views.confirm(experiment_id=experiment_id)
        tasks = await self.list_tasks(seconds=EXPLAIN_SECONDS)
        view = await self._views.view_experiment(experiment_id)
        trials = [trial.trial for trial in view.trials]
        agents = self._mirror.state.agents.all()
        return explain(view.experiment, view.reason, trials, tasks, agents, trial_id=trial_id)

    async def snapshot(self, pool: str = "") -> str:
        """Returns the planner's present input, in the format of `gangline simulate`. pool: may be empty when there is
        only one. It names the work of all workspaces. Raises GanglineError `auth.no_role`."""
        answer = await self._leader.call(
            lambda scheduler: scheduler.GetSnapshot, scheduler_pb2.GetSnapshotRequest(pool=pool)
        )
        # After the leader's answer, which tells of a misspelt pool.
        if not sight_of(self._mirror.state, self._caller.principal).sees_all:
            raise lacks_role(self._caller.name, "read the planner's input", Role.VIEWER, "")
        return answer.snapshot_json

    async def _with_progress(self, tasks: list[Task]) -> list[Task]:
        """Adds the newest progress of tasks that hold slots. The list is complete without it, so a history that cannot
        be read leaves it out."""
        newest: Mapping[str, Newest] = {}
        with suppress(GanglineError):
            newest = await self._reader.newest([task.trial.id for task in tasks if task.allocation is not None])
        progress = {trial_id: history.progress for trial_id, history in newest.items()}
        return [replace(task, progress=progress.get(task.trial.id)) for task in tasks]

    def _running(self) -> list[Allocation]:
        live = (
            allocation
            for allocation in self._mirror.state.whole.allocations.all()
            if allocation.state is not State.TERMINAL
        )
        return sorted(live, key=lambda allocation: allocation.created_at)

    def _waiting(self, standings: Mapping[str, Standing]) -> list[Request]:
        position = {trial_id: place for place, trial_id in enumerate(standings)}
        state = self._mirror.state.whole
        return sorted(
            state.requests.all(),
            key=lambda request: (
                state.is_paused(request.experiment_id),
                position.get(request.trial_id, len(position)),
                request.submitted_at,
            ),
        )

    def _task(self, record: Allocation | Request, standing: Standing | None) -> Task | None:
        """Returns the task; None if it has gone meanwhile."""
        state = self._mirror.state
        trial = state.trials.find(keys.trial(record.trial_id))
        experiment = state.experiments.find(keys.experiment(record.experiment_id))
        if trial is None:
            unseen = state.whole.trials.find(keys.trial(record.trial_id))
            number = state.pseudonyms.get(record.trial_id)
            return _nameless(record, unseen, number, standing) if unseen is not None and number else None
        name, owner = (experiment.name, experiment.owner) if experiment is not None else ("", "")
        task_kind = experiment.task_kind if experiment is not None else None
        resources = _resources_of(experiment.config_json if experiment is not None else "")
        priority = resources.priority
        if isinstance(record, Allocation):
            priority = self._pending.default_priority_by_pool.get(record.pool) if priority is None else priority
            return Task(
                trial,
                name,
                allocation=record,
                priority=priority,
                weight=resources.weight,
                owner=owner,
                task_kind=task_kind,
            )
        shown = shown_trial(trial, experiment)
        # The leader's answer may be older than the pause.
        place = standing.queue_place if standing and shown.state is not State.PAUSED else 0
        return Task(
            shown,
            name,
            request=record,
            reason=state.hide(standing.reason) if standing else None,
            queue_place=place,
            priority=record.priority,
            weight=resources.weight,
            owner=owner,
            task_kind=task_kind,
        )


def _nameless(record: Allocation | Request, trial: Trial, number: str, standing: Standing | None) -> Task:
    """Returns the task of a trial that the caller does not see. number: stands for its id."""
    shown = Trial(number, 0, int(number.partition(".")[2]), state=trial.state)
    if isinstance(record, Request):
        request = Request(number, 0, record.pool, record.slots, record.priority, submitted_at=record.submitted_at)
        place = standing.queue_place if standing else 0
        return Task(shown, UNSEEN_NAME, request=request, queue_place=place, priority=record.priority)
    members = tuple(Member(member.agent_id, member.node_rank, member.slot_ids) for member in record.members)
    allocation = Allocation(
        f"{number}.{record.attempt}",
        number,
        0,
        record.attempt,
        record.epoch,
        record.pool,
        members,
        record.state,
        created_at=record.created_at,
        full_slots=record.full_slots,
    )
    return Task(shown, UNSEEN_NAME, allocation=allocation)


@lru_cache(maxsize=4096)
def _resources_of(config_json: str) -> SettledResources:
    return settle(config_json, "resources").resources
