"""PURE: creates, edits, archives, unarchives and deletes projects, and moves experiments between them.

Projects are unique by name within their workspace. The default project never changes. A project with experiments is not
deleted. A moved experiment names its new project in its configuration too, so that everything that reads it sees it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from dataclasses import replace

from gangline.config.layer.lookup import (
    DEFAULT_PROJECT,
    DEFAULT_WORKSPACE,
    archived,
    check_open,
    find_home,
    no_project,
    no_workspace,
)
from gangline.config.layer.template_check import check_name
from gangline.domain.experiment import DEFAULT_PROJECT_ID, Experiment, Project, ProjectChange, Workspace
from gangline.domain.state import ProjectAction
from gangline.errors import ErrorKind, GanglineError, conflict
from services.scheduler.state.records import Draft, Records, StateChange, get
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

_DONE = {
    ProjectAction.EDIT: "edited",
    ProjectAction.ARCHIVE: "archived",
    ProjectAction.UNARCHIVE: "unarchived",
    ProjectAction.DELETE: "deleted",
}


def project_of_request(records: Records, request_id: str) -> Project | None:
    """Returns the project that this request created or changed."""
    return next((p for p in records.all_of(Project) if request_id in p.request_ids), None)


def home_of(records: Records, workspace_name: str, project_name: str) -> Project:
    """Returns the project into which a new experiment goes. Raises GanglineError `project.*`, `workspace.*`."""
    workspace, project = find_home(workspace_name, project_name, records.all_of(Workspace), records.all_of(Project))
    check_open(workspace, project)
    return project


def create_project(
    records: Records,
    workspace_id: int,
    change: ProjectChange,
    caller: Caller,
    *,
    pool_names: Collection[str],
    now: float,
) -> StateChange:
    """Creates a project, unless this request has created one; find it by `project_of_request`.

    Raises GanglineError `project.name`, `project.exists`, `workspace.not_found`, `workspace.archived`, and the errors
    of its defaults.
    """
    if project_of_request(records, caller.request_id) is not None:
        return StateChange()
    workspace = _workspace(records, workspace_id)
    if workspace.archived:
        raise archived("workspace", workspace.name, shlex.quote(workspace.name))
    name = change.name or ""
    _check_free(records, workspace, name)
    counter = counter_of(records)
    project = Project(
        counter.next_project_id,
        workspace.id,
        name,
        description=change.description or "",
        owner=caller.user,
        created_at=now,
        request_ids=(caller.request_id,),
    )
    draft = Draft(records)
    draft.put(replace(counter, next_project_id=counter.next_project_id + 1))
    draft.put(replace(project, defaults=with_defaults(records, project.defaults, change, pool_names)))
    return draft.change


def update_project(
    records: Records,
    project_id: int,
    action: ProjectAction,
    change: ProjectChange,
    caller: Caller,
    *,
    pool_names: Collection[str],
) -> StateChange:
    """Edits, archives, unarchives or deletes a project. A request that has changed it before changes nothing.

    Raises GanglineError `project.not_found`, `auth.not_owner`, `project.default`, `project.archived`,
    `project.not_empty`, and the errors of `create_project`.
    """
    if was_removed_by(records, caller):
        return StateChange()
    project = _project(records, project_id)
    if caller.request_id in project.request_ids:
        return StateChange()
    if project.id == DEFAULT_PROJECT_ID:
        raise default_is_fixed("project", project.name, _DONE[action])
    check_owner(caller, project.owner, f"{action.lower()} project {project.name!r}")
    draft = Draft(records)
    if action is ProjectAction.DELETE:
        _check_empty(records, project)
        draft.delete(Project, project.id)
        note_removal(draft, caller)
        return draft.change
    changed = replace(project, archived=action is ProjectAction.ARCHIVE)
    if action is ProjectAction.EDIT:
        changed = _edited(records, project, change, pool_names)
    if changed != project:
        draft.put(replace(changed, request_ids=remember(project.request_ids, caller)))
    return draft.change


def move_to_project(records: Records, experiment_id: int, project_id: int) -> StateChange:
    """Moves the experiment. Nothing changes if it is there already.

    Raises GanglineError `experiment.not_found`, `experiment.deleting`, `project.not_found`, `project.archived`,
    `workspace.archived`.
    """
    experiment = get(records, Experiment, experiment_id)
    project = _project(records, project_id)
    if experiment.home_id == project.id:
        return StateChange()
    if experiment.is_deleting:
        raise conflict("experiment.deleting", f"experiment {experiment_id} is being deleted; nothing else changes it")
    workspace = _workspace(records, project.workspace_id)
    check_open(workspace, project)
    config = json.loads(experiment.config_json)
    config |= {"workspace": workspace.name, "project": project.name}
    draft = Draft(records)
    draft.put(replace(experiment, project_id=project.id, config_json=json.dumps(config, separators=(",", ":"))))
    return draft.change


def _workspace(records: Records, workspace_id: int) -> Workspace:
    workspace = records.find(Workspace, workspace_id)
    if workspace is not None:
        return workspace
    if workspace_id == DEFAULT_WORKSPACE.id:
        return DEFAULT_WORKSPACE
    raise no_workspace(workspace_id)


def _project(records: Records, project_id: int) -> Project:
    project = records.find(Project, project_id)
    if project is not None:
        return project
    if project_id == DEFAULT_PROJECT.id:
        return DEFAULT_PROJECT
    raise no_project(project_id)


def _edited(records: Records, project: Project, change: ProjectChange, pool_names: Collection[str]) -> Project:
    workspace = _workspace(records, project.workspace_id)
    if project.archived:
        raise archived("project", project.name, f"{shlex.quote(workspace.name)} {shlex.quote(project.name)}")
    name = project.name if change.name is None else change.name
    if name != project.name:
        _check_free(records, workspace, name)
    return replace(
        project,
        name=name,
        description=project.description if change.description is None else change.description,
        defaults=with_defaults(records, project.defaults, change, pool_names),
    )


def _check_free(records: Records, workspace: Workspace, name: str) -> None:
    check_name("project", name)
    for other in projects_of(records, workspace):
        if other.name == name:
            raise GanglineError(
                "project.exists",
                f"workspace {workspace.name!r} has a project {name!r} already, of {other.owner or 'the cluster'}; "
                "choose another name",
                ErrorKind.ALREADY_EXISTS,
            )


def _check_empty(records: Records, project: Project) -> None:
    count = experiments_in(records, project.id)
    if count:
        held = f"{count} experiment{'' if count == 1 else 's'}"
        raise conflict(
            "project.not_empty",
            f"project {project.name!r} holds {held}, so it was not deleted; delete them, or move them with: gangline "
            "experiment move ID PROJECT_ID",
        )
