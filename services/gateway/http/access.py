"""Routes of groups and roles, and of what the caller may do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from gangline.domain.access import Access as AccessRecord
from gangline.domain.access import GroupAction, GroupView, Role, RoleView
from gangline.domain.access import WorkspaceRight as WorkspaceRightRecord
from gangline.errors import invalid
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.model import Body
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["access"], route_class=Route, responses=ERRORS)


class Group(Answer, record=GroupView): ...


class RoleAssignment(Answer, record=RoleView): ...


class WorkspaceRight(Answer, record=WorkspaceRightRecord): ...


class Access(Answer, record=AccessRecord):
    """What the caller may do."""

    workspaces: list[WorkspaceRight]


class AccessAnswer(Answer):
    access: Access


class GroupList(Answer):
    groups: list[Group]


class GroupAnswer(Answer):
    group: Group


class GroupEnd(Answer):
    """Is empty."""


class RoleList(Answer):
    roles: list[RoleAssignment]


class NewGroup(Body, example={"name": "vision", "users": ["ann"]}):
    name: str
    users: list[str] = Field(default_factory=list, max_length=1000)


class GroupChange(Body, example={"add": ["bob"]}):
    add: list[str] = Field(default_factory=list, max_length=1000)
    remove: list[str] = Field(default_factory=list, max_length=1000)


class RoleBody(Body, example={"user": "ann", "role": "EDITOR", "workspace": "vision"}):
    """Names one of user and group."""

    user: str = ""
    group: str = ""
    role: Annotated[Role | None, Field(strict=False)] = None  # absent or null to take the role
    workspace: str = ""  # empty for the cluster


@router.get("/me/access")
async def get_access(cases: Cases) -> AccessAnswer:
    """Returns what the caller may do: its roles and its groups."""
    return AccessAnswer(access=Access.model_validate(cases.access.describe()))


@router.get("/groups")
async def list_groups(cases: Cases) -> GroupList:
    """Lists groups by name; the built-in one of all users comes first."""
    return GroupList(groups=[Group.model_validate(view) for view in cases.access.list_groups()])


@router.post("/groups")
async def post_group(body: NewGroup, cases: KeyedCases) -> GroupAnswer:
    """Creates a group; for administrators."""
    view = await cases.access.update_group(GroupAction.CREATE, body.name, body.users)
    return GroupAnswer(group=Group.model_validate(view))


@router.patch("/groups/{name}")
async def patch_group(name: str, body: GroupChange, cases: KeyedCases) -> GroupAnswer:
    """Adds members, or removes some; for administrators. One request does one of the two."""
    action, users = (GroupAction.REMOVE, body.remove) if body.remove else (GroupAction.ADD, body.add)
    if body.add and body.remove:
        raise invalid("group.one_change", "one request either adds members or removes some; send two requests")
    view = await cases.access.update_group(action, name, users)
    return GroupAnswer(group=Group.model_validate(view))


@router.delete("/groups/{name}")
async def delete_group(name: str, cases: KeyedCases) -> GroupEnd:
    """Deletes a group that has no role; for administrators."""
    await cases.access.update_group(GroupAction.DELETE, name, ())
    return GroupEnd()


@router.get("/roles")
async def list_roles(cases: Cases, workspace: str = "") -> RoleList:
    """Lists roles: those for the cluster, then those for the workspaces that the caller sees. workspace: only those for
    this one."""
    return _list(await cases.access.list_roles(workspace))


@router.put("/roles")
async def put_role(body: RoleBody, cases: KeyedCases) -> RoleList:
    """Gives a role to a user or to a group, or takes it; for the admins of the workspace, and for the cluster for
    administrators. Returns all roles for the same place."""
    return _list(await cases.access.assign(body.role, body.user, body.group, body.workspace))


def _list(views: list[RoleView]) -> RoleList:
    return RoleList(roles=[RoleAssignment.model_validate(view) for view in views])
