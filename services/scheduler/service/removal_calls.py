"""The calls of SchedulerService that archive and delete experiments."""

from __future__ import annotations

from typing import Any

import structlog

from gangline.domain.experiment import Experiment
from gangline.domain.state import DeletionStage
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.service.access import require_cluster
from services.scheduler.state.records import get
from services.scheduler.transition.removal import (
    archive_experiment,
    confirm_deleted,
    delete_experiment,
    unarchive_experiment,
)
from services.scheduler.transition.rights import changed, operated

_log = structlog.get_logger(__name__)


class RemovalChangeCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def DeleteExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceDeleteExperimentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceDeleteExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change = await term.store.commit_asked(
            changed(
                request.user,
                request.experiment_id,
                "delete",
                lambda records: delete_experiment(records, request.experiment_id),
            )
        )
        if change:
            _log.info("experiment is to be deleted", experiment_id=request.experiment_id, user=request.user)
        experiment = term.state.find(Experiment, request.experiment_id)
        return scheduler_pb2.SchedulerServiceDeleteExperimentResponse(
            experiment=wire.to_proto(experiment) if experiment is not None else None, revision=term.state.revision
        )

    async def ConfirmExperimentDeleted(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ConfirmExperimentDeletedRequest, _context: Any
    ) -> scheduler_pb2.ConfirmExperimentDeletedResponse:
        require_cluster()
        term = self._leader_status.require()
        stage = wire.enum_member(DeletionStage, request.stage)
        change = await term.store.commit_asked(lambda records: confirm_deleted(records, request.experiment_id, stage))
        if change:
            _log.info("a stage of a deletion is done", experiment_id=request.experiment_id, stage=str(stage))
        return scheduler_pb2.ConfirmExperimentDeletedResponse(revision=term.state.revision)

    async def ArchiveExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceArchiveExperimentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceArchiveExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change = await term.store.commit_asked(
            operated(
                request.user,
                request.experiment_id,
                "archive",
                lambda records: archive_experiment(records, request.experiment_id),
            )
        )
        if change:
            _log.info("experiment is archived", experiment_id=request.experiment_id, user=request.user)
        experiment = get(term.state, Experiment, request.experiment_id)
        return scheduler_pb2.SchedulerServiceArchiveExperimentResponse(
            experiment=wire.to_proto(experiment), revision=term.state.revision
        )

    async def UnarchiveExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceUnarchiveExperimentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceUnarchiveExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change = await term.store.commit_asked(
            operated(
                request.user,
                request.experiment_id,
                "unarchive",
                lambda records: unarchive_experiment(records, request.experiment_id),
            )
        )
        if change:
            _log.info("experiment is unarchived", experiment_id=request.experiment_id, user=request.user)
        experiment = get(term.state, Experiment, request.experiment_id)
        return scheduler_pb2.SchedulerServiceUnarchiveExperimentResponse(
            experiment=wire.to_proto(experiment), revision=term.state.revision
        )
