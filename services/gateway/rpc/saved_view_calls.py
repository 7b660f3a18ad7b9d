"""The calls of GatewayService about saved views."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.protocol import wire
from gangline.v1 import gateway_pb2 as pb
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class SavedViewCalls(BoundCalls):
    async def ListSavedViews(self, request: pb.ListSavedViewsRequest, context: Context) -> pb.ListSavedViewsResponse:
        views = await self._cases(request).saved_views.list(request.list_name)
        return pb.ListSavedViewsResponse(views=[wire.to_proto(view) for view in views])

    async def GetSavedView(self, request: pb.GetSavedViewRequest, context: Context) -> pb.GetSavedViewResponse:
        view = await self._cases(request).saved_views.find(request.view_id)
        return pb.GetSavedViewResponse(view=wire.to_proto(view))

    async def CreateSavedView(self, request: pb.CreateSavedViewRequest, context: Context) -> pb.CreateSavedViewResponse:
        view = await self._cases(request).saved_views.create(request.list_name, request.name, request.content_json)
        return pb.CreateSavedViewResponse(view=wire.to_proto(view))

    async def UpdateSavedView(self, request: pb.UpdateSavedViewRequest, context: Context) -> pb.UpdateSavedViewResponse:
        view = await self._cases(request).saved_views.change(
            request.view_id,
            request.version,
            request.name if request.HasField("name") else None,
            request.content_json if request.HasField("content_json") else None,
        )
        return pb.UpdateSavedViewResponse(view=wire.to_proto(view))

    async def DeleteSavedView(self, request: pb.DeleteSavedViewRequest, context: Context) -> pb.DeleteSavedViewResponse:
        is_deleted = await self._cases(request).saved_views.delete(request.view_id)
        return pb.DeleteSavedViewResponse(is_deleted=is_deleted)
