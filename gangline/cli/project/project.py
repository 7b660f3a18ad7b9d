"""`gangline project ...`: creates, lists and changes projects, which hold experiments."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.project.named_command import (
    CommandGroup,
    Defaults,
    Options,
    ProjectName,
    WorkspaceName,
    add_changes,
    add_create,
)
from gangline.cli.shared import Json, Wide, connect, new_group, show, show_table
from gangline.domain.named_kind import PROJECT

if TYPE_CHECKING:
    from gangline.domain.experiment import Inheritance
    from gangline.domain.view import ProjectView

app = new_group("Create, list and change projects, which hold experiments.")

_COLUMNS = (
    Column("ID"),
    Column("WORKSPACE", 8, least=10),
    Column("NAME", 9, least=12),
    Column("OWNER", 4, least=8),
    Column("EXPERIMENTS", 7),
    Column("ACTIVE", 6),
    Column("STATE", 8),
    Column("AGE", 3),
)


@dataclass(frozen=True)
class _Described(Options):
    description: Annotated[str | None, typer.Option(help="What the project is about.")] = None


@dataclass(frozen=True)
class _Options(Defaults, _Described):
    """The options of the last base come first."""


_GROUP = CommandGroup(
    PROJECT,
    {"workspace": WorkspaceName, "name": ProjectName},
    _Options,
    Annotated[str | None, typer.Option("--new-name", "--new_name", metavar="NAME", help="The new name.")],
    {
        "create": "Create a project. Its defaults override those of its workspace.",
        "edit": "Rename a project, or change its description or defaults. Experiments that exist keep their settings.",
        "archive": "Keep new experiments out of a project.",
        "unarchive": "Let new experiments into an archived project again.",
        "delete": "Delete a project. It is refused while experiments are in it.",
    },
)
add_create(app, _GROUP)


@app.command("list")
@app.command("ls", hidden=True)
def list_projects(
    workspace: Annotated[str, typer.Argument(metavar="[WORKSPACE]", help="Only those of this workspace.")] = "",
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List projects by workspace and name."""
    show_projects(workspace, is_json=is_json, is_wide=is_wide)


@app.command()
def describe(workspace: WorkspaceName, name: ProjectName, is_json: Json = False) -> None:
    """Show one project, and the settings that its new experiments inherit, each with its source."""
    with connect() as client:
        view = client.find_project(workspace, name)
        is_closed = view.project.archived or view.workspace_archived
        # No experiment goes into an archived project.
        inheritance = None if is_closed else client.inherit_from(workspace, name)
    show({"project": view, "inherits": inheritance}, is_json, lambda: _lines(view, inheritance))


@app.command("list-experiments")
def list_experiments(
    workspace: WorkspaceName,
    name: ProjectName,
    *,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.", min=1, max=1000)] = 50,
    is_all: Annotated[bool, typer.Option("--all", "-a", help="Archived ones as well.")] = False,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List the experiments of a project, as `gangline experiment list`."""
    from gangline.cli.experiment import show_experiments  # noqa: PLC0415 - one command needs it

    with connect() as client:
        listed = client.list_progress(limit, archived=None if is_all else False, workspace=workspace, project=name)
    show_experiments(listed, is_json=is_json, is_wide=is_wide)


add_changes(app, _GROUP)


def show_projects(workspace: str, *, is_json: bool, is_wide: bool) -> None:
    with connect() as client:
        views = client.list_projects(workspace)
    now = time.time()
    rows = [
        (
            view.project.id,
            view.workspace_name,
            view.project.name,
            view.project.owner,
            view.num_experiments,
            view.num_active_experiments,
            "ARCHIVED" if view.project.archived or view.workspace_archived else "",
            format_age(view.project.created_at, now) if view.project.created_at else "",
        )
        for view in views
    ]
    empty = "no projects yet; create one with gangline project create"
    show_table(views, _COLUMNS, rows, empty, is_json=is_json, is_wide=is_wide)


def _lines(view: ProjectView, inheritance: Inheritance | None) -> list[str]:
    project = view.project
    number = "1 experiment" if view.num_experiments == 1 else f"{view.num_experiments} experiments"
    lines = [
        f"project {project.id} {project.name} of workspace {view.workspace_name}: {number}, "
        f"{view.num_active_experiments} active"
    ]
    lines += [f"  {project.description}"] if project.description else []
    lines += [f"  owner: {project.owner}"] if project.owner else []
    if inheritance is None:
        return [*lines, "archived: it takes no new experiments"]
    from gangline.config.merge import describe_merged, merge  # noqa: PLC0415 - loads pydantic

    inherited = [f"  {line}" for line in describe_merged(merge(inheritance.layers, {}))]
    head = "new experiments inherit, where their own YAML sets nothing else:"
    return [*lines, head, *inherited] if inherited else [*lines, "new experiments inherit nothing"]
