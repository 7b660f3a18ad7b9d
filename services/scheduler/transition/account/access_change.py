"""PURE: creates, changes and deletes groups, and gives roles and takes them.

Groups and the roles for the cluster are for administrators; the roles for a workspace also for its admins. An
administrator of the cluster is one by the user's own record, which no assignment changes. The built-in group
`everyone` has no record, and cannot be changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gangline.config.layer.lookup import unknown_id
from gangline.domain.access import (
    CLUSTER_SCOPE,
    EVERYONE,
    MAX_ASSIGNMENTS,
    MAX_GROUPS,
    MAX_MEMBERS,
    GroupAction,
    Role,
    RoleAssignment,
    UserGroup,
    WorkspaceRoles,
    check_group_name,
    first_assignments,
    no_group,
)
from gangline.domain.experiment import Workspace
from gangline.domain.named_kind import DEFAULT_WORKSPACE, WORKSPACE
from gangline.domain.user import User, no_user
from gangline.errors import ErrorKind, GanglineError, conflict, invalid, not_found
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.account.user_change import is_admin, not_admin
from services.scheduler.transition.project.rule import Caller, note_removal, remember, was_removed_by
from services.scheduler.transition.rights import not_owner, role_in


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """A user's request to give a user or a group a role, or to take it."""

    caller: Caller
    role: Role | None  # None to take it
    user: str = ""  # one of user and group is empty
    group: str = ""
    workspace_id: int = CLUSTER_SCOPE


def change_group(
    records: Records, action: GroupAction, name: str, users: Iterable[str], caller: Caller, *, now: float
) -> StateChange:
    """Creates or deletes a group, or adds or removes members. A request that has done so before changes nothing.

    Raises GanglineError `auth.not_admin`, `auth.inactive`, `group.not_found`, `group.name`, `group.exists`,
    `group.built_in`, `group.in_use`, `group.too_many`, `user.not_found`.
    """
    if was_removed_by(records, caller):
        return StateChange()
    if not is_admin(records, caller):
        raise not_admin(caller, "change groups")
    if name == EVERYONE:
        raise conflict("group.built_in", f"{EVERYONE!r} is the built-in group of all users and cannot be changed")
    present = records.find(UserGroup, name)
    if present is not None and caller.request_id in present.request_ids:
        return StateChange()
    user_ids = {_user(records, user).id for user in users}
    draft = Draft(records)
    if action is GroupAction.CREATE:
        _check_new_group(records, name)
        group = UserGroup(name, created_at=now)
    elif present is None:
        raise no_group(name)
    else:
        group = present
    if action is GroupAction.DELETE:
        _check_unused(records, name)
        draft.delete(UserGroup, name)
        note_removal(draft, caller)
        return draft.change
    removed = user_ids if action is GroupAction.REMOVE else set()
    members = tuple(sorted((set(group.user_ids) | user_ids) - removed))
    if len(members) > MAX_MEMBERS:
        raise conflict("group.too_many", f"group {name!r} would have {len(members)} members; at most {MAX_MEMBERS} fit")
    if present is None or members != present.user_ids:
        draft.put(replace(group, user_ids=members, request_ids=remember(group.request_ids, caller)))
    return draft.change


def change_role(records: Records, asked: RoleRequest) -> StateChange:
    """Gives a role or takes it. What a user or group had before in the same place is replaced. A request that has done
    so before changes nothing.

    Raises GanglineError `auth.not_admin`, `auth.not_owner`, `auth.inactive`, `workspace.not_found`, `user.not_found`,
    `group.not_found`, `role.not_found`, `role.subject`, `role.too_many`.
    """
    place, workspace = "the cluster", _check_place(records, asked)
    if workspace is not None:
        place = f"workspace {workspace.name!r}"
    roles = records.find(WorkspaceRoles, asked.workspace_id)
    if roles is not None and asked.caller.request_id in roles.request_ids:
        return StateChange()
    subject = _subject_of(records, asked)
    others = roles.assignments if roles is not None else _first(records, workspace)
    present = tuple(each for each in others if (each.user_id, each.group) == subject)
    kept = tuple(each for each in others if each not in present)
    if asked.role is None and not present:
        who = f"group {asked.group!r}" if asked.group else f"user {asked.user!r}"
        raise not_found("role.not_found", f"{who} has no role of its own for {place}; see: gangline role list")
    new = () if asked.role is None else (RoleAssignment(asked.role, *subject),)
    if len(kept) + len(new) > MAX_ASSIGNMENTS:
        text = f"{place} has {MAX_ASSIGNMENTS} roles, and no more fit; put users into groups"
        raise conflict("role.too_many", text)
    # The first request for the cluster closes it (`is_open`), also one that leaves the assignments as they are.
    if roles is None and new == present and workspace is not None:
        return StateChange()
    changed = WorkspaceRoles(asked.workspace_id, kept + new, roles.request_ids if roles is not None else ())
    if roles is not None and changed == roles:
        return StateChange()
    draft = Draft(records)
    draft.put(replace(changed, request_ids=remember(changed.request_ids, asked.caller)))
    return draft.change


def _check_place(records: Records, asked: RoleRequest) -> Workspace | None:
    """Returns the workspace; None for the cluster. Raises GanglineError unless the caller may change its roles."""
    is_administrator = is_admin(records, asked.caller)
    if asked.workspace_id == CLUSTER_SCOPE:
        if not is_administrator:
            raise not_admin(asked.caller, "change roles for the cluster")
        return None
    workspace = records.find(Workspace, asked.workspace_id)
    if workspace is None and asked.workspace_id == DEFAULT_WORKSPACE.id:
        workspace = DEFAULT_WORKSPACE
    role = role_in(records, asked.caller.user, asked.workspace_id)
    if workspace is None or (role is None and not is_administrator):
        raise unknown_id(WORKSPACE, asked.workspace_id)
    if role is not Role.ADMIN and not is_administrator:
        raise not_owner(asked.caller.user, workspace.owner, f"change the roles of workspace {workspace.name!r}")
    return workspace


def _subject_of(records: Records, asked: RoleRequest) -> tuple[int, str]:
    """Returns the id of the user and the name of the group, as an assignment has them."""
    if bool(asked.user) == bool(asked.group):
        raise invalid("role.subject", "a role is given to one user or to one group; name one of them")
    if asked.group:
        if asked.group != EVERYONE and records.find(UserGroup, asked.group) is None:
            raise no_group(asked.group)
        return 0, asked.group
    return _user(records, asked.user).id, ""


def _first(records: Records, workspace: Workspace | None) -> tuple[RoleAssignment, ...]:
    owner = records.find(User, workspace.owner) if workspace is not None else None
    return first_assignments(workspace, owner.id if owner is not None else 0)


def _user(records: Records, name: str) -> User:
    user = records.find(User, name)
    if user is None:
        raise no_user(name)
    return user


def _check_new_group(records: Records, name: str) -> None:
    """Names that differ in the case of letters alone are one name."""
    check_group_name(name)
    groups = list(records.all_of(UserGroup))
    for group in groups:
        if group.name.casefold() == name.casefold():
            text = f"there is a group {group.name!r} already; choose another name"
            raise GanglineError("group.exists", text, ErrorKind.ALREADY_EXISTS)
    if len(groups) >= MAX_GROUPS:
        raise conflict("group.too_many", f"there are {MAX_GROUPS} groups, and no more can be created")


def _check_unused(records: Records, name: str) -> None:
    """A later group of this name would have the roles of the deleted one."""
    count = sum(any(each.group == name for each in roles.assignments) for roles in records.all_of(WorkspaceRoles))
    if count:
        raise conflict(
            "group.in_use",
            f"group {name!r} has {count} role{'' if count == 1 else 's'}, so it was not deleted; take them first with: "
            "gangline role remove",
        )
