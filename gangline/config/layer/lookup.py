"""PURE: finds workspaces, projects, templates and models by their names, and makes the errors for names that do not
exist.

The SDK, the gateway and the leading scheduler use it, so that all refuse a name with the same message.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from typing import Any

from gangline.domain.experiment import Project, Workspace
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE, PROJECT, WORKSPACE, N, Named, NamedKind
from gangline.errors import GanglineError, conflict, invalid, not_found

# Least similarity of a suggestion. Low, because one changed character is a large share of a short name.
_LEAST_ALIKE = 0.5


def find_named(kind: NamedKind[N], name: str, records: Iterable[N], parent: Any = None) -> N:
    """Returns the record of this name. parent: the record that holds it; None for a kind without parents.

    Raises GanglineError `<kind>.not_found`.
    """
    parent_id = parent.id if parent is not None else 0
    by_name = {record.name: record for record in records if kind.parent_id_of(record) == parent_id}
    if kind.default is not None and kind.parent_id_of(kind.default) == parent_id:
        # A leader of an earlier version has written no record of it.
        by_name.setdefault(kind.default.name, kind.default)
    if name in by_name:
        return by_name[name]
    within = f" in {kind.parent.noun} {parent.name!r}" if kind.parent is not None else ""
    verb, rest = kind.creation
    command = f"gangline {kind.noun} {verb} {_quote(name, parent)}{rest}"
    raise not_found(
        f"{kind.noun}.not_found",
        f"there is no {kind.noun} {name!r}{within}; {_suggest(name, by_name)}{verb} it with: {command}",
    )


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
    workspace = find_named(WORKSPACE, workspace_name, workspaces)
    return workspace, find_named(PROJECT, project_name, projects, workspace)


def check_open(workspace: Workspace, project: Project) -> None:
    """Refuses new experiments in archived projects and workspaces. Raises GanglineError `workspace.archived`,
    `project.archived`."""
    check_unarchived(WORKSPACE, workspace)
    check_unarchived(PROJECT, project, workspace)


def check_unarchived(kind: NamedKind[N], record: N, parent: Named | None = None) -> None:
    """Raises GanglineError `<kind>.archived`."""
    if getattr(record, "archived", False):
        raise conflict(
            f"{kind.noun}.archived",
            f"{kind.noun} {record.name!r} is archived: it takes no new {kind.contents}, and nothing in it is edited; "
            f"unarchive it with: gangline {kind.noun} unarchive {_quote(record.name, parent)}",
        )


def unknown_id(kind: NamedKind[Any], record_id: int) -> GanglineError:
    """Makes the error for an id that no record of the kind has."""
    return not_found(
        f"{kind.noun}.not_found", f"there is no {kind.noun} {record_id}; list them with: gangline {kind.noun} list"
    )


def _quote(name: str, parent: Named | None) -> str:
    """Returns the arguments of a command that names the record."""
    return shlex.join([parent.name, name] if parent is not None else [name])


def _suggest(wanted: str, names: Iterable[str]) -> str:
    by_folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(wanted.casefold(), by_folded, 1, _LEAST_ALIKE)
    return f"did you mean {by_folded[near[0]]!r}? if not, " if near else ""
