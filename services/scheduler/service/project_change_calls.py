"""The calls of SchedulerService that change workspaces, projects and templates, and the project of an experiment."""

from __future__ import annotations

import time
from typing import Any

import structlog

from gangline.domain.experiment import Experiment
from gangline.domain.named_kind import PROJECT, TEMPLATE, WORKSPACE, NamedKind
from gangline.domain.state import ProjectAction
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import project_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.service.access import require_cluster
from services.scheduler.state.records import get
from services.scheduler.transition.project.named_change import change_named, record_of_request
from services.scheduler.transition.project.project_move import move_to_project
from services.scheduler.transition.project.rule import Caller, NamedChange

_log = structlog.get_logger(__name__)


class ProjectChangeCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def UpdateWorkspace(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceUpdateWorkspaceRequest, _context: Any
    ) -> project_pb2.SchedulerServiceUpdateWorkspaceResponse:
        action = wire.enum_member(ProjectAction, request.action)
        wanted = _wanted(request.change)
        answer = await self._change(WORKSPACE, request, action, key=request.workspace_id, wanted=wanted)
        return project_pb2.SchedulerServiceUpdateWorkspaceResponse(**answer)

    async def UpdateProject(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceUpdateProjectRequest, _context: Any
    ) -> project_pb2.SchedulerServiceUpdateProjectResponse:
        action = wire.enum_member(ProjectAction, request.action)
        more = {"key": request.project_id, "wanted": _wanted(request.change), "parent_id": request.workspace_id}
        answer = await self._change(PROJECT, request, action, **more)
        return project_pb2.SchedulerServiceUpdateProjectResponse(**answer)

    async def SetTemplate(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceSetTemplateRequest, _context: Any
    ) -> project_pb2.SchedulerServiceSetTemplateResponse:
        wanted = {"name": request.name, "config_json": request.config_json}
        answer = await self._change(TEMPLATE, request, ProjectAction.CREATE, key=request.name, wanted=wanted)
        return project_pb2.SchedulerServiceSetTemplateResponse(**answer)

    async def RemoveTemplate(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceRemoveTemplateRequest, _context: Any
    ) -> project_pb2.SchedulerServiceRemoveTemplateResponse:
        answer = await self._change(TEMPLATE, request, ProjectAction.DELETE, key=request.name)
        return project_pb2.SchedulerServiceRemoveTemplateResponse(revision=answer["revision"])

    async def MoveExperiment(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceMoveExperimentRequest, _context: Any
    ) -> project_pb2.SchedulerServiceMoveExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change = await term.store.commit_asked(
            lambda records: move_to_project(records, request.user, request.experiment_id, request.project_id)
        )
        if change:
            _log.info(
                "experiment is moved",
                experiment_id=request.experiment_id,
                project_id=request.project_id,
                user=request.user,
            )
        experiment = get(term.state, Experiment, request.experiment_id)
        return project_pb2.SchedulerServiceMoveExperimentResponse(
            experiment=wire.to_proto(experiment), revision=term.state.revision
        )

    async def _change(
        self, kind: NamedKind[Any], request: Any, action: ProjectAction | None, **more: Any
    ) -> dict[str, Any]:
        """Changes a record as the request asks. more: fields of a NamedChange. Returns the fields of the answer: the
        record, None once it is deleted, and the revision."""
        require_cluster()
        term = self._leader_status.require(request.user)
        if action is None:
            text = f"{request.action} is no action of a {kind.noun} that this version knows"
            raise invalid("request.action", text)
        caller = Caller.of(request)
        pool_names = frozenset(pool.name for pool in term.pools)
        asked = NamedChange(kind, action, caller, pool_names, time.time(), **more)
        await term.store.commit_asked(lambda records: change_named(records, asked))
        if action is ProjectAction.CREATE and kind.is_numbered:
            record = record_of_request(term.state, kind, request.request_id)
        elif action is ProjectAction.DELETE:
            # Also a repeated deletion, which may name another record than the first one did.
            record = None
        else:
            record = term.state.find(kind.record_type, asked.key)
        _log.info(f"{kind.noun} is changed", key=asked.key, action=str(action), user=request.user)
        return {kind.noun: record and wire.to_proto(record), "revision": term.state.revision}


def _wanted(change: project_pb2.ProjectChange) -> dict[str, str]:
    """Returns the fields that the change sets."""
    return {field.name: value for field, value in change.ListFields()}
