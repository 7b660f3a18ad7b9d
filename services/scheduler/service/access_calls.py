"""The calls of SchedulerService that change groups and roles."""

from __future__ import annotations

import time
from typing import Any

import structlog

from gangline.domain.access import GroupAction, Role, UserGroup
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import access_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.service.access import require_cluster
from services.scheduler.transition.account.access_change import RoleRequest, change_group, change_role
from services.scheduler.transition.project.rule import Caller

_log = structlog.get_logger(__name__)


class AccessChangeCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def UpdateGroup(  # noqa: N802 - grpc's name
        self, request: access_pb2.SchedulerServiceUpdateGroupRequest, _context: Any
    ) -> access_pb2.SchedulerServiceUpdateGroupResponse:
        require_cluster()
        term, now = self._leader_status.require(request.user), time.time()
        action = wire.enum_member(GroupAction, request.action)
        if action is None:
            raise invalid("request.action", f"{request.action} is no action of a group that this version knows")
        caller = Caller.of(request)
        change = await term.store.commit_asked(
            lambda records: change_group(records, action, request.name, list(request.users), caller, now=now)
        )
        if change:
            _log.info(
                "group is changed", name=request.name, action=str(action), users=list(request.users), user=request.user
            )
        group = term.state.find(UserGroup, request.name)
        return access_pb2.SchedulerServiceUpdateGroupResponse(
            group=wire.to_proto(group) if group is not None else None, revision=term.state.revision
        )

    async def AssignRole(  # noqa: N802 - grpc's name
        self, request: access_pb2.SchedulerServiceAssignRoleRequest, _context: Any
    ) -> access_pb2.SchedulerServiceAssignRoleResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        role = wire.enum_member(Role, request.role)
        if role is None and request.role:
            raise invalid("request.role", f"{request.role} is no role that this version knows")
        asked = RoleRequest(
            Caller.of(request),
            role,
            request.subject_user,
            request.subject_group,
            request.workspace_id,
        )
        change = await term.store.commit_asked(lambda records: change_role(records, asked))
        if change:
            _log.info(
                "role is changed",
                role=str(role) if role is not None else "none",
                subject_user=asked.user,
                subject_group=asked.group,
                workspace_id=asked.workspace_id,
                user=request.user,
            )
        return access_pb2.SchedulerServiceAssignRoleResponse(revision=term.state.revision)
