"""PURE: the project of an experiment: the one into which a new experiment goes, and moves into another one."""

from __future__ import annotations

from dataclasses import replace

from gangline.config.layer.lookup import check_open, find_home, unknown_id
from gangline.domain.access import Role
from gangline.domain.experiment import Experiment, Project
from gangline.domain.named_kind import PROJECT, WORKSPACE
from gangline.domain.settled.reading import with_values
from gangline.errors import conflict
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.transition.project.named_change import find_record
from services.scheduler.transition.rights import (
    check_experiment_change,
    check_operation,
    check_role,
    role_in,
    seen_workspaces,
    workspace_id_of,
)


def home_of(records: Records, user: str, workspace_name: str, project_name: str) -> Project:
    """Returns the project into which a new experiment of the user goes. Raises GanglineError `project.*`,
    `workspace.*`, `auth.no_role`."""
    seen = seen_workspaces(records, user)
    workspace, project = find_home(workspace_name, project_name, seen, records.all_of(Project))
    check_role(records, user, Role.EDITOR, workspace.id, f"create experiments in project {project.name!r}")
    check_open(workspace, project)
    return project


def move_to_project(records: Records, user: str, experiment_id: int, project_id: int) -> StateChange:
    """Moves the experiment, and names its new project in its configuration too, so that everything that reads it sees
    it. Nothing changes if it is there already.

    Raises GanglineError `experiment.not_found`, `experiment.deleting`, `project.not_found`, `project.archived`,
    `workspace.archived`, `auth.not_owner`, `auth.no_role`.
    """
    experiment = get(records, Experiment, experiment_id)
    action = f"move experiment {experiment_id}"
    check_operation(records, user, experiment, action)
    project = find_record(records, PROJECT, project_id)
    if role_in(records, user, project.workspace_id) is None:
        raise unknown_id(PROJECT, project_id)
    check_role(records, user, Role.EDITOR, project.workspace_id, f"move experiments into project {project.name!r}")
    if project.workspace_id != workspace_id_of(records, experiment):
        # The admins of the other workspace get all rights over it.
        check_experiment_change(records, user, experiment, f"{action} into another workspace")
    if experiment.home_id == project.id:
        return StateChange()
    if experiment.is_deleting:
        raise conflict("experiment.deleting", f"experiment {experiment_id} is being deleted; nothing else changes it")
    workspace = find_record(records, WORKSPACE, project.workspace_id)
    check_open(workspace, project)
    config_json = with_values(experiment.config_json, {("workspace",): workspace.name, ("project",): project.name})
    draft = Draft(records)
    draft.put(replace(experiment, project_id=project.id, config_json=config_json))
    return draft.change
