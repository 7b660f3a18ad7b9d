"""The calls of GatewayService about workspaces, projects and templates."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.experiment import ProjectChange
from gangline.domain.named_kind import PROJECT, WORKSPACE
from gangline.domain.state import ProjectAction
from gangline.protocol import wire
from gangline.v1 import project_pb2 as pb
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class ProjectCalls(BoundCalls):
    async def ListWorkspaces(self, request: pb.ListWorkspacesRequest, context: Context) -> pb.ListWorkspacesResponse:
        views = self._cases(request).projects.list_workspaces()
        return pb.ListWorkspacesResponse(workspaces=[wire.to_proto(view) for view in views])

    async def ListProjects(self, request: pb.ListProjectsRequest, context: Context) -> pb.ListProjectsResponse:
        views = await self._cases(request).projects.list_projects(request.workspace)
        return pb.ListProjectsResponse(projects=[wire.to_proto(view) for view in views])

    async def ListTemplates(self, request: pb.ListTemplatesRequest, context: Context) -> pb.ListTemplatesResponse:
        templates = self._cases(request).projects.list_templates()
        return pb.ListTemplatesResponse(templates=[wire.to_proto(template) for template in templates])

    async def GetInheritance(self, request: pb.GetInheritanceRequest, context: Context) -> pb.GetInheritanceResponse:
        inheritance = await self._cases(request).projects.inherit(
            request.workspace, request.project, request.template, request.project_id
        )
        return pb.GetInheritanceResponse(inheritance=wire.to_proto(inheritance))

    async def UpdateWorkspace(self, request: pb.UpdateWorkspaceRequest, context: Context) -> pb.UpdateWorkspaceResponse:
        workspace = await self._cases(request).projects.update(
            WORKSPACE,
            wire.enum_member(ProjectAction, request.action),
            request.workspace_id,
            wire.from_proto(ProjectChange, request.change),
        )
        return pb.UpdateWorkspaceResponse(workspace=wire.to_proto(workspace) if workspace is not None else None)

    async def UpdateProject(self, request: pb.UpdateProjectRequest, context: Context) -> pb.UpdateProjectResponse:
        project = await self._cases(request).projects.update(
            PROJECT,
            wire.enum_member(ProjectAction, request.action),
            request.project_id,
            wire.from_proto(ProjectChange, request.change),
            parent_id=request.workspace_id,
        )
        return pb.UpdateProjectResponse(project=wire.to_proto(project) if project is not None else None)

    async def SetTemplate(self, request: pb.SetTemplateRequest, context: Context) -> pb.SetTemplateResponse:
        template = await self._cases(request).projects.set_template(request.name, request.config_json)
        return pb.SetTemplateResponse(template=wire.to_proto(template))

    async def RemoveTemplate(self, request: pb.RemoveTemplateRequest, context: Context) -> pb.RemoveTemplateResponse:
        await self._cases(request).projects.remove_template(request.name)
        return pb.RemoveTemplateResponse()

    async def MoveExperiment(self, request: pb.MoveExperimentRequest, context: Context) -> pb.MoveExperimentResponse:
        experiment = await self._cases(request).projects.move_experiment(request.experiment_id, request.project_id)
        return pb.MoveExperimentResponse(experiment=wire.to_proto(experiment))
