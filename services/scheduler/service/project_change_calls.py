"""The calls of SchedulerService that change workspaces, projects and templates, and the project of an experiment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import structlog

from gangline.config.layer.template_check import check_template
from gangline.domain.experiment import Experiment, Project, ProjectChange, Template, Workspace
from gangline.domain.state import ProjectAction
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import project_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.placement.request.snapshot import PoolConfig
from services.scheduler.service.access import require_cluster
from services.scheduler.state.records import get
from services.scheduler.transition.project.project_change import (
    create_project,
    move_to_project,
    project_of_request,
    update_project,
)
from services.scheduler.transition.project.rule import Caller
from services.scheduler.transition.project.template_change import remove_template, set_template
from services.scheduler.transition.project.workspace_change import (
    create_workspace,
    update_workspace,
    workspace_of_request,
)

_log = structlog.get_logger(__name__)


class ProjectCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def UpdateWorkspace(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceUpdateWorkspaceRequest, _context: Any
    ) -> project_pb2.SchedulerServiceUpdateWorkspaceResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        action, caller = _action(request.action), Caller(request.user, request.is_admin, request.request_id)
        change, pools, now = wire.from_proto(ProjectChange, request.change), _pool_names(term.pools), time.time()
        if action is ProjectAction.CREATE:
            await term.store.commit_asked(
                lambda records: create_workspace(records, change, caller, pool_names=pools, now=now)
            )
            workspace = workspace_of_request(term.state, request.request_id)
        else:
            await term.store.commit_asked(
                lambda records: update_workspace(
                    records, request.workspace_id, action, change, caller, pool_names=pools
                )
            )
            workspace = term.state.find(Workspace, request.workspace_id)
        _log.info("workspace is changed", workspace_id=request.workspace_id, action=str(action), user=request.user)
        return project_pb2.SchedulerServiceUpdateWorkspaceResponse(
            workspace=wire.to_proto(workspace) if workspace is not None else None, revision=term.state.revision
        )

    async def UpdateProject(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceUpdateProjectRequest, _context: Any
    ) -> project_pb2.SchedulerServiceUpdateProjectResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        action, caller = _action(request.action), Caller(request.user, request.is_admin, request.request_id)
        change, pools, now = wire.from_proto(ProjectChange, request.change), _pool_names(term.pools), time.time()
        if action is ProjectAction.CREATE:
            await term.store.commit_asked(
                lambda records: create_project(records, request.workspace_id, change, caller, pool_names=pools, now=now)
            )
            project = project_of_request(term.state, request.request_id)
        else:
            await term.store.commit_asked(
                lambda records: update_project(records, request.project_id, action, change, caller, pool_names=pools)
            )
            project = term.state.find(Project, request.project_id)
        _log.info("project is changed", project_id=request.project_id, action=str(action), user=request.user)
        return project_pb2.SchedulerServiceUpdateProjectResponse(
            project=wire.to_proto(project) if project is not None else None, revision=term.state.revision
        )

    async def SetTemplate(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceSetTemplateRequest, _context: Any
    ) -> project_pb2.SchedulerServiceSetTemplateResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        check_template(request.config_json)
        caller, now = Caller(request.user, request.is_admin, request.request_id), time.time()
        await term.store.commit_asked(
            lambda records: set_template(records, request.name, request.config_json, caller, now)
        )
        _log.info("template is set", name=request.name, user=request.user)
        template = term.state.find(Template, request.name)
        return project_pb2.SchedulerServiceSetTemplateResponse(
            template=wire.to_proto(template) if template is not None else None, revision=term.state.revision
        )

    async def RemoveTemplate(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceRemoveTemplateRequest, _context: Any
    ) -> project_pb2.SchedulerServiceRemoveTemplateResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        caller = Caller(request.user, request.is_admin, request.request_id)
        await term.store.commit_asked(lambda records: remove_template(records, request.name, caller))
        _log.info("template is removed", name=request.name, user=request.user)
        return project_pb2.SchedulerServiceRemoveTemplateResponse(revision=term.state.revision)

    async def MoveExperiment(  # noqa: N802 - grpc's name
        self, request: project_pb2.SchedulerServiceMoveExperimentRequest, _context: Any
    ) -> project_pb2.SchedulerServiceMoveExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change = await term.store.commit_asked(
            lambda records: move_to_project(records, request.experiment_id, request.project_id)
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


def _action(number: int) -> ProjectAction:
    action = wire.enum_member(ProjectAction, number)
    if action is None:
        raise invalid("request.action", f"{number} is no action of a workspace or a project that this version knows")
    return action


def _pool_names(pools: Sequence[PoolConfig]) -> frozenset[str]:
    return frozenset(pool.name for pool in pools)
