"""The calls of GatewayService about groups and roles."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.access import GroupAction, Role
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import access_pb2 as pb
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class AccessCalls(BoundCalls):
    async def GetAccess(self, request: pb.GetAccessRequest, context: Context) -> pb.GetAccessResponse:
        return pb.GetAccessResponse(access=wire.to_proto(self._cases(request).access.describe()))

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsResponse:
        views = self._cases(request).access.list_groups()
        return pb.ListGroupsResponse(groups=[wire.to_proto(view) for view in views])

    async def UpdateGroup(self, request: pb.UpdateGroupRequest, context: Context) -> pb.UpdateGroupResponse:
        action = wire.enum_member(GroupAction, request.action)
        view = await self._cases(request).access.update_group(action, request.name, list(request.users))
        return pb.UpdateGroupResponse(group=wire.to_proto(view) if view is not None else None)

    async def ListRoles(self, request: pb.ListRolesRequest, context: Context) -> pb.ListRolesResponse:
        views = await self._cases(request).access.list_roles(request.workspace)
        return pb.ListRolesResponse(roles=[wire.to_proto(view) for view in views])

    async def AssignRole(self, request: pb.AssignRoleRequest, context: Context) -> pb.AssignRoleResponse:
        role = wire.enum_member(Role, request.role)
        if role is None and request.role:
            raise invalid("request.role", f"this version knows no such role; it has {', '.join(Role)}")
        views = await self._cases(request).access.assign(role, request.user, request.group, request.workspace)
        return pb.AssignRoleResponse(roles=[wire.to_proto(view) for view in views])
