"""The calls of GatewayService for experiments that have ended: continue, archive, delete; and for what they keep."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.experiment import RetentionChange
from gangline.protocol import wire
from gangline.v1 import gateway_pb2 as pb
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class RemovalCalls(BoundCalls):
    async def DeleteExperiment(
        self, request: pb.DeleteExperimentRequest, context: Context
    ) -> pb.DeleteExperimentResponse:
        experiment = await self._cases(request).removals.delete(request.experiment_id)
        return pb.DeleteExperimentResponse(experiment=wire.to_proto(experiment) if experiment is not None else None)

    async def PreviewRetention(
        self, request: pb.PreviewRetentionRequest, context: Context
    ) -> pb.PreviewRetentionResponse:
        change = wire.from_proto(RetentionChange, request.retention)
        checkpoints = await self._cases(request).checkpoints.preview_retention(request.experiment_id, change)
        return pb.PreviewRetentionResponse(checkpoints=[wire.to_proto(checkpoint) for checkpoint in checkpoints])

    async def ContinueExperiment(
        self, request: pb.ContinueExperimentRequest, context: Context
    ) -> pb.ContinueExperimentResponse:
        experiment, warnings = await self._cases(request).experiments.resume(
            request.experiment_id, request.overrides_json, request.code_sha256
        )
        return pb.ContinueExperimentResponse(experiment=wire.to_proto(experiment), warnings=warnings)

    async def ArchiveExperiment(
        self, request: pb.ArchiveExperimentRequest, context: Context
    ) -> pb.ArchiveExperimentResponse:
        experiment = await self._cases(request).removals.archive(request.experiment_id)
        return pb.ArchiveExperimentResponse(experiment=wire.to_proto(experiment))

    async def UnarchiveExperiment(
        self, request: pb.UnarchiveExperimentRequest, context: Context
    ) -> pb.UnarchiveExperimentResponse:
        experiment = await self._cases(request).removals.unarchive(request.experiment_id)
        return pb.UnarchiveExperimentResponse(experiment=wire.to_proto(experiment))
