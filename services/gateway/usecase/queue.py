"""What runs and what waits: the tasks of the cluster, and what the planner looks at."""

from __future__ import annotations

from collections import Counter

from gangline.domain.allocation import Allocation, Request
from gangline.domain.state import State
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.common.server import Principal
from services.gateway.auth import check_user
from services.gateway.leader import Leader
from services.gateway.mirror import Watched
from services.gateway.record import Task
from services.gateway.usecase.pending import Pending
from services.gateway.usecase.view import Views


class Queue:
    def __init__(self, mirror: Watched, leader: Leader, views: Views, pending: Pending) -> None:
        self._mirror = mirror
        self._leader = leader
        self._views = views
        self._pending = pending

    async def list_tasks(self, principal: Principal, experiment_id: int = 0) -> list[Task]:
        """What holds slots, oldest first; then what waits, in the order in which the planner looks at it.

        experiment_id: 0 for all of them. Raises GanglineError `experiment.unknown`.
        """
        check_user(principal)
        if experiment_id:
            self._views.experiment(experiment_id)
        tasks = [*self._running(), *await self._waiting()]
        return [task for task in tasks if experiment_id in (0, task.trial.experiment_id)]

    async def snapshot(self, principal: Principal, pool: str = "") -> str:
        """What the planner would look at now, as `gangline simulate` reads it. pool: empty when there is one only."""
        check_user(principal)
        answer = await self._leader.snapshot(scheduler_pb2.GetSnapshotRequest(pool=pool))
        return answer.snapshot_json

    def _running(self) -> list[Task]:
        live = [
            allocation for allocation in self._mirror.state.allocations.all() if allocation.state is not State.TERMINAL
        ]
        tasks = (self._task(allocation) for allocation in sorted(live, key=lambda allocation: allocation.created_at))
        return [task for task in tasks if task is not None]

    async def _waiting(self) -> list[Task]:
        reasons = await self._pending.reasons() if len(self._mirror.state.requests) else {}
        position = {trial_id: place for place, trial_id in enumerate(reasons)}
        waiting = sorted(
            self._mirror.state.requests.all(),
            key=lambda request: (position.get(request.trial_id, len(position)), request.submitted_at),
        )
        places: Counter[str] = Counter()
        tasks = []
        for request in waiting:
            reason = reasons.get(request.trial_id)
            if reason is not None:
                places[request.pool] += 1
            task = self._task(request)
            if task is not None:
                place = places[request.pool] if reason is not None else 0
                tasks.append(Task(task.trial, task.experiment_name, None, request, reason, place))
        return tasks

    def _task(self, of: Allocation | Request) -> Task | None:
        trial = self._mirror.state.trials.find(keys.trial(of.trial_id))
        if trial is None:
            return None
        experiment = self._mirror.state.experiments.find(keys.experiment(trial.experiment_id))
        name = experiment.name if experiment else ""
        return Task(trial, name, allocation=of if isinstance(of, Allocation) else None)
