"""Archives experiments and has them deleted."""

from __future__ import annotations

from gangline.domain.experiment import Experiment
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader, read_experiment
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import check_change
from services.gateway.usecase.shared.view import Views


class Removals:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader, views: Views) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader
        self._views = views

    async def delete(self, experiment_id: int) -> Experiment | None:
        """Begins to delete an ended experiment with all of its files. Returns None when it has been deleted.

        Raises GanglineError `auth.not_owner`, and the errors of the leader.
        """
        await self._views.confirm(experiment_id=experiment_id)
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        # The leader answers for an experiment that does not exist: it is deleted, or never existed.
        if experiment is not None:
            check_change(self._mirror, self._caller, experiment, f"delete experiment {experiment_id}")
        request = scheduler_pb2.SchedulerServiceDeleteExperimentRequest(experiment_id=experiment_id)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.DeleteExperiment, request)
        return read_experiment(answer.experiment) if answer.HasField("experiment") else None

    async def archive(self, experiment_id: int) -> Experiment:
        """Takes an ended experiment out of listings."""
        request = scheduler_pb2.SchedulerServiceArchiveExperimentRequest(experiment_id=experiment_id)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.ArchiveExperiment, request)
        return read_experiment(answer.experiment)

    async def unarchive(self, experiment_id: int) -> Experiment:
        request = scheduler_pb2.SchedulerServiceUnarchiveExperimentRequest(experiment_id=experiment_id)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UnarchiveExperiment, request)
        return read_experiment(answer.experiment)
