"""The calls about projects for the stand-ins. A leader serves none of them, nor those about users. A gateway answers
with what the test wrote down.

The tests of these calls themselves run real schedulers and gateways.
"""

# ruff: noqa: N802 - the names of the calls are those of the protos

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from gangline.v1 import project_pb2, scheduler_pb2_grpc, types_pb2
from tests.support.part_of_gateway import Servicer


async def _refuse(_service: object, _request: object, context: Any) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "a stand-in does not serve this call")
    raise AssertionError("abort always raises")


class UnservedByLeader(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Each call answers UNIMPLEMENTED."""

    UpdateWorkspace: Any = _refuse
    UpdateProject: Any = _refuse
    SetTemplate: Any = _refuse
    RemoveTemplate: Any = _refuse
    MoveExperiment: Any = _refuse
    UpdateModel: Any = _refuse
    UpdateModelVersion: Any = _refuse
    SetModelAlias: Any = _refuse
    CreateUser: Any = _refuse
    UpdateUser: Any = _refuse
    EndSession: Any = _refuse
    CreateToken: Any = _refuse
    RevokeToken: Any = _refuse
    SetQuota: Any = _refuse
    RemoveQuota: Any = _refuse
    UpdateGroup: Any = _refuse
    AssignRole: Any = _refuse


class StandInProjects(Servicer):
    """A change answers with the first record and changes nothing. The stand-in gateway provides the other members."""

    experiments: dict[int, types_pb2.Experiment]
    _answer: Callable[[str, Any, Callable[[], Any]], Any]

    def __init__(self) -> None:
        super().__init__()
        self.workspaces: list[project_pb2.WorkspaceView] = []
        self.projects: list[project_pb2.ProjectView] = []
        self.templates: list[project_pb2.Template] = []
        self.inheritance = project_pb2.Inheritance(workspace="Uncategorized", project="Uncategorized", project_id=1)

    def ListWorkspaces(self, request: Any, context: Any) -> Any:
        answer = project_pb2.ListWorkspacesResponse(workspaces=self.workspaces)
        return self._answer("ListWorkspaces", context, lambda: answer)

    def ListProjects(self, request: Any, context: Any) -> Any:
        return self._answer("ListProjects", context, lambda: project_pb2.ListProjectsResponse(projects=self.projects))

    def ListTemplates(self, request: Any, context: Any) -> Any:
        answer = project_pb2.ListTemplatesResponse(templates=self.templates)
        return self._answer("ListTemplates", context, lambda: answer)

    def GetInheritance(self, request: Any, context: Any) -> Any:
        answer = project_pb2.GetInheritanceResponse(inheritance=self.inheritance)
        return self._answer("GetInheritance", context, lambda: answer)

    def UpdateWorkspace(self, request: Any, context: Any) -> Any:
        answer = project_pb2.UpdateWorkspaceResponse(workspace=self.workspaces[0].workspace)
        return self._answer("UpdateWorkspace", context, lambda: answer)

    def UpdateProject(self, request: Any, context: Any) -> Any:
        answer = project_pb2.UpdateProjectResponse(project=self.projects[0].project)
        return self._answer("UpdateProject", context, lambda: answer)

    def SetTemplate(self, request: Any, context: Any) -> Any:
        answer = project_pb2.SetTemplateResponse(template=self.templates[0])
        return self._answer("SetTemplate", context, lambda: answer)

    def RemoveTemplate(self, request: Any, context: Any) -> Any:
        return self._answer("RemoveTemplate", context, project_pb2.RemoveTemplateResponse)

    def MoveExperiment(self, request: Any, context: Any) -> Any:
        answer = project_pb2.MoveExperimentResponse(experiment=self.experiments[request.experiment_id])
        return self._answer("MoveExperiment", context, lambda: answer)
