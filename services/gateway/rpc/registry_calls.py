"""The calls of GatewayService about models and their versions."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.registry import ModelChange, ModelFilter, ModelVersionChange
from gangline.domain.state import ProjectAction
from gangline.protocol import wire
from gangline.v1 import registry_pb2 as pb
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class RegistryCalls(BoundCalls):
    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        wanted = wire.from_proto(ModelFilter, request.filter)
        views, total = await self._cases(request).registry.list_models(wanted, *_part(request))
        return pb.ListModelsResponse(models=[wire.to_proto(view) for view in views], total=total)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        view = await self._cases(request).registry.find_model(request.name, request.model_id or None)
        return pb.GetModelResponse(model=wire.to_proto(view))

    async def ListModelVersions(
        self, request: pb.ListModelVersionsRequest, context: Context
    ) -> pb.ListModelVersionsResponse:
        views, total = await self._cases(request).registry.list_versions(
            request.model_id or None, request.checkpoint_id, *_part(request)
        )
        return pb.ListModelVersionsResponse(versions=[wire.to_proto(view) for view in views], total=total)

    async def GetModelVersion(self, request: pb.GetModelVersionRequest, context: Context) -> pb.GetModelVersionResponse:
        view = await self._cases(request).registry.find_version(request.model_id, request.number, request.alias)
        return pb.GetModelVersionResponse(version=wire.to_proto(view))

    async def UpdateModel(self, request: pb.UpdateModelRequest, context: Context) -> pb.UpdateModelResponse:
        model = await self._cases(request).registry.update_model(
            wire.enum_member(ProjectAction, request.action),
            request.model_id,
            wire.from_proto(ModelChange, request.change),
        )
        return pb.UpdateModelResponse(model=wire.to_proto(model) if model is not None else None)

    async def UpdateModelVersion(
        self, request: pb.UpdateModelVersionRequest, context: Context
    ) -> pb.UpdateModelVersionResponse:
        version = await self._cases(request).registry.update_version(
            wire.enum_member(ProjectAction, request.action),
            request.model_id,
            request.number,
            wire.from_proto(ModelVersionChange, request.change),
            checkpoint_id=request.checkpoint_id,
            aliases=tuple(request.aliases),
        )
        return pb.UpdateModelVersionResponse(version=wire.to_proto(version) if version is not None else None)

    async def SetModelAlias(self, request: pb.SetModelAliasRequest, context: Context) -> pb.SetModelAliasResponse:
        expected_version = request.expected_version if request.HasField("expected_version") else None
        model = await self._cases(request).registry.set_alias(
            request.model_id, request.alias, request.version, expected_version
        )
        return pb.SetModelAliasResponse(model=wire.to_proto(model))


def _part(request: pb.ListModelsRequest | pb.ListModelVersionsRequest) -> tuple[int, int]:
    """Returns the offset and the limit. Negative ones count as 0."""
    return max(request.offset, 0), max(request.limit, 0)
