"""`gangline workspace ...`: creates, lists and changes workspaces, which hold projects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.project.defaults import (
    DefaultTemplate,
    Pool,
    Storage,
    StorageFile,
    WorkspaceName,
    Yes,
    confirm_deletion,
    storage_of,
)
from gangline.cli.shared import Json, Wide, connect, new_group, show, show_table

if TYPE_CHECKING:
    from gangline.domain.experiment import Workspace
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


@app.command()
def create(
    name: WorkspaceName,
    *,
    pool: Pool = None,
    storage: Storage = None,
    storage_file: StorageFile = None,
    template: DefaultTemplate = None,
    is_json: Json = False,
) -> None:
    """Create a workspace. Its defaults apply to all of its projects."""
    with connect() as client:
        workspace = client.create_workspace(
            name, resource_pool=pool, checkpoint_storage=storage_of(storage, storage_file), template=template
        )
    _show(workspace, "created", is_json)


@app.command("list")
@app.command("ls", hidden=True)
def list_workspaces(is_json: Json = False, is_wide: Wide = False) -> None:
    """List workspaces by name."""
    with connect() as client:
        views = client.list_workspaces()
    now = time.time()
    rows = [
        (
            view.workspace.id,
            view.workspace.name,
            view.workspace.owner,
            view.num_projects,
            view.num_experiments,
            "ARCHIVED" if view.workspace.archived else "",
            format_age(view.workspace.created_at, now) if view.workspace.created_at else "",
        )
        for view in views
    ]
    show_table(views, _COLUMNS, rows, "no workspaces", is_json=is_json, is_wide=is_wide)


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


@app.command()
def edit(
    name: WorkspaceName,
    *,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new name.")] = None,
    pool: Pool = None,
    storage: Storage = None,
    storage_file: StorageFile = None,
    template: DefaultTemplate = None,
    is_json: Json = False,
) -> None:
    """Rename a workspace, or change its defaults. Experiments that exist keep their settings."""
    with connect() as client:
        workspace = client.edit_workspace(
            name,
            new_name=new_name,
            resource_pool=pool,
            checkpoint_storage=storage_of(storage, storage_file),
            template=template,
        )
    _show(workspace, "edited", is_json)


@app.command()
def archive(name: WorkspaceName, is_json: Json = False) -> None:
    """Keep new experiments out of all projects of a workspace."""
    with connect() as client:
        _show(client.archive_workspace(name), "archived", is_json)


@app.command()
def unarchive(name: WorkspaceName, is_json: Json = False) -> None:
    """Let new experiments into an archived workspace again."""
    with connect() as client:
        _show(client.unarchive_workspace(name), "unarchived", is_json)


@app.command()
def delete(name: WorkspaceName, is_yes: Yes = False, is_json: Json = False) -> None:
    """Delete a workspace and its projects. It is refused while experiments are in it."""
    confirm_deletion(f"workspace {name} with its projects", is_yes)
    with connect() as client:
        client.delete_workspace(name)
    show({"name": name, "state": "DELETED"}, is_json, lambda: [f"deleted workspace {name}"])


def _show(workspace: Workspace, done: str, is_json: bool) -> None:
    show(workspace, is_json, lambda: [f"{done} workspace {workspace.id} {workspace.name}"])


def _lines(view: WorkspaceView) -> list[str]:
    workspace, defaults = view.workspace, view.workspace.defaults
    lines = [
        f"workspace {workspace.id} {workspace.name}{', archived' if workspace.archived else ''}: "
        f"{view.num_projects} projects, {view.num_experiments} experiments"
    ]
    lines += [f"  owner: {workspace.owner}"] if workspace.owner else []
    lines += [f"  default pool: {defaults.resource_pool}"] if defaults.resource_pool else []
    lines += [f"  default template: {defaults.template}"] if defaults.template else []
    storage = defaults.checkpoint_storage_json
    return [*lines, f"  checkpoint storage: {storage}"] if storage else lines
