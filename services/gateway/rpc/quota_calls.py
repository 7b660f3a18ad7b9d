"""The calls of GatewayService about quotas."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.quota import QuotaChange
from gangline.protocol import wire
from gangline.v1 import quota_pb2 as pb
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class QuotaCalls(BoundCalls):
    async def ListQuotas(self, request: pb.ListQuotasRequest, context: Context) -> pb.ListQuotasResponse:
        views = self._cases(request).quotas.list_quotas()
        return pb.ListQuotasResponse(quotas=[wire.to_proto(view) for view in views])

    async def SetQuota(self, request: pb.SetQuotaRequest, context: Context) -> pb.SetQuotaResponse:
        change = wire.from_proto(QuotaChange, request.change)
        view = await self._cases(request).quotas.set(request.kind, request.name, change)
        return pb.SetQuotaResponse(quota=wire.to_proto(view))

    async def RemoveQuota(self, request: pb.RemoveQuotaRequest, context: Context) -> pb.RemoveQuotaResponse:
        await self._cases(request).quotas.remove(request.kind, request.name)
        return pb.RemoveQuotaResponse()
