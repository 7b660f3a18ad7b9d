"""Groups and roles: lists, what the caller may do, and the changes that the leader makes."""

from __future__ import annotations

from collections.abc import Sequence

from gangline.config.layer.lookup import find_named
from gangline.domain.access import (
    CLUSTER_SCOPE,
    EVERYONE,
    Access,
    GroupAction,
    GroupView,
    Member,
    Role,
    RoleView,
    UserGroup,
    WorkspaceRight,
    first_assignments,
)
from gangline.domain.experiment import Workspace
from gangline.domain.named_kind import DEFAULT_WORKSPACE, WORKSPACE
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import access_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import sight_of
from services.gateway.usecase.shared.confirming import find_confirmed


class AccessRules:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader

    def describe(self) -> Access:
        """Returns what the caller may do."""
        state, rights = self._mirror.state, sight_of(self._mirror.state, self._caller.principal).rights
        user = state.users.find(keys.user(self._caller.name)) if self._caller.principal.kind == "user" else None
        member = Member.of(self._caller.name, user, state.groups.all())
        seen = ((workspace, rights.role_in(workspace.id)) for workspace in self._workspaces())
        roles = tuple(
            WorkspaceRight(workspace.id, workspace.name, role) for workspace, role in seen if role is not None
        )
        return Access(rights.is_admin, rights.cluster_role, roles, tuple(sorted(member.groups)), rights.is_open)

    def list_groups(self) -> list[GroupView]:
        """Returns all groups by name, the built-in one first."""
        names = {user.id: user.name for user in self._mirror.state.users.all()}
        everyone = GroupView(EVERYONE, tuple(sorted(names.values())), is_built_in=True)
        groups = sorted(self._mirror.state.groups.all(), key=lambda group: group.name)
        return [everyone, *(_view_group(group, names) for group in groups)]

    async def update_group(self, action: GroupAction | None, name: str, users: Sequence[str]) -> GroupView | None:
        """Creates or deletes a group, or changes its members. Returns None once it is deleted. Raises GanglineError
        `auth.not_admin`, and the errors of the leader."""
        self._caller.check_admin("change groups")
        if action is None:
            raise invalid("request.action", f"this version knows no such action; it has {', '.join(GroupAction)}")
        request = access_pb2.SchedulerServiceUpdateGroupRequest(name=name, users=users, is_admin=self._caller.is_admin)
        request.action = wire.enum_number(action)  # type: ignore[assignment]  # protobuf takes the number
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UpdateGroup, request)
        if not answer.HasField("group"):
            return None
        names = {user.id: user.name for user in self._mirror.state.users.all()}
        return _view_group(wire.from_proto(UserGroup, answer.group), names)

    async def list_roles(self, workspace_name: str = "") -> list[RoleView]:
        """Returns the assignments for the cluster, and then for the workspaces that the caller sees, by name.
        workspace_name: only those for this one. Raises GanglineError `workspace.not_found`."""
        if workspace_name:
            return self._roles_of(await self._workspace(workspace_name))
        roles = self._roles_of(None)
        for workspace in self._workspaces():
            roles += self._roles_of(workspace)
        return roles

    async def assign(self, role: Role | None, user: str, group: str, workspace_name: str) -> list[RoleView]:
        """Gives a role to a user or to a group, or takes it. role: None to take it. workspace_name: empty for the
        cluster. Returns all assignments for this place. Raises GanglineError `auth.*`, `workspace.not_found`, and the
        errors of the leader."""
        workspace = await self._workspace(workspace_name) if workspace_name else None
        request = access_pb2.SchedulerServiceAssignRoleRequest(
            subject_user=user,
            subject_group=group,
            workspace_id=workspace.id if workspace is not None else CLUSTER_SCOPE,
            is_admin=self._caller.is_admin,
        )
        if role is not None:
            request.role = wire.enum_number(role)  # type: ignore[assignment]  # protobuf takes the number
        await self._leader.change(self._caller, lambda scheduler: scheduler.AssignRole, request)
        return self._roles_of(workspace)

    def _roles_of(self, workspace: Workspace | None) -> list[RoleView]:
        """Returns the assignments for a workspace; None for those for the cluster."""
        state = self._mirror.state
        workspace_id, name = (workspace.id, workspace.name) if workspace is not None else (CLUSTER_SCOPE, "")
        names = {user.id: user.name for user in state.users.all()}
        record = state.roles.find(keys.roles(workspace_id))
        if record is not None:
            assignments = record.assignments
        else:
            owner = state.users.find(keys.user(workspace.owner)) if workspace is not None else None
            assignments = first_assignments(workspace, owner.id if owner is not None else 0)
        views = [
            RoleView(each.role, names.get(each.user_id, ""), each.group, workspace_id, name) for each in assignments
        ]
        return sorted(views, key=lambda view: (view.group, view.user))

    def _workspaces(self) -> list[Workspace]:
        """Returns the workspaces that the caller sees, by name."""
        sight = sight_of(self._mirror.state, self._caller.principal)
        found = {DEFAULT_WORKSPACE.id: DEFAULT_WORKSPACE} if DEFAULT_WORKSPACE.id in sight.workspace_ids else {}
        found |= {workspace.id: workspace for workspace in self._mirror.state.workspaces.all()}
        return sorted(found.values(), key=lambda workspace: workspace.name)

    async def _workspace(self, name: str) -> Workspace:
        return await find_confirmed(
            self._mirror, lambda: find_named(WORKSPACE, name, self._workspaces()), keys.NEXT_PROJECT
        )


def _view_group(group: UserGroup, names: dict[int, str]) -> GroupView:
    """names: of users, by their ids."""
    members = sorted(names[user_id] for user_id in group.user_ids if user_id in names)
    return GroupView(group.name, tuple(members), group.created_at)
