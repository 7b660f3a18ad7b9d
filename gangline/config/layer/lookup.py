"""PURE: finds workspaces, projects and templates by their names, and makes the errors for names that do not exist.

The SDK, the gateway and the leading scheduler use it, so that all refuse a name with the same message.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable

from gangline.domain.experiment import (
    DEFAULT_PROJECT_ID,
    DEFAULT_WORKSPACE_ID,
    UNCATEGORIZED,
    Project,
    Template,
    Workspace,
)
from gangline.errors import GanglineError, conflict, invalid, not_found

DEFAULT_WORKSPACE = Workspace(DEFAULT_WORKSPACE_ID, UNCATEGORIZED)
DEFAULT_PROJECT = Project(DEFAULT_PROJECT_ID, DEFAULT_WORKSPACE_ID, UNCATEGORIZED)
# Least similarity of a suggestion. Low, because one changed character is a large share of a short name.
_LEAST_ALIKE = 0.5


def find_workspace(name: str, workspaces: Iterable[Workspace]) -> Workspace:
    """Raises GanglineError `workspace.not_found`."""
    by_name = {workspace.name: workspace for workspace in workspaces} or {UNCATEGORIZED: DEFAULT_WORKSPACE}
    if name in by_name:
        return by_name[name]
    text = f"there is no workspace {name!r}; {_suggest(name, by_name)}create it with: gangline workspace create"
    raise not_found("workspace.not_found", f"{text} {shlex.quote(name)}")


def find_project(workspace: Workspace, name: str, projects: Iterable[Project]) -> Project:
    """Returns the workspace's project of this name. Raises GanglineError `project.not_found`."""
    by_name = {project.name: project for project in projects if project.workspace_id == workspace.id}
    if workspace.id == DEFAULT_WORKSPACE_ID:
        # A leader of an earlier version has written no record of it.
        by_name.setdefault(UNCATEGORIZED, DEFAULT_PROJECT)
    if name in by_name:
        return by_name[name]
    text = f"there is no project {name!r} in workspace {workspace.name!r}; {_suggest(name, by_name)}create it with"
    command = f"gangline project create {shlex.quote(workspace.name)} {shlex.quote(name)}"
    raise not_found("project.not_found", f"{text}: {command}")


def find_home(
    workspace_name: str, project_name: str, workspaces: Iterable[Workspace], projects: Iterable[Project]
) -> tuple[Workspace, Project]:
    """Returns the workspace and the project that a configuration names; both empty name the default project.

    Raises GanglineError `project.incomplete`, `workspace.not_found`, `project.not_found`.
    """
    if not workspace_name and not project_name:
        return DEFAULT_WORKSPACE, DEFAULT_PROJECT
    if not workspace_name or not project_name:
        given, missing = ("workspace", "project") if workspace_name else ("project", "workspace")
        name = workspace_name or project_name
        raise invalid(
            "project.incomplete", f"the configuration names the {given} {name!r}, but no {missing}; name both or none"
        )
    workspace = find_workspace(workspace_name, workspaces)
    return workspace, find_project(workspace, project_name, projects)


def find_template(name: str, templates: Iterable[Template]) -> Template:
    """Raises GanglineError `template.not_found`."""
    by_name = {template.name: template for template in templates}
    if name in by_name:
        return by_name[name]
    text = f"there is no template {name!r}; {_suggest(name, by_name)}set it with: gangline template set"
    raise not_found("template.not_found", f"{text} {shlex.quote(name)} FILE")


def check_open(workspace: Workspace, project: Project) -> None:
    """Refuses new experiments in archived projects and workspaces. Raises GanglineError `workspace.archived`,
    `project.archived`."""
    if workspace.archived:
        raise archived("workspace", workspace.name, shlex.quote(workspace.name))
    if project.archived:
        raise archived("project", project.name, f"{shlex.quote(workspace.name)} {shlex.quote(project.name)}")


def archived(kind: str, name: str, arguments: str) -> GanglineError:
    """Makes the error for an archived workspace or project. arguments: those of the command that names it."""
    return conflict(
        f"{kind}.archived",
        f"{kind} {name!r} is archived: it takes no new experiments, and nothing in it is edited; unarchive it with: "
        f"gangline {kind} unarchive {arguments}",
    )


def no_workspace(workspace_id: int) -> GanglineError:
    return not_found(
        "workspace.not_found", f"there is no workspace {workspace_id}; list them with: gangline workspace list"
    )


def no_project(project_id: int) -> GanglineError:
    return not_found("project.not_found", f"there is no project {project_id}; list them with: gangline project list")


def _suggest(wanted: str, names: Iterable[str]) -> str:
    by_folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(wanted.casefold(), by_folded, 1, _LEAST_ALIKE)
    return f"did you mean {by_folded[near[0]]!r}? if not, " if near else ""
