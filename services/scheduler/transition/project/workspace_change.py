"""PURE: creates, edits, archives, unarchives and deletes workspaces.

Workspaces are unique by name. The default workspace never changes. A workspace with experiments is not deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace

from gangline.config.layer.lookup import archived, no_workspace
from gangline.config.layer.template_check import check_name
from gangline.domain.experiment import DEFAULT_WORKSPACE_ID, Project, ProjectChange, Workspace
from gangline.domain.state import ProjectAction
from gangline.errors import ErrorKind, GanglineError, conflict
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.project.rule import (
    Caller,
    check_owner,
    counter_of,
    default_is_fixed,
    experiments_in,
    note_removal,
    projects_of,
    remember,
    was_removed_by,
    with_defaults,
)

# Empty projects that go with their workspace. Etcd takes 128 operations in one transaction.
MAX_PROJECTS_DELETED = 100
_DONE = {
    ProjectAction.EDIT: "edited",
    ProjectAction.ARCHIVE: "archived",
    ProjectAction.UNARCHIVE: "unarchived",
    ProjectAction.DELETE: "deleted",
}


def workspace_of_request(records: Records, request_id: str) -> Workspace | None:
    """Returns the workspace that this request created or changed."""
    return next((w for w in records.all_of(Workspace) if request_id in w.request_ids), None)


def create_workspace(
    records: Records, change: ProjectChange, caller: Caller, *, pool_names: Collection[str], now: float
) -> StateChange:
    """Creates a workspace, unless this request has created one; find it by `workspace_of_request`.

    Raises GanglineError `workspace.name`, `workspace.exists`, and the errors of its defaults.
    """
    if workspace_of_request(records, caller.request_id) is not None:
        return StateChange()
    name = change.name or ""
    _check_free(records, name)
    counter = counter_of(records)
    workspace = Workspace(counter.next_workspace_id, name, owner=caller.user, created_at=now)
    draft = Draft(records)
    draft.put(replace(counter, next_workspace_id=counter.next_workspace_id + 1))
    defaults = with_defaults(records, workspace.defaults, change, pool_names)
    draft.put(replace(workspace, defaults=defaults, request_ids=(caller.request_id,)))
    return draft.change


def update_workspace(
    records: Records,
    workspace_id: int,
    action: ProjectAction,
    change: ProjectChange,
    caller: Caller,
    *,
    pool_names: Collection[str],
) -> StateChange:
    """Edits, archives, unarchives or deletes a workspace. A request that has changed it before changes nothing.

    Raises GanglineError `workspace.not_found`, `auth.not_owner`, `workspace.default`, `workspace.archived`,
    `workspace.not_empty`, and the errors of `create_workspace`.
    """
    if was_removed_by(records, caller):
        return StateChange()
    workspace = records.find(Workspace, workspace_id)
    if workspace is None:
        raise no_workspace(workspace_id)
    if caller.request_id in workspace.request_ids:
        return StateChange()
    if workspace.id == DEFAULT_WORKSPACE_ID:
        raise default_is_fixed("workspace", workspace.name, _DONE[action])
    check_owner(caller, workspace.owner, f"{action.lower()} workspace {workspace.name!r}")
    draft = Draft(records)
    if action is ProjectAction.DELETE:
        _delete(draft, workspace)
        note_removal(draft, caller)
        return draft.change
    changed = replace(workspace, archived=action is ProjectAction.ARCHIVE)
    if action is ProjectAction.EDIT:
        changed = _edited(records, workspace, change, pool_names)
    if changed != workspace:
        draft.put(replace(changed, request_ids=remember(workspace.request_ids, caller)))
    return draft.change


def _edited(records: Records, workspace: Workspace, change: ProjectChange, pool_names: Collection[str]) -> Workspace:
    if workspace.archived:
        raise archived("workspace", workspace.name, shlex.quote(workspace.name))
    name = workspace.name if change.name is None else change.name
    if name != workspace.name:
        _check_free(records, name)
    return replace(workspace, name=name, defaults=with_defaults(records, workspace.defaults, change, pool_names))


def _check_free(records: Records, name: str) -> None:
    check_name("workspace", name)
    for other in records.all_of(Workspace):
        if other.name == name:
            raise GanglineError(
                "workspace.exists",
                f"there is a workspace {name!r} already, of {other.owner or 'the cluster'}; choose another name",
                ErrorKind.ALREADY_EXISTS,
            )


def _delete(draft: Draft, workspace: Workspace) -> None:
    projects = projects_of(draft, workspace)
    count = experiments_in(draft, *(project.id for project in projects))
    if count:
        held = f"{count} experiment{'' if count == 1 else 's'}"
        raise conflict(
            "workspace.not_empty",
            f"workspace {workspace.name!r} holds {held}, so it was not deleted; delete them, or move them with: "
            "gangline experiment move ID PROJECT_ID",
        )
    if len(projects) > MAX_PROJECTS_DELETED:
        raise conflict(
            "workspace.not_empty",
            f"workspace {workspace.name!r} has {len(projects)} projects, and at most {MAX_PROJECTS_DELETED} are "
            "deleted with it; delete some first with: gangline project delete",
        )
    for project in projects:
        draft.delete(Project, project.id)
    draft.delete(Workspace, workspace.id)
