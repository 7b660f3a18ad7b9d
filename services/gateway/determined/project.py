"""Workspaces, projects and templates in Determined's form."""

from __future__ import annotations

import json
from typing import Any

from gangline.domain.experiment import (
    DEFAULT_WORKSPACE_ID,
    ProjectChange,
    Template,
)
from gangline.domain.named_kind import PROJECT, WORKSPACE, NamedKind
from gangline.domain.state import ProjectAction
from gangline.domain.view import ProjectView, WorkspaceView
from services.gateway.determined.call import Call, Handler, Routes, page_of
from services.gateway.determined.values import Json, load

_NO_STATE = "WORKSPACE_STATE_UNSPECIFIED"


async def list_workspaces(call: Call) -> Json:
    """Lists workspaces by name. name: part of it, unless nameCaseSensitive gives it as a whole."""
    name, whole = call.query.get("name", "").lower(), call.query.get("nameCaseSensitive", "")
    wanted = [
        view
        for view in call.cases.projects.list_workspaces()
        if name in view.workspace.name.lower()
        and whole in ("", view.workspace.name)
        and call.is_set("archived") in (None, view.workspace.archived)
    ]
    shown, pagination = page_of(wanted, call)
    return {"workspaces": [_describe_workspace(call, view) for view in shown], "pagination": pagination}


async def find_workspace(call: Call) -> Json:
    return await _workspace(call, call.number("id"))


async def create_workspace(call: Call) -> Json:
    workspace = await call.cases.projects.update(WORKSPACE, ProjectAction.CREATE, change=_workspace_change(call))
    assert workspace is not None, "a workspace that was created is there"
    return await _workspace(call, workspace.id)


async def edit_workspace(call: Call) -> Json:
    await call.cases.projects.update(WORKSPACE, ProjectAction.EDIT, call.number("id"), _workspace_change(call))
    return await _workspace(call, call.number("id"))


def _workspace_change(call: Call) -> ProjectChange:
    storage = call.body.get("checkpointStorageConfig")
    return ProjectChange(
        name=call.text("name") or None,
        resource_pool=call.text("defaultComputePool") or call.text("defaultComputeResourcePool") or None,
        checkpoint_storage_json=json.dumps(storage) if storage is not None else None,
    )


async def _workspace(call: Call, workspace_id: int) -> Json:
    view = await call.cases.projects.view_workspace(workspace_id)
    return {"workspace": _describe_workspace(call, view), "namespaceBindings": {}}


def _describe_workspace(call: Call, view: WorkspaceView) -> Json:
    """Returns v1Workspace."""
    workspace = view.workspace
    return {
        "id": workspace.id,
        "name": workspace.name,
        "archived": workspace.archived,
        "username": workspace.owner,
        "userId": call.authenticator.number_of_user(workspace.owner),
        "immutable": workspace.is_immutable,
        "numProjects": view.num_projects,
        "numExperiments": view.num_experiments,
        "pinned": False,
        "state": _NO_STATE,
        "errorMessage": "",
        "defaultComputePool": workspace.defaults.resource_pool,
        "defaultAuxPool": "",
    }


async def list_projects(call: Call) -> Json:
    """Lists the projects of a workspace. name: part of it."""
    workspace = (await call.cases.projects.view_workspace(call.number("id"))).workspace
    name = call.query.get("name", "").lower()
    wanted = [
        view
        for view in await call.cases.projects.list_projects(workspace.name)
        if name in view.project.name.lower() and call.is_set("archived") in (None, view.project.archived)
    ]
    shown, pagination = page_of(wanted, call)
    return {"projects": [_describe_project(call, view) for view in shown], "pagination": pagination}


async def find_project(call: Call) -> Json:
    return await _project(call, call.number("id"))


async def create_project(call: Call) -> Json:
    change = ProjectChange(name=call.text("name"), description=call.text("description"))
    project = await call.cases.projects.update(
        PROJECT, ProjectAction.CREATE, change=change, parent_id=call.number("id")
    )
    assert project is not None, "a project that was created is there"
    return await _project(call, project.id)


async def edit_project(call: Call) -> Json:
    description = call.text("description") if call.body.get("description") is not None else None
    change = ProjectChange(name=call.text("name") or None, description=description)
    await call.cases.projects.update(PROJECT, ProjectAction.EDIT, call.number("id"), change)
    return await _project(call, call.number("id"))


async def _project(call: Call, project_id: int) -> Json:
    return {"project": _describe_project(call, await call.cases.projects.view_project(project_id))}


def _describe_project(call: Call, view: ProjectView) -> Json:
    """Returns v1Project."""
    project = view.project
    return {
        "id": project.id,
        "name": project.name,
        "description": project.description,
        "workspaceId": project.workspace_id,
        "workspaceName": view.workspace_name,
        "archived": view.is_archived,
        "username": project.owner,
        "userId": call.authenticator.number_of_user(project.owner),
        "immutable": project.is_immutable,
        "numExperiments": view.num_experiments,
        "numActiveExperiments": view.num_active_experiments,
        "numRuns": view.num_experiments,
        "key": "",
        "notes": [],
        "state": _NO_STATE,
        "errorMessage": "",
    }


async def list_templates(call: Call) -> Json:
    name = call.query.get("name", "").lower()
    wanted = [each for each in call.cases.projects.list_templates() if name in each.name.lower()]
    shown, pagination = page_of(wanted, call)
    return {"templates": [_describe_template(template) for template in shown], "pagination": pagination}


async def find_template(call: Call) -> Json:
    return {"template": _describe_template(await call.cases.projects.find_template(call.path["name"]))}


async def create_template(call: Call) -> Json:
    """Creates a template, or replaces its settings."""
    return await _set_template(call, call.body.get("config"))


async def edit_template(call: Call) -> Json:
    """Replaces the settings of a template that is there. The body is its configuration."""
    await call.cases.projects.find_template(call.path["name"])
    answer = await _set_template(call, call.body)
    return {**answer, "config": answer["template"]["config"]}


async def _set_template(call: Call, config: object) -> Json:
    config_json = json.dumps(config or {})
    template = await call.cases.projects.set_template(call.path["name"], config_json)
    return {"template": _describe_template(template)}


async def remove_template(call: Call) -> Json:
    await call.cases.projects.remove_template(call.path["name"])
    return {}


def _describe_template(template: Template) -> Json:
    """Returns v1Template. Templates here belong to no workspace."""
    return {"name": template.name, "config": load(template.config_json), "workspaceId": DEFAULT_WORKSPACE_ID}


def _acting(kind: NamedKind[Any], action: ProjectAction) -> Handler:
    """Returns the handler of an action that takes nothing but an id."""

    async def act(call: Call) -> Json:
        await call.cases.projects.update(kind, action, call.number("id"))
        return {"completed": True} if action is ProjectAction.DELETE else {}

    return act


ROUTES: Routes = (
    ("GET", "/api/v1/workspaces", list_workspaces),
    ("POST", "/api/v1/workspaces", create_workspace),
    ("GET", "/api/v1/workspaces/{id}", find_workspace),
    ("PATCH", "/api/v1/workspaces/{id}", edit_workspace),
    ("DELETE", "/api/v1/workspaces/{id}", _acting(WORKSPACE, ProjectAction.DELETE)),
    ("POST", "/api/v1/workspaces/{id}/archive", _acting(WORKSPACE, ProjectAction.ARCHIVE)),
    ("POST", "/api/v1/workspaces/{id}/unarchive", _acting(WORKSPACE, ProjectAction.UNARCHIVE)),
    ("GET", "/api/v1/workspaces/{id}/projects", list_projects),
    ("POST", "/api/v1/workspaces/{id}/projects", create_project),
    ("GET", "/api/v1/projects/{id}", find_project),
    ("PATCH", "/api/v1/projects/{id}", edit_project),
    ("DELETE", "/api/v1/projects/{id}", _acting(PROJECT, ProjectAction.DELETE)),
    ("POST", "/api/v1/projects/{id}/archive", _acting(PROJECT, ProjectAction.ARCHIVE)),
    ("POST", "/api/v1/projects/{id}/unarchive", _acting(PROJECT, ProjectAction.UNARCHIVE)),
    ("GET", "/api/v1/templates", list_templates),
    ("GET", "/api/v1/templates/{name}", find_template),
    ("POST", "/api/v1/templates/{name}", create_template),
    ("PATCH", "/api/v1/templates/{name}", edit_template),
    ("DELETE", "/api/v1/templates/{name}", remove_template),
)
