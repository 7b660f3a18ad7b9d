"""PURE: roles and groups: who has which role in which workspace. access.proto explains more fields.

The leader and every gateway decide by `assigned_role`, each on its own copy of the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gangline.domain.experiment import Workspace
from gangline.domain.user import User
from gangline.errors import ErrorKind, GanglineError, invalid, not_found

# The built-in group of all users. It has no record.
EVERYONE = "everyone"
# In place of a workspace's id, for assignments that hold in all workspaces.
CLUSTER_SCOPE = 0
MAX_GROUPS = 1000
MAX_MEMBERS = 1000
# Assignments for one workspace, or for the cluster.
MAX_ASSIGNMENTS = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


class Role(StrEnum):
    """Each role has the rights of those before it."""

    VIEWER = "VIEWER"  # sees what the workspace has
    EDITOR = "EDITOR"  # makes experiments and tasks in it, and changes those of its own
    ADMIN = "ADMIN"  # changes all that the workspace has, and who has which role in it

    def includes(self, other: Role) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class GroupAction(StrEnum):
    CREATE = "CREATE"
    DELETE = "DELETE"
    ADD = "ADD"
    REMOVE = "REMOVE"


@dataclass(frozen=True, slots=True)
class UserGroup:
    name: str
    user_ids: tuple[int, ...] = ()
    created_at: float = 0.0
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoleAssignment:
    role: Role
    user_id: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class WorkspaceRoles:
    workspace_id: int = CLUSTER_SCOPE
    assignments: tuple[RoleAssignment, ...] = ()
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as users see it."""

    name: str
    members: tuple[str, ...] = ()  # by name
    created_at: float = 0.0
    is_built_in: bool = False


@dataclass(frozen=True, slots=True)
class RoleView:
    """An assignment as users see it: the role of a user or of a group."""

    role: Role
    user: str = ""
    group: str = ""
    workspace_id: int = CLUSTER_SCOPE
    workspace: str = ""  # empty for the cluster

    @property
    def subject(self) -> str:
        return f"group {self.group}" if self.group else self.user


@dataclass(frozen=True, slots=True)
class WorkspaceRight:
    """The role that a user has in one workspace, by all assignments together."""

    workspace_id: int
    workspace: str
    role: Role


@dataclass(frozen=True, slots=True)
class Access:
    """What the caller may do."""

    is_admin: bool = False  # whether the caller is an administrator of the cluster, who may do everything
    cluster_role: Role | None = None  # role in all workspaces; None for none
    workspaces: tuple[WorkspaceRight, ...] = ()  # those that the caller sees, by name
    groups: tuple[str, ...] = ()  # by name
    is_open: bool = False  # whether editors operate the work of others too; see `is_open`


@dataclass(frozen=True, slots=True)
class Rights:
    """The roles of one user."""

    is_admin: bool = False  # whether the user is an administrator of the cluster
    cluster_role: Role | None = None
    role_by_workspace: Mapping[int, Role] = field(default_factory=dict)  # beyond `cluster_role`
    is_open: bool = False  # of the cluster, as `is_open` returns

    @property
    def sees_all(self) -> bool:
        return self.is_admin or self.cluster_role is not None

    def role_in(self, workspace_id: int) -> Role | None:
        if self.is_admin:
            return Role.ADMIN
        return strongest(role for role in (self.cluster_role, self.role_by_workspace.get(workspace_id)) if role)

    def may(self, role: Role, workspace_id: int) -> bool:
        present = self.role_in(workspace_id)
        return present is not None and present.includes(role)

    def may_somewhere(self, role: Role) -> bool:
        """Returns whether the user has the role in some workspace, or for the cluster."""
        roles = [*self.role_by_workspace.values(), *([self.cluster_role] if self.cluster_role is not None else [])]
        return self.is_admin or any(each.includes(role) for each in roles)


EVERY_RIGHT = Rights(is_admin=True)


def strongest(roles: Iterable[Role]) -> Role | None:
    return max(roles, key=_RANKS.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class Member:
    """A user as assignments name it."""

    name: str
    user_id: int = 0  # 0 for a name without a record, who has what everyone has
    groups: frozenset[str] = frozenset({EVERYONE})
    is_admin: bool = False

    @staticmethod
    def of(name: str, user: User | None, groups: Iterable[UserGroup]) -> Member:
        """user: None for a name without a record."""
        if user is None:
            return Member(name)
        found = (group.name for group in groups if user.id and user.id in group.user_ids)
        return Member(name, user.id, frozenset((EVERYONE, *found)), user.is_admin)


def first_assignments(workspace: Workspace | None, owner_id: int) -> tuple[RoleAssignment, ...]:
    """Returns the assignments that hold before any is changed. workspace: None for the cluster. owner_id: of the user
    who owns the workspace; 0 for none."""
    if workspace is None:
        return (RoleAssignment(Role.EDITOR, group=EVERYONE),)
    return (RoleAssignment(Role.ADMIN, user_id=owner_id),) if owner_id else ()


def assigned_role(member: Member, workspace: Workspace | None, roles: WorkspaceRoles | None) -> Role | None:
    """Returns the role that the assignments for a workspace, or for the cluster, give to a user. workspace: None for
    the cluster. roles: None if none of the assignments was changed so far."""
    if roles is not None:
        return strongest(
            assignment.role
            for assignment in roles.assignments
            if (
                assignment.group in member.groups
                if assignment.group
                else member.user_id != 0 and assignment.user_id == member.user_id
            )
        )
    if workspace is None:
        return Role.EDITOR
    return Role.ADMIN if workspace.owner and workspace.owner == member.name else None


def is_open(roles: WorkspaceRoles | None) -> bool:
    """Returns whether every editor may operate the work of others, as in versions without roles: pause, end, move,
    rename and prioritise it. It holds until the first change of the roles for the cluster. roles: those for the
    cluster; None if they were never changed."""
    return roles is None


def rights_of(
    member: Member, roles_by_workspace: Mapping[int, WorkspaceRoles], workspaces: Iterable[Workspace]
) -> Rights:
    """Returns the roles of a user in all workspaces."""
    found = {
        workspace.id: role
        for workspace in workspaces
        if (role := assigned_role(member, workspace, roles_by_workspace.get(workspace.id))) is not None
    }
    roles = roles_by_workspace.get(CLUSTER_SCOPE)
    return Rights(member.is_admin, assigned_role(member, None, roles), found, is_open(roles))


def check_group_name(name: str) -> None:
    """Raises GanglineError `group.name`."""
    if not _NAME.fullmatch(name) or name.casefold() == EVERYONE:
        raise invalid(
            "group.name",
            f"{name[:80]!r} cannot be the name of a group; it has 1 to 64 letters, digits and the characters . _ @ + "
            f"-, begins with a letter or a digit, and is not {EVERYONE!r}, which is the built-in group of all users",
        )


def no_group(name: str) -> GanglineError:
    return not_found("group.not_found", f"there is no group {name[:80]!r}; list them with: gangline group list")


def lacks_role(who: str, action: str, role: Role, workspace: str) -> GanglineError:
    """Makes the error for a caller without the necessary role. action: the attempted change, as "create projects".
    workspace: its name; empty for the cluster."""
    article = "an" if role is not Role.VIEWER else "a"
    where = f"in workspace {workspace!r}" if workspace else "for the cluster"
    return GanglineError(
        "auth.no_role",
        f"{who} may not {action}: it needs the role of {article} {role.lower()} {where}; ask an administrator of it, "
        "and see gangline user whoami --can",
        ErrorKind.FORBIDDEN,
    )
