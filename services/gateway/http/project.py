"""Routes and JSON of workspaces, projects and templates. Paths and names are those of Determined's REST API."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter

from gangline.config.layer.template_check import read_template
from gangline.domain import experiment
from gangline.domain.experiment import ProjectChange
from gangline.domain.named_kind import PROJECT, WORKSPACE
from gangline.domain.state import ProjectAction
from gangline.domain.view import ProjectView, WorkspaceView
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.model import Body, Experiment, ExperimentAnswer, Int64
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.bundle import UserCases
from services.gateway.usecase.shared.parsing import off_loop

router = APIRouter(prefix="/api/v1", tags=["projects"], route_class=Route, responses=ERRORS)


class Workspace(
    Answer,
    record=WorkspaceView,
    shows="id=workspace.id name=workspace.name username=workspace.owner archived=workspace.archived num_projects "
    "num_experiments default_compute_pool=workspace.defaults.resource_pool "
    "checkpoint_storage_config=workspace.defaults.checkpoint_storage_json "
    "default_template=workspace.defaults.template created_at=workspace.created_at immutable=workspace.is_immutable",
):
    """default_template is Gangline's own."""


class Project(
    Answer,
    record=ProjectView,
    shows="id=project.id name=project.name workspace_id=project.workspace_id workspace_name "
    "description=project.description username=project.owner archived=is_archived num_experiments "
    "num_active_experiments default_resource_pool=project.defaults.resource_pool "
    "checkpoint_storage_config=project.defaults.checkpoint_storage_json default_template=project.defaults.template "
    "created_at=project.created_at immutable=project.is_immutable",
):
    """default_resource_pool, checkpoint_storage_config and default_template are Gangline's own."""


class Template(Answer, record=experiment.Template, shows="name username config created_at updated_at"): ...


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


class WorkspaceBody(Body, example={"name": "lab"}):
    """Absent fields stay as they are. An empty text, or an empty object, unsets a default."""

    name: str | None = None
    default_compute_pool: str | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_template: str | None = None


class ProjectBody(Body, example={"name": "vision"}):
    """As for a workspace."""

    name: str | None = None
    description: str | None = None
    default_resource_pool: str | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_template: str | None = None


class TemplateBody(Body, example={"config": "resources: {slots_per_trial: 4}\n"}):
    config: str | dict[str, Any]  # YAML as text, or the same as a JSON object
    name: str | None = None


class MoveBody(Body, example={"destinationProjectId": 2}):
    destination_project_id: Int64
    experiment_id: Int64 | None = None


@router.get("/workspaces")
async def list_workspaces(cases: Cases, *, name: str = "", archived: bool | None = None) -> WorkspaceList:
    """Lists workspaces by name. name: only the one of this name. archived: only archived ones, or only the others."""
    views = cases.projects.list_workspaces()
    return WorkspaceList(
        workspaces=[
            Workspace.model_validate(view)
            for view in views
            if name in ("", view.workspace.name) and archived in (None, view.workspace.archived)
        ]
    )


@router.get("/workspaces/{workspace_id}")
async def get_workspace(workspace_id: Int64, cases: Cases) -> WorkspaceAnswer:
    return WorkspaceAnswer(workspace=Workspace.model_validate(await cases.projects.view_workspace(workspace_id)))


@router.post("/workspaces")
async def post_workspace(body: WorkspaceBody, cases: KeyedCases) -> WorkspaceAnswer:
    """Creates a workspace. The same Idempotency-Key creates nothing twice."""
    change = _workspace_change(body)
    created = await cases.projects.update(WORKSPACE, ProjectAction.CREATE, change=change)
    return await _workspace_answer(cases, created.id if created is not None else 0)


@router.patch("/workspaces/{workspace_id}")
async def patch_workspace(workspace_id: Int64, body: WorkspaceBody, cases: KeyedCases) -> WorkspaceAnswer:
    change = _workspace_change(body)
    await cases.projects.update(WORKSPACE, ProjectAction.EDIT, workspace_id, change)
    return await _workspace_answer(cases, workspace_id)


@router.delete("/workspaces/{workspace_id}")
async def delete_workspace(workspace_id: Int64, cases: KeyedCases) -> Completed:
    """Deletes a workspace without experiments."""
    await cases.projects.update(WORKSPACE, ProjectAction.DELETE, workspace_id)
    return Completed()


@router.post("/workspaces/{workspace_id}/archive")
async def archive_workspace(workspace_id: Int64, cases: KeyedCases) -> Done:
    """Keeps new experiments out of the workspace."""
    await cases.projects.update(WORKSPACE, ProjectAction.ARCHIVE, workspace_id)
    return Done()


@router.post("/workspaces/{workspace_id}/unarchive")
async def unarchive_workspace(workspace_id: Int64, cases: KeyedCases) -> Done:
    await cases.projects.update(WORKSPACE, ProjectAction.UNARCHIVE, workspace_id)
    return Done()


@router.get("/workspaces/{workspace_id}/projects")
async def list_projects(workspace_id: Int64, cases: Cases, name: str = "") -> ProjectList:
    """Lists the projects of a workspace by name. name: only the one of this name."""
    workspace = (await cases.projects.view_workspace(workspace_id)).workspace
    views = await cases.projects.list_projects(workspace.name)
    return ProjectList(projects=[Project.model_validate(view) for view in views if name in ("", view.project.name)])


@router.post("/workspaces/{workspace_id}/projects")
async def post_project(workspace_id: Int64, body: ProjectBody, cases: KeyedCases) -> ProjectAnswer:
    """Creates a project. The same Idempotency-Key creates nothing twice."""
    change = _project_change(body)
    created = await cases.projects.update(PROJECT, ProjectAction.CREATE, change=change, parent_id=workspace_id)
    return await _project_answer(cases, created.id if created is not None else 0)


@router.get("/projects/{project_id}")
async def get_project(project_id: Int64, cases: Cases) -> ProjectAnswer:
    return await _project_answer(cases, project_id)


@router.patch("/projects/{project_id}")
async def patch_project(project_id: Int64, body: ProjectBody, cases: KeyedCases) -> ProjectAnswer:
    await cases.projects.update(PROJECT, ProjectAction.EDIT, project_id, _project_change(body))
    return await _project_answer(cases, project_id)


@router.delete("/projects/{project_id}")
async def delete_project(project_id: Int64, cases: KeyedCases) -> Completed:
    """Deletes a project without experiments."""
    await cases.projects.update(PROJECT, ProjectAction.DELETE, project_id)
    return Completed()


@router.post("/projects/{project_id}/archive")
async def archive_project(project_id: Int64, cases: KeyedCases) -> Done:
    """Keeps new experiments out of the project."""
    await cases.projects.update(PROJECT, ProjectAction.ARCHIVE, project_id)
    return Done()


@router.post("/projects/{project_id}/unarchive")
async def unarchive_project(project_id: Int64, cases: KeyedCases) -> Done:
    await cases.projects.update(PROJECT, ProjectAction.UNARCHIVE, project_id)
    return Done()


@router.post("/experiments/{experiment_id}/move")
async def move_experiment(experiment_id: Int64, body: MoveBody, cases: KeyedCases) -> ExperimentAnswer:
    """Moves an experiment into another project."""
    moved = await cases.projects.move_experiment(experiment_id, body.destination_project_id)
    return ExperimentAnswer(experiment=Experiment.model_validate(moved))


@router.get("/templates")
async def list_templates(cases: Cases) -> TemplateList:
    return TemplateList.model_validate({"templates": cases.projects.list_templates()})


@router.get("/templates/{name}")
async def get_template(name: str, cases: Cases) -> TemplateAnswer:
    return TemplateAnswer(template=Template.model_validate(await cases.projects.find_template(name)))


@router.put("/templates/{name}")
async def put_template(name: str, body: TemplateBody, cases: KeyedCases) -> TemplateAnswer:
    """Creates a template, or replaces its settings. Experiments that were made from it stay as they are."""
    config = body.config
    config_json = await off_loop(read_template, config) if isinstance(config, str) else json.dumps(config)
    template = await cases.projects.set_template(name, config_json)
    return TemplateAnswer(template=Template.model_validate(template))


@router.delete("/templates/{name}")
async def delete_template(name: str, cases: KeyedCases) -> Done:
    await cases.projects.remove_template(name)
    return Done()


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


async def _workspace_answer(cases: UserCases, workspace_id: int) -> WorkspaceAnswer:
    return WorkspaceAnswer(workspace=Workspace.model_validate(await cases.projects.view_workspace(workspace_id)))


async def _project_answer(cases: UserCases, project_id: int) -> ProjectAnswer:
    return ProjectAnswer(project=Project.model_validate(await cases.projects.view_project(project_id)))
