"""Workspaces, projects and templates: lists and changes them, and finds the settings that an experiment inherits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gangline.config.layer.lookup import check_open, find_home, find_named, unknown_id
from gangline.config.layer.secret import hide_default_secrets, hide_secrets
from gangline.config.layer.template_check import (
    check_description,
    check_name,
    check_storage,
    check_template,
    defaults_layer,
)
from gangline.domain.experiment import (
    DEFAULT_PROJECT_ID,
    ConfigLayer,
    Experiment,
    Inheritance,
    Project,
    ProjectChange,
    Template,
    Workspace,
)
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE, PROJECT, TEMPLATE, WORKSPACE, NamedKind
from gangline.domain.state import ProjectAction, State
from gangline.domain.view import ProjectView, WorkspaceView
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.protocol import wire
from gangline.v1 import project_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader, read_experiment
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.confirming import find_confirmed
from services.gateway.usecase.shared.parsing import read_text

T = TypeVar("T")
D = TypeVar("D", Workspace, Project)
# By kind, the leader's request and its call.
_UPDATES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "workspace": (project_pb2.SchedulerServiceUpdateWorkspaceRequest, lambda scheduler: scheduler.UpdateWorkspace),
    "project": (project_pb2.SchedulerServiceUpdateProjectRequest, lambda scheduler: scheduler.UpdateProject),
}


class Projects:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader

    def list_workspaces(self) -> list[WorkspaceView]:
        """Returns all workspaces by name."""
        workspace_ids = {project.id: project.workspace_id for project in self._projects()}
        num_projects = Counter(workspace_ids.values())
        num_experiments = Counter(
            workspace_ids.get(experiment.home_id, 0) for experiment in self._mirror.state.experiments.all()
        )
        return [
            WorkspaceView(workspace, num_projects[workspace.id], num_experiments[workspace.id])
            for workspace in sorted(self._workspaces(), key=lambda workspace: workspace.name)
        ]

    async def list_projects(self, workspace_name: str = "") -> list[ProjectView]:
        """Returns projects by workspace and name. workspace_name: empty for those of all workspaces. Raises
        GanglineError `workspace.not_found`."""
        chosen_id = 0
        if workspace_name:
            chosen_id = (await self._found(lambda: find_named(WORKSPACE, workspace_name, self._workspaces()))).id
        num_experiments: Counter[int] = Counter()
        num_active: Counter[int] = Counter()
        for experiment in self._mirror.state.experiments.all():
            num_experiments[experiment.home_id] += 1
            num_active[experiment.home_id] += experiment.state is not State.TERMINAL
        by_id = {workspace.id: workspace for workspace in self._workspaces()}
        views = [
            ProjectView(
                project,
                by_id[project.workspace_id].name,
                num_experiments[project.id],
                num_active[project.id],
                by_id[project.workspace_id].archived,
            )
            for project in self._projects()
            if chosen_id in (0, project.workspace_id) and project.workspace_id in by_id
        ]
        return sorted(views, key=lambda view: (view.workspace_name, view.project.name))

    async def view_workspace(self, workspace_id: int) -> WorkspaceView:
        """Raises GanglineError `workspace.not_found`."""

        def find() -> WorkspaceView:
            for view in self.list_workspaces():
                if view.workspace.id == workspace_id:
                    return view
            raise unknown_id(WORKSPACE, workspace_id)

        return await self._found(find)

    async def view_project(self, project_id: int) -> ProjectView:
        """Raises GanglineError `project.not_found`."""
        await self._found(lambda: self._project(project_id))
        for view in await self.list_projects():
            if view.project.id == project_id:
                return view
        raise unknown_id(PROJECT, project_id)

    def list_templates(self) -> list[Template]:
        """Returns all templates by name."""
        return sorted(self._mirror.state.templates.all(), key=lambda template: template.name)

    async def find_template(self, name: str) -> Template:
        """Raises GanglineError `template.not_found`."""
        return await self._found(
            lambda: find_named(TEMPLATE, name, self._mirror.state.templates.all()), keys.template(name)
        )

    async def inherit(
        self, workspace_name: str, project_name: str, template_name: str, project_id: int = 0
    ) -> Inheritance:
        """Returns the project of a new experiment, and the settings that it inherits, the weakest first: the defaults
        of its workspace, those of its project, and its template.

        Both names empty choose the default project. template_name: empty for the default of the project, else of the
        workspace. project_id: in place of the names; 0 for none. Raises GanglineError `workspace.*`, `project.*`,
        `template.not_found`.
        """
        workspace, project = await self._found(lambda: self._home(workspace_name, project_name, project_id))
        check_open(workspace, project)
        template_name = template_name or project.defaults.template or workspace.defaults.template
        layers = [
            defaults_layer(f"workspace {workspace.name}", workspace.defaults),
            defaults_layer(f"project {project.name}", project.defaults),
        ]
        if template_name:
            template = await self.find_template(template_name)
            layers.append(ConfigLayer(f"template {template_name}", template.config_json))
        present = tuple(layer for layer in layers if layer is not None)
        return Inheritance(workspace.name, project.name, project.id, template_name, present)

    async def select(self, workspace_name: str, project_name: str, project_id: int = 0) -> frozenset[int] | None:
        """Returns the ids of the projects that a filter chooses; None for all projects. project_name: without a
        workspace the projects of this name in all workspaces.

        Raises GanglineError `workspace.not_found`, `project.not_found`.
        """
        if project_id:
            return frozenset({(await self._found(lambda: self._project(project_id))).id})
        if not workspace_name and not project_name:
            return None
        return await self._found(lambda: self._chosen(workspace_name, project_name))

    async def update(
        self,
        kind: NamedKind[D],
        action: ProjectAction | None,
        record_id: int = 0,
        change: ProjectChange | None = None,
        *,
        parent_id: int = 0,
    ) -> D | None:
        """Creates, edits, archives, unarchives or deletes a workspace or a project. parent_id: the workspace of a new
        project. Returns None when the record has been deleted."""
        number = number_of_action(action)
        message_type, choose = _UPDATES[kind.noun]
        request = message_type(
            **{f"{kind.noun}_id": record_id},
            action=number,
            change=_checked(kind.noun, change),
            is_admin=self._caller.is_admin,
        )
        if kind.parent is not None:
            setattr(request, f"{kind.parent.noun}_id", parent_id)
        answer = await self._leader.change(self._caller, choose, request)
        if not answer.HasField(kind.noun):
            return None
        return hide_default_secrets(wire.from_proto(kind.record_type, getattr(answer, kind.noun)))

    async def set_template(self, name: str, config_json: str) -> Template:
        """Creates a template, or replaces its settings. Raises GanglineError `template.name`, `config.*`."""
        check_name("template", name)
        await read_text(check_template, config_json)
        request = project_pb2.SchedulerServiceSetTemplateRequest(
            name=name, config_json=config_json, is_admin=self._caller.is_admin
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.SetTemplate, request)
        return hide_secrets(wire.from_proto(Template, answer.template))

    async def remove_template(self, name: str) -> None:
        request = project_pb2.SchedulerServiceRemoveTemplateRequest(name=name, is_admin=self._caller.is_admin)
        await self._leader.change(self._caller, lambda scheduler: scheduler.RemoveTemplate, request)

    async def move_experiment(self, experiment_id: int, project_id: int) -> Experiment:
        request = project_pb2.SchedulerServiceMoveExperimentRequest(experiment_id=experiment_id, project_id=project_id)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.MoveExperiment, request)
        return read_experiment(answer.experiment)

    async def _found(self, find: Callable[[], T], key: str = keys.NEXT_PROJECT) -> T:
        """Returns what `find_confirmed` returns. Every creation and every new name changes the counter of ids."""
        return await find_confirmed(self._mirror, find, key)

    def _workspaces(self) -> list[Workspace]:
        state = self._mirror.state
        return list(state.workspaces.all()) or ([DEFAULT_WORKSPACE] if not len(state.whole.workspaces) else [])

    def _projects(self) -> list[Project]:
        state = self._mirror.state
        return list(state.projects.all()) or ([DEFAULT_PROJECT] if not len(state.whole.projects) else [])

    def _project(self, project_id: int) -> Project:
        return _by_id(PROJECT, project_id, self._projects())

    def _home(self, workspace_name: str, project_name: str, project_id: int) -> tuple[Workspace, Project]:
        if not project_id:
            return find_home(workspace_name, project_name, self._workspaces(), self._projects())
        project = self._project(project_id)
        if project.id == DEFAULT_PROJECT_ID:
            return DEFAULT_WORKSPACE, project
        return _by_id(WORKSPACE, project.workspace_id, self._workspaces()), project

    def _chosen(self, workspace_name: str, project_name: str) -> frozenset[int]:
        if workspace_name:
            workspace = find_named(WORKSPACE, workspace_name, self._workspaces())
            if project_name:
                return frozenset({find_named(PROJECT, project_name, self._projects(), workspace).id})
            return frozenset(project.id for project in self._projects() if project.workspace_id == workspace.id)
        project_ids = frozenset(project.id for project in self._projects() if project.name == project_name)
        if not project_ids:
            raise GanglineError(
                "project.not_found",
                f"no workspace has a project {project_name!r}; list them with: gangline project list",
                ErrorKind.NOT_FOUND,
            )
        return project_ids


def _by_id(kind: NamedKind[D], record_id: int, records: Iterable[D]) -> D:
    for record in records:
        if record.id == record_id:
            return record
    raise unknown_id(kind, record_id)


def _checked(kind: str, change: ProjectChange | None) -> project_pb2.ProjectChange | None:
    """Returns the message of the change. Raises GanglineError for a name or a storage that no leader accepts."""
    if change is None:
        return None
    if change.name is not None:
        check_name(kind, change.name)
    check_description(kind, change.description or "")
    if change.checkpoint_storage_json:
        check_storage(change.checkpoint_storage_json)
    message: project_pb2.ProjectChange = wire.to_proto(change)
    return message


def number_of_action(action: ProjectAction | None) -> Any:
    """Returns the action as messages have it. action: None for a number that this version does not know. Raises
    GanglineError `request.action`."""
    if action is None:
        raise invalid("request.action", f"this version knows no such action; it has {', '.join(ProjectAction)}")
    return wire.enum_number(action)
