"""The SDK's methods about groups and roles.

Client inherits them. scripts/generate_async_client.py writes async_access.py from this file.
"""

from __future__ import annotations

from collections.abc import Sequence

from gangline.client.call_message import new_request_id
from gangline.client.user import UserMethods
from gangline.domain.access import Access, GroupAction, GroupView, Role, RoleView
from gangline.protocol.wire import enum_number, from_proto
from gangline.v1 import access_pb2


class AccessMethods(UserMethods):
    """Base of Client. Groups and the roles for the cluster are for administrators, the roles for a workspace for its
    admins, too; else they raise GanglineError `auth.not_admin`, `auth.not_owner`."""

    def get_access(self) -> Access:
        """Returns what the user of this client may do: roles by workspace, and groups."""
        return from_proto(Access, self._connection.call(self._stub.GetAccess, access_pb2.GetAccessRequest()).access)

    def list_groups(self) -> list[GroupView]:
        """Returns all groups by name; the built-in one of all users comes first."""
        answer = self._connection.call(self._stub.ListGroups, access_pb2.ListGroupsRequest())
        return [from_proto(GroupView, message) for message in answer.groups]

    def create_group(self, name: str, users: Sequence[str] = (), request_id: str | None = None) -> GroupView:
        """Creates a group of these users; for administrators. Raises GanglineError `group.name`, `group.exists`,
        `user.not_found`."""
        return from_proto(GroupView, self._update_group(GroupAction.CREATE, name, users, request_id).group)

    def add_to_group(self, name: str, users: Sequence[str], request_id: str | None = None) -> GroupView:
        """Adds users to a group; for administrators. Raises GanglineError `group.not_found`, `user.not_found`."""
        return from_proto(GroupView, self._update_group(GroupAction.ADD, name, users, request_id).group)

    def remove_from_group(self, name: str, users: Sequence[str], request_id: str | None = None) -> GroupView:
        """Removes users from a group; for administrators. Raises GanglineError `group.not_found`,
        `user.not_found`."""
        return from_proto(GroupView, self._update_group(GroupAction.REMOVE, name, users, request_id).group)

    def delete_group(self, name: str, request_id: str | None = None) -> None:
        """Deletes a group; for administrators. Raises GanglineError `group.not_found`, and `group.in_use` while it has
        a role."""
        self._update_group(GroupAction.DELETE, name, (), request_id)

    def list_roles(self, workspace: str = "") -> list[RoleView]:
        """Returns the roles for the cluster, and for the workspaces that the user sees. workspace: only those for this
        one. Raises GanglineError `workspace.not_found`."""
        answer = self._connection.call(self._stub.ListRoles, access_pb2.ListRolesRequest(workspace=workspace))
        return [from_proto(RoleView, message) for message in answer.roles]

    def assign_role(
        self, role: Role | str, *, user: str = "", group: str = "", workspace: str = "", request_id: str | None = None
    ) -> list[RoleView]:
        """Gives a role, such as "editor", to a user or to a group, in place of the one that it had there. workspace:
        empty for the cluster. Returns all roles for this place.

        Raises GanglineError `workspace.not_found`, `user.not_found`, `group.not_found`, `role.*`.
        """
        request = access_pb2.AssignRoleRequest(
            request_id=request_id or new_request_id(), user=user, group=group, workspace=workspace
        )
        request.role = enum_number(Role(str(role).upper()))  # type: ignore[assignment]  # protobuf takes the number
        answer = self._connection.call(self._stub.AssignRole, request)
        return [from_proto(RoleView, message) for message in answer.roles]

    def remove_role(
        self, *, user: str = "", group: str = "", workspace: str = "", request_id: str | None = None
    ) -> list[RoleView]:
        """Takes the role of a user or of a group. workspace: empty for the cluster. Returns all roles for this place
        that are left. Raises GanglineError `role.not_found`, and the errors of `assign_role`."""
        request = access_pb2.AssignRoleRequest(
            request_id=request_id or new_request_id(), user=user, group=group, workspace=workspace
        )
        answer = self._connection.call(self._stub.AssignRole, request)
        return [from_proto(RoleView, message) for message in answer.roles]

    def _update_group(
        self, action: GroupAction, name: str, users: Sequence[str], request_id: str | None
    ) -> access_pb2.UpdateGroupResponse:
        request = access_pb2.UpdateGroupRequest(request_id=request_id or new_request_id(), name=name, users=users)
        request.action = enum_number(action)  # type: ignore[assignment]  # protobuf takes the number
        return self._connection.call(self._stub.UpdateGroup, request)
