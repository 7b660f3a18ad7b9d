"""The twin of gangline.client.project for asyncio.

Written by scripts/generate_async_client.py from project.py. Change that file, then run `make async-client`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, Unpack

from gangline.client.async_cluster_calls import AsyncClusterCalls
from gangline.client.call_message import new_request_id
from gangline.domain.experiment import (
    EVERY_EXPERIMENT,
    Experiment,
    ExperimentFilter,
    Inheritance,
    Project,
    ProjectChange,
    Template,
    Workspace,
)
from gangline.domain.named_kind import PROJECT, TEMPLATE, WORKSPACE, N, NamedKind
from gangline.domain.state import ProjectAction
from gangline.domain.view import ExperimentProgress, ProjectView, WorkspaceView
from gangline.protocol.wire import enum_number, from_proto, to_proto
from gangline.v1 import gateway_pb2, project_pb2

_NO_CHANGE = ProjectChange()


class ExperimentSelection(TypedDict, total=False):
    """Selects experiments; an absent condition admits all."""

    workspace: str  # name of the workspace that has them
    project: str  # name of the project that has them
    wanted: ExperimentFilter  # labels, states, owners and a part of the name


class HomeSettings(TypedDict, total=False):
    """What experiments of a workspace or a project take where their own configuration leaves it open. An absent setting
    stays as it is, and an empty text unsets it."""

    resource_pool: str | None
    checkpoint_storage: str | None  # the section of a configuration, as YAML or JSON
    template: str | None  # the template of experiments that name none


class AsyncProjectMethods(AsyncClusterCalls):
    """Base of Client. A change of None leaves a value as it is.

    Changes raise GanglineError `workspace.*`, `project.*`, `template.*`, and `auth.not_owner` for users who are neither
    the owner nor administrators.
    """

    async def list_experiments(
        self,
        limit: int = 50,
        before_id: int = 0,
        archived: bool | None = False,
        **selection: Unpack[ExperimentSelection],
    ) -> list[Experiment]:
        """Returns experiments, newest first. before_id: limits them to smaller ids; 0 begins with the newest.
        archived: only archived ones, or only the others; None for both. workspace, project: only those in it, by name;
        empty for all. wanted: labels, states, owners and a part of the name; a gateway of an earlier version ignores
        them."""
        listed = await self.list_progress(limit, before_id, archived=archived, **selection)
        return [experiment for experiment, _ in listed]

    async def list_progress(
        self,
        limit: int = 50,
        before_id: int = 0,
        *,
        archived: bool | None = False,
        workspace: str = "",
        project: str = "",
        wanted: ExperimentFilter = EVERY_EXPERIMENT,
    ) -> list[tuple[Experiment, ExperimentProgress | None]]:
        """Returns the same as `list_experiments`, each experiment with its progress; None from an older gateway."""
        request = gateway_pb2.ListExperimentsRequest(
            limit=limit,
            before_id=before_id,
            archived=archived,
            workspace=workspace,
            project=project,
            filter=to_proto(wanted),
        )
        answer = await self._connection.call(self._stub.ListExperiments, request)
        by_id = {message.experiment_id: from_proto(ExperimentProgress, message) for message in answer.progress}
        return [(from_proto(Experiment, message), by_id.get(message.id)) for message in answer.experiments]

    async def list_workspaces(self) -> list[WorkspaceView]:
        """Returns all workspaces, by name."""
        answer = await self._connection.call(self._stub.ListWorkspaces, project_pb2.ListWorkspacesRequest())
        return [from_proto(WorkspaceView, message) for message in answer.workspaces]

    async def find_workspace(self, name: str) -> WorkspaceView:
        """Returns a workspace. Raises GanglineError `workspace.not_found`, with the nearest name."""
        views = {view.workspace.name: view for view in await self.list_workspaces()}
        return views[_find(WORKSPACE, name, (view.workspace for view in views.values())).name]

    async def create_workspace(
        self, name: str, *, request_id: str | None = None, **settings: Unpack[HomeSettings]
    ) -> Workspace:
        """Creates a workspace. settings: as in `HomeSettings`."""
        return await self._change_workspace(ProjectAction.CREATE, name, request_id, _change_of(name, **settings))

    async def edit_workspace(
        self,
        name: str,
        *,
        new_name: str | None = None,
        request_id: str | None = None,
        **settings: Unpack[HomeSettings],
    ) -> Workspace:
        """Changes a workspace. settings: as in `HomeSettings`."""
        return await self._change_workspace(ProjectAction.EDIT, name, request_id, _change_of(new_name, **settings))

    async def archive_workspace(self, name: str, request_id: str | None = None) -> Workspace:
        """Keeps new experiments out of all of its projects."""
        return await self._change_workspace(ProjectAction.ARCHIVE, name, request_id)

    async def unarchive_workspace(self, name: str, request_id: str | None = None) -> Workspace:
        """Lets new experiments into its projects again."""
        return await self._change_workspace(ProjectAction.UNARCHIVE, name, request_id)

    async def delete_workspace(self, name: str, request_id: str | None = None) -> None:
        """Deletes it with its projects. Raises GanglineError `workspace.not_empty` while experiments are in it."""
        await self._change_workspace(ProjectAction.DELETE, name, request_id)

    async def list_projects(self, workspace: str = "") -> list[ProjectView]:
        """Returns the projects of a workspace; empty for those of all."""
        request = project_pb2.ListProjectsRequest(workspace=workspace)
        answer = await self._connection.call(self._stub.ListProjects, request)
        return [from_proto(ProjectView, message) for message in answer.projects]

    async def find_project(self, workspace: str, name: str) -> ProjectView:
        """Returns a project. Raises GanglineError `workspace.not_found`, `project.not_found`, with the nearest name."""
        views = {view.project.name: view for view in await self.list_projects(workspace)}
        parent = (await self.find_workspace(workspace)).workspace
        return views[_find(PROJECT, name, (view.project for view in views.values()), parent).name]

    async def create_project(
        self,
        workspace: str,
        name: str,
        *,
        description: str | None = None,
        request_id: str | None = None,
        **settings: Unpack[HomeSettings],
    ) -> Project:
        """Creates a project. settings: as in `HomeSettings`."""
        change = _change_of(name, description, **settings)
        return await self._change_project(ProjectAction.CREATE, workspace, name, request_id, change)

    async def edit_project(
        self,
        workspace: str,
        name: str,
        *,
        new_name: str | None = None,
        description: str | None = None,
        request_id: str | None = None,
        **settings: Unpack[HomeSettings],
    ) -> Project:
        """Changes a project. settings: as in `HomeSettings`."""
        change = _change_of(new_name, description, **settings)
        return await self._change_project(ProjectAction.EDIT, workspace, name, request_id, change)

    async def archive_project(self, workspace: str, name: str, request_id: str | None = None) -> Project:
        """Keeps new experiments out of it."""
        return await self._change_project(ProjectAction.ARCHIVE, workspace, name, request_id)

    async def unarchive_project(self, workspace: str, name: str, request_id: str | None = None) -> Project:
        """Lets new experiments into it again."""
        return await self._change_project(ProjectAction.UNARCHIVE, workspace, name, request_id)

    async def delete_project(self, workspace: str, name: str, request_id: str | None = None) -> None:
        """Deletes it. Raises GanglineError `project.not_empty` while experiments are in it."""
        await self._change_project(ProjectAction.DELETE, workspace, name, request_id)

    async def move_to_project(self, experiment_id: int, project_id: int, request_id: str | None = None) -> Experiment:
        """Moves the experiment. Moving it to where it is changes nothing."""
        request = project_pb2.MoveExperimentRequest(
            request_id=request_id or new_request_id(), experiment_id=experiment_id, project_id=project_id
        )
        return from_proto(Experiment, (await self._connection.call(self._stub.MoveExperiment, request)).experiment)

    async def list_templates(self) -> list[Template]:
        """Returns all templates, by name."""
        answer = await self._connection.call(self._stub.ListTemplates, project_pb2.ListTemplatesRequest())
        return [from_proto(Template, message) for message in answer.templates]

    async def find_template(self, name: str) -> Template:
        """Returns a template. Raises GanglineError `template.not_found`, with the nearest name."""
        return _find(TEMPLATE, name, await self.list_templates())

    async def set_template(self, name: str, config_text: str, request_id: str | None = None) -> Template:
        """Creates a template, or replaces its settings. config_text: YAML. Raises GanglineError `config.*`."""
        from gangline.config.layer.template_check import read_template  # noqa: PLC0415 - loads pydantic

        request = project_pb2.SetTemplateRequest(
            request_id=request_id or new_request_id(), name=name, config_json=read_template(config_text)
        )
        return from_proto(Template, (await self._connection.call(self._stub.SetTemplate, request)).template)

    async def remove_template(self, name: str, request_id: str | None = None) -> None:
        """Removes it. Raises GanglineError `template.needed` while it is a default."""
        request = project_pb2.RemoveTemplateRequest(request_id=request_id or new_request_id(), name=name)
        await self._connection.call(self._stub.RemoveTemplate, request)

    async def inherit(self, config_text: str, template: str = "") -> Inheritance:
        """Returns the settings that an experiment of this configuration takes from its workspace, its project and its
        template. Nothing is asked of the cluster for a configuration that names none of them, because the default
        project has no defaults.

        Raises GanglineError `workspace.*`, `project.*`, `template.not_found`.
        """
        if not template and "workspace" not in config_text and "project" not in config_text:
            return Inheritance()
        from gangline.config import named_home  # noqa: PLC0415 - loads pydantic

        workspace, project = named_home(config_text)
        if not (template or workspace or project):
            return Inheritance()
        return await self.inherit_from(workspace, project, template)

    async def inherit_from(self, workspace: str, project: str, template: str = "") -> Inheritance:
        """Returns the settings that an experiment of this project inherits. Raises the same errors."""
        request = project_pb2.GetInheritanceRequest(workspace=workspace, project=project, template=template)
        return from_proto(Inheritance, (await self._connection.call(self._stub.GetInheritance, request)).inheritance)

    async def _change_workspace(
        self, action: ProjectAction, name: str, request_id: str | None, change: ProjectChange = _NO_CHANGE
    ) -> Workspace:
        """Returns an empty record for a deletion."""
        request = project_pb2.UpdateWorkspaceRequest(request_id=request_id or new_request_id(), change=to_proto(change))
        request.action = enum_number(action)  # type: ignore[assignment]  # an enum's number is what protobuf takes
        if action is not ProjectAction.CREATE:
            request.workspace_id = (await self.find_workspace(name)).workspace.id
        return from_proto(Workspace, (await self._connection.call(self._stub.UpdateWorkspace, request)).workspace)

    async def _change_project(
        self,
        action: ProjectAction,
        workspace: str,
        name: str,
        request_id: str | None,
        change: ProjectChange = _NO_CHANGE,
    ) -> Project:
        """Returns an empty record for a deletion."""
        request = project_pb2.UpdateProjectRequest(request_id=request_id or new_request_id(), change=to_proto(change))
        request.action = enum_number(action)  # type: ignore[assignment]  # as above
        if action is ProjectAction.CREATE:
            request.workspace_id = (await self.find_workspace(workspace)).workspace.id
        else:
            request.project_id = (await self.find_project(workspace, name)).project.id
        return from_proto(Project, (await self._connection.call(self._stub.UpdateProject, request)).project)


def _find(kind: NamedKind[N], name: str, records: Iterable[N], parent: Workspace | None = None) -> N:
    from gangline.config.layer.lookup import find_named  # noqa: PLC0415 - loads pydantic

    return find_named(kind, name, records, parent)


def _change_of(
    name: str | None,
    description: str | None = None,
    *,
    resource_pool: str | None = None,
    checkpoint_storage: str | None = None,
    template: str | None = None,
) -> ProjectChange:
    """Raises TypeError for a setting that there is not."""
    return ProjectChange(name, description, resource_pool, _storage(checkpoint_storage), template)


def _storage(section: str | None) -> str | None:
    if section is None:
        return None
    from gangline.config.layer.template_check import read_storage  # noqa: PLC0415 - loads pydantic

    return read_storage(section)
