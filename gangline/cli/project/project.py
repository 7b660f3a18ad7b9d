"""`gangline project ...`: creates, lists and changes projects, which hold experiments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.project.defaults import (
    DefaultTemplate,
    Pool,
    ProjectName,
    Storage,
    StorageFile,
    WorkspaceName,
    Yes,
    confirm_deletion,
    inherit_or_none,
    inherited_lines,
    storage_of,
)
from gangline.cli.shared import Json, Wide, connect, new_group, show, show_table

if TYPE_CHECKING:
    from gangline.domain.experiment import Inheritance, Project
    from gangline.domain.view import ProjectView

app = new_group("Create, list and change projects, which hold experiments.")

Description = Annotated[str | None, typer.Option(help="What the project is about.")]

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


@app.command()
def create(
    workspace: WorkspaceName,
    name: ProjectName,
    *,
    description: Description = None,
    pool: Pool = None,
    storage: Storage = None,
    storage_file: StorageFile = None,
    template: DefaultTemplate = None,
    is_json: Json = False,
) -> None:
    """Create a project. Its defaults override those of its workspace."""
    with connect() as client:
        project = client.create_project(
            workspace,
            name,
            description=description,
            resource_pool=pool,
            checkpoint_storage=storage_of(storage, storage_file),
            template=template,
        )
    _show(project, workspace, "created", is_json)


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
        is_archived = view.project.archived or view.workspace_archived
        inheritance = inherit_or_none(client, workspace, name, is_archived=is_archived)
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


@app.command()
def edit(
    workspace: WorkspaceName,
    name: ProjectName,
    *,
    new_name: Annotated[
        str | None, typer.Option("--new-name", "--new_name", metavar="NAME", help="The new name.")
    ] = None,
    description: Description = None,
    pool: Pool = None,
    storage: Storage = None,
    storage_file: StorageFile = None,
    template: DefaultTemplate = None,
    is_json: Json = False,
) -> None:
    """Rename a project, or change its description or defaults. Experiments that exist keep their settings."""
    with connect() as client:
        project = client.edit_project(
            workspace,
            name,
            new_name=new_name,
            description=description,
            resource_pool=pool,
            checkpoint_storage=storage_of(storage, storage_file),
            template=template,
        )
    _show(project, workspace, "edited", is_json)


@app.command()
def archive(workspace: WorkspaceName, name: ProjectName, is_json: Json = False) -> None:
    """Keep new experiments out of a project."""
    with connect() as client:
        _show(client.archive_project(workspace, name), workspace, "archived", is_json)


@app.command()
def unarchive(workspace: WorkspaceName, name: ProjectName, is_json: Json = False) -> None:
    """Let new experiments into an archived project again."""
    with connect() as client:
        _show(client.unarchive_project(workspace, name), workspace, "unarchived", is_json)


@app.command()
def delete(workspace: WorkspaceName, name: ProjectName, is_yes: Yes = False, is_json: Json = False) -> None:
    """Delete a project. It is refused while experiments are in it."""
    confirm_deletion(f"project {name} of workspace {workspace}", is_yes)
    with connect() as client:
        client.delete_project(workspace, name)
    show({"name": name, "state": "DELETED"}, is_json, lambda: [f"deleted project {name} of workspace {workspace}"])


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


def _show(project: Project, workspace: str, done: str, is_json: bool) -> None:
    show(project, is_json, lambda: [f"{done} project {project.id} {project.name} of workspace {workspace}"])


def _lines(view: ProjectView, inheritance: Inheritance | None) -> list[str]:
    project = view.project
    lines = [
        f"project {project.id} {project.name} of workspace {view.workspace_name}: {view.num_experiments} experiments, "
        f"{view.num_active_experiments} active"
    ]
    lines += [f"  {project.description}"] if project.description else []
    lines += [f"  owner: {project.owner}"] if project.owner else []
    return [
        *lines,
        *(["archived: it takes no new experiments"] if inheritance is None else inherited_lines(inheritance)),
    ]
