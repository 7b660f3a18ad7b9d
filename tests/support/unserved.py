"""The calls about projects that the stand-ins of a gateway and of a leader do not serve; they answer UNIMPLEMENTED.

The tests of these calls run real schedulers and gateways.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from gangline.v1 import gateway_pb2_grpc, scheduler_pb2_grpc


async def _refuse(_service: object, _request: object, context: Any) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "a stand-in does not serve this call")
    raise AssertionError("abort always raises")


def _refuse_at_once(_service: object, _request: object, context: Any) -> NoReturn:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "a stand-in does not serve this call")
    raise AssertionError("abort always raises")


class UnservedByLeader(scheduler_pb2_grpc.SchedulerServiceServicer):
    UpdateWorkspace: Any = _refuse
    UpdateProject: Any = _refuse
    SetTemplate: Any = _refuse
    RemoveTemplate: Any = _refuse
    MoveExperiment: Any = _refuse


class UnservedByGateway(gateway_pb2_grpc.GatewayServiceServicer):
    ListWorkspaces: Any = _refuse_at_once
    ListProjects: Any = _refuse_at_once
    ListTemplates: Any = _refuse_at_once
    GetInheritance: Any = _refuse_at_once
    UpdateWorkspace: Any = _refuse_at_once
    UpdateProject: Any = _refuse_at_once
    SetTemplate: Any = _refuse_at_once
    RemoveTemplate: Any = _refuse_at_once
    MoveExperiment: Any = _refuse_at_once
