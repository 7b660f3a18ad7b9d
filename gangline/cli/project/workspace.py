"""`gangline workspace ...`: creates, lists and changes workspaces, which hold projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.project.named_command import CommandGroup, Defaults, WorkspaceName, add_changes, add_create
from gangline.cli.shared import Json, Wide, add_list, connect, new_group, show
from gangline.domain.named_kind import WORKSPACE

if TYPE_CHECKING:
    from gangline.domain.view import WorkspaceView

app = new_group("Create, list and change workspaces, which hold projects.")

_COLUMNS = (
    Column("ID"),
    Column("NAME", 9, least=12),
    Column("OWNER", 4, least=8),
    Column("PROJECTS", 6),
    Column("EXPERIMENTS", 7),
    Column("STATE", 8),
    Column("AGE", 3),
)


_GROUP = CommandGroup(
    WORKSPACE,
    {"name": WorkspaceName},
    Defaults,
    Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new name.")],
    {
        "create": "Create a workspace. Its defaults apply to all of its projects.",
        "edit": "Rename a workspace, or change its defaults. Experiments that exist keep their settings.",
        "archive": "Keep new experiments out of all projects of a workspace.",
        "unarchive": "Let new experiments into an archived workspace again.",
        "delete": "Delete a workspace and its projects. It is refused while experiments are in it.",
    },
    " with its projects",
)


def _row(view: WorkspaceView, now: float) -> tuple[object, ...]:
    return (
        view.workspace.id,
        view.workspace.name,
        view.workspace.owner,
        view.num_projects,
        view.num_experiments,
        "ARCHIVED" if view.workspace.archived else "",
        format_age(view.workspace.created_at, now) if view.workspace.created_at else "",
    )


add_create(app, _GROUP)
add_list(
    app,
    "List workspaces by name.",
    lambda client: client.list_workspaces(),
    _COLUMNS,
    _row,
    empty="no workspaces",
)


@app.command()
def describe(name: WorkspaceName, is_json: Json = False) -> None:
    """Show one workspace with its projects and its defaults."""
    with connect() as client:
        view = client.find_workspace(name)
        projects = client.list_projects(name)
    show(
        {"workspace": view, "projects": projects},
        is_json,
        lambda: [*_lines(view), *(f"  project {entry.project.id} {entry.project.name}" for entry in projects)],
    )


@app.command("list-projects")
def list_projects(name: WorkspaceName, is_json: Json = False, is_wide: Wide = False) -> None:
    """List the projects of a workspace, as `gangline project list`."""
    from gangline.cli.project.project import show_projects  # noqa: PLC0415 - one command needs it

    show_projects(name, is_json=is_json, is_wide=is_wide)


add_changes(app, _GROUP)


def _lines(view: WorkspaceView) -> list[str]:
    workspace, defaults = view.workspace, view.workspace.defaults
    lines = [
        f"workspace {workspace.id} {workspace.name}{', archived' if workspace.archived else ''}: "
        f"{view.num_projects} projects, {view.num_experiments} experiments"
    ]
    shown = {
        "owner": workspace.owner,
        "default pool": defaults.resource_pool,
        "default template": defaults.template,
        "checkpoint storage": defaults.checkpoint_storage_json,
    }
    return [*lines, *(f"  {name}: {value}" for name, value in shown.items() if value)]
