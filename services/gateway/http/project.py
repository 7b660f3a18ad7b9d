"""Routes and JSON of workspaces, projects and templates. Paths and names are those of Determined's REST API."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import Field

from gangline.config.layer.template_check import read_template
from gangline.domain.experiment import DEFAULT_PROJECT_ID, DEFAULT_WORKSPACE_ID, ProjectChange
from gangline.domain.state import ProjectAction
from gangline.domain.view import ProjectView, WorkspaceView
from services.common.server import Principal
from services.gateway.http.admission import Caller, Cases
from services.gateway.http.model import Answer, Body, Document, Experiment, ExperimentAnswer, Instant, Int64
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.bundle import UseCases
from services.gateway.usecase.parsing import off_loop

router = APIRouter(prefix="/api/v1", tags=["projects"], route_class=Route, responses=ERRORS)

Key = Annotated[str | None, Header(alias="Idempotency-Key")]


class Workspace(Answer):
    """default_template is Gangline's own. immutable: it belongs to the cluster."""

    id: int
    name: str
    username: str
    archived: bool
    num_projects: int
    num_experiments: int
    default_compute_pool: str
    checkpoint_storage_config: Document
    default_template: str
    created_at: Instant
    immutable: bool


class Project(Answer):
    """default_resource_pool, checkpoint_storage_config and default_template are Gangline's own."""

    id: int
    name: str
    workspace_id: int
    workspace_name: str
    description: str
    username: str
    archived: bool
    num_experiments: int
    num_active_experiments: int
    default_resource_pool: str
    checkpoint_storage_config: Document
    default_template: str
    created_at: Instant
    immutable: bool


class Template(Answer):
    name: str
    username: str = Field(validation_alias="owner")
    config: Document = Field(validation_alias="config_json")
    created_at: Instant
    updated_at: Instant


class WorkspaceAnswer(Answer):
    workspace: Workspace


class WorkspaceList(Answer):
    workspaces: list[Workspace]


class ProjectAnswer(Answer):
    project: Project


class ProjectList(Answer):
    projects: list[Project]


class TemplateAnswer(Answer):
    template: Template


class TemplateList(Answer):
    templates: list[Template]


class Completed(Answer):
    """Determined deletes in the background; here a deletion is complete when it is answered."""

    completed: bool = True


class Done(Answer):
    pass


class WorkspaceBody(Body):
    """Absent fields stay as they are. An empty text, or an empty object, unsets a default."""

    name: str | None = None
    default_compute_pool: str | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_template: str | None = None


class ProjectBody(Body):
    """As for a workspace."""

    name: str | None = None
    description: str | None = None
    default_resource_pool: str | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_template: str | None = None


class TemplateBody(Body):
    """config: the YAML as text, or the same as a JSON object."""

    config: str | dict[str, Any]
    name: str | None = None


class MoveBody(Body):
    destination_project_id: Int64
    experiment_id: Int64 | None = None


@router.get("/workspaces")
async def list_workspaces(
    caller: Caller, cases: Cases, *, name: str = "", archived: bool | None = None
) -> WorkspaceList:
    """Lists workspaces by name. name: only the one of this name. archived: only archived ones, or only the others."""
    views = cases.projects.list_workspaces(caller)
    return WorkspaceList(
        workspaces=[
            _workspace(view)
            for view in views
            if name in ("", view.workspace.name) and archived in (None, view.workspace.archived)
        ]
    )


@router.get("/workspaces/{workspace_id}")
async def get_workspace(workspace_id: Int64, caller: Caller, cases: Cases) -> WorkspaceAnswer:
    return WorkspaceAnswer(workspace=_workspace(await cases.projects.view_workspace(caller, workspace_id)))


@router.post("/workspaces")
async def post_workspace(body: WorkspaceBody, caller: Caller, cases: Cases, key: Key = None) -> WorkspaceAnswer:
    """Creates a workspace. The same Idempotency-Key creates nothing twice."""
    change = _workspace_change(body)
    created = await cases.projects.update_workspace(caller, _id(key), ProjectAction.CREATE, change=change)
    return await _workspace_answer(cases, caller, created.id if created is not None else 0)


@router.patch("/workspaces/{workspace_id}")
async def patch_workspace(
    workspace_id: Int64, body: WorkspaceBody, caller: Caller, cases: Cases, key: Key = None
) -> WorkspaceAnswer:
    change = _workspace_change(body)
    await cases.projects.update_workspace(caller, _id(key), ProjectAction.EDIT, workspace_id, change)
    return await _workspace_answer(cases, caller, workspace_id)


@router.delete("/workspaces/{workspace_id}")
async def delete_workspace(workspace_id: Int64, caller: Caller, cases: Cases, key: Key = None) -> Completed:
    """Deletes a workspace without experiments."""
    await cases.projects.update_workspace(caller, _id(key), ProjectAction.DELETE, workspace_id)
    return Completed()


@router.post("/workspaces/{workspace_id}/archive")
async def archive_workspace(workspace_id: Int64, caller: Caller, cases: Cases, key: Key = None) -> Done:
    """Keeps new experiments out of the workspace."""
    await cases.projects.update_workspace(caller, _id(key), ProjectAction.ARCHIVE, workspace_id)
    return Done()


@router.post("/workspaces/{workspace_id}/unarchive")
async def unarchive_workspace(workspace_id: Int64, caller: Caller, cases: Cases, key: Key = None) -> Done:
    await cases.projects.update_workspace(caller, _id(key), ProjectAction.UNARCHIVE, workspace_id)
    return Done()


@router.get("/workspaces/{workspace_id}/projects")
async def list_projects(workspace_id: Int64, caller: Caller, cases: Cases, name: str = "") -> ProjectList:
    """Lists the projects of a workspace by name. name: only the one of this name."""
    workspace = (await cases.projects.view_workspace(caller, workspace_id)).workspace
    views = await cases.projects.list_projects(caller, workspace.name)
    return ProjectList(projects=[_project(view) for view in views if name in ("", view.project.name)])


@router.post("/workspaces/{workspace_id}/projects")
async def post_project(
    workspace_id: Int64, body: ProjectBody, caller: Caller, cases: Cases, key: Key = None
) -> ProjectAnswer:
    """Creates a project. The same Idempotency-Key creates nothing twice."""
    change = _project_change(body)
    created = await cases.projects.update_project(
        caller, _id(key), ProjectAction.CREATE, change=change, workspace_id=workspace_id
    )
    return await _project_answer(cases, caller, created.id if created is not None else 0)


@router.get("/projects/{project_id}")
async def get_project(project_id: Int64, caller: Caller, cases: Cases) -> ProjectAnswer:
    return await _project_answer(cases, caller, project_id)


@router.patch("/projects/{project_id}")
async def patch_project(
    project_id: Int64, body: ProjectBody, caller: Caller, cases: Cases, key: Key = None
) -> ProjectAnswer:
    await cases.projects.update_project(caller, _id(key), ProjectAction.EDIT, project_id, _project_change(body))
    return await _project_answer(cases, caller, project_id)


@router.delete("/projects/{project_id}")
async def delete_project(project_id: Int64, caller: Caller, cases: Cases, key: Key = None) -> Completed:
    """Deletes a project without experiments."""
    await cases.projects.update_project(caller, _id(key), ProjectAction.DELETE, project_id)
    return Completed()


@router.post("/projects/{project_id}/archive")
async def archive_project(project_id: Int64, caller: Caller, cases: Cases, key: Key = None) -> Done:
    """Keeps new experiments out of the project."""
    await cases.projects.update_project(caller, _id(key), ProjectAction.ARCHIVE, project_id)
    return Done()


@router.post("/projects/{project_id}/unarchive")
async def unarchive_project(project_id: Int64, caller: Caller, cases: Cases, key: Key = None) -> Done:
    await cases.projects.update_project(caller, _id(key), ProjectAction.UNARCHIVE, project_id)
    return Done()


@router.post("/experiments/{experiment_id}/move")
async def move_experiment(
    experiment_id: Int64, body: MoveBody, caller: Caller, cases: Cases, key: Key = None
) -> ExperimentAnswer:
    """Moves an experiment into another project."""
    moved = await cases.projects.move_experiment(caller, _id(key), experiment_id, body.destination_project_id)
    return ExperimentAnswer(experiment=Experiment.model_validate(moved))


@router.get("/templates")
async def list_templates(caller: Caller, cases: Cases) -> TemplateList:
    return TemplateList.model_validate({"templates": cases.projects.list_templates(caller)})


@router.get("/templates/{name}")
async def get_template(name: str, caller: Caller, cases: Cases) -> TemplateAnswer:
    return TemplateAnswer(template=Template.model_validate(await cases.projects.find_template(caller, name)))


@router.put("/templates/{name}")
async def put_template(name: str, body: TemplateBody, caller: Caller, cases: Cases, key: Key = None) -> TemplateAnswer:
    """Creates a template, or replaces its settings. Experiments that were made from it stay as they are."""
    config = body.config
    config_json = await off_loop(read_template, config) if isinstance(config, str) else json.dumps(config)
    template = await cases.projects.set_template(caller, _id(key), name, config_json)
    return TemplateAnswer(template=Template.model_validate(template))


@router.delete("/templates/{name}")
async def delete_template(name: str, caller: Caller, cases: Cases, key: Key = None) -> Done:
    await cases.projects.remove_template(caller, _id(key), name)
    return Done()


def _id(key: str | None) -> str:
    """Returns the request id of the header, or a new one."""
    return key or str(uuid.uuid4())


def _workspace_change(body: WorkspaceBody) -> ProjectChange:
    return ProjectChange(
        name=body.name,
        resource_pool=body.default_compute_pool,
        checkpoint_storage_json=_storage(body.checkpoint_storage_config),
        template=body.default_template,
    )


def _project_change(body: ProjectBody) -> ProjectChange:
    return ProjectChange(
        name=body.name,
        description=body.description,
        resource_pool=body.default_resource_pool,
        checkpoint_storage_json=_storage(body.checkpoint_storage_config),
        template=body.default_template,
    )


def _storage(section: dict[str, Any] | None) -> str | None:
    return None if section is None else json.dumps(section) if section else ""


async def _workspace_answer(cases: UseCases, caller: Principal, workspace_id: int) -> WorkspaceAnswer:
    return WorkspaceAnswer(workspace=_workspace(await cases.projects.view_workspace(caller, workspace_id)))


async def _project_answer(cases: UseCases, caller: Principal, project_id: int) -> ProjectAnswer:
    return ProjectAnswer(project=_project(await cases.projects.view_project(caller, project_id)))


def _workspace(view: WorkspaceView) -> Workspace:
    workspace = view.workspace
    return Workspace.model_validate(
        {
            "id": workspace.id,
            "name": workspace.name,
            "username": workspace.owner,
            "archived": workspace.archived,
            "num_projects": view.num_projects,
            "num_experiments": view.num_experiments,
            "default_compute_pool": workspace.defaults.resource_pool,
            "checkpoint_storage_config": workspace.defaults.checkpoint_storage_json,
            "default_template": workspace.defaults.template,
            "created_at": workspace.created_at,
            "immutable": workspace.id == DEFAULT_WORKSPACE_ID,
        }
    )


def _project(view: ProjectView) -> Project:
    project = view.project
    return Project.model_validate(
        {
            "id": project.id,
            "name": project.name,
            "workspace_id": project.workspace_id,
            "workspace_name": view.workspace_name,
            "description": project.description,
            "username": project.owner,
            "archived": project.archived or view.workspace_archived,
            "num_experiments": view.num_experiments,
            "num_active_experiments": view.num_active_experiments,
            "default_resource_pool": project.defaults.resource_pool,
            "checkpoint_storage_config": project.defaults.checkpoint_storage_json,
            "default_template": project.defaults.template,
            "created_at": project.created_at,
            "immutable": project.id == DEFAULT_PROJECT_ID,
        }
    )
