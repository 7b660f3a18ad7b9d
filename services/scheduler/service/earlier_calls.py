"""The calls of SchedulerService under their earlier names, for gateways of an earlier version.

Owns nothing but the translation to the present calls. To be removed with the deprecated calls of scheduler.proto.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from google.protobuf.message import Message

from gangline.errors import invalid
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc

M = TypeVar("M", bound=Message)


class EarlierCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of a service that has the present calls."""

    async def EndExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.EndExperimentRequest, context: Any
    ) -> scheduler_pb2.EndExperimentResponse:
        present = _recast(request, scheduler_pb2.SchedulerServiceKillExperimentRequest)
        return await _recast_answer(self.KillExperiment(present, context), scheduler_pb2.EndExperimentResponse)

    async def ChangeExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ChangeExperimentRequest, context: Any
    ) -> scheduler_pb2.ChangeExperimentResponse:
        present = _recast(request, scheduler_pb2.SchedulerServiceUpdateExperimentRequest)
        return await _recast_answer(self.UpdateExperiment(present, context), scheduler_pb2.ChangeExperimentResponse)

    async def EndTrial(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.EndTrialRequest, context: Any
    ) -> scheduler_pb2.EndTrialResponse:
        present = _recast(request, scheduler_pb2.SchedulerServiceKillTrialRequest)
        return await _recast_answer(self.KillTrial(present, context), scheduler_pb2.EndTrialResponse)

    async def ChangeAgent(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ChangeAgentRequest, context: Any
    ) -> scheduler_pb2.ChangeAgentResponse:
        present = _recast(request, scheduler_pb2.SchedulerServiceUpdateAgentRequest)
        return await _recast_answer(self.UpdateAgent(present, context), scheduler_pb2.ChangeAgentResponse)

    async def ChangeCheckpoints(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ChangeCheckpointsRequest, context: Any
    ) -> scheduler_pb2.ChangeCheckpointsResponse:
        if bool(request.delete_ids) == bool(request.deleted_ids):
            raise invalid("request.not_one", "name checkpoints that are to be deleted, or some whose files are gone")
        if request.deleted_ids:
            deleted = scheduler_pb2.ConfirmCheckpointsDeletedRequest(checkpoint_ids=request.deleted_ids)
            confirming = self.ConfirmCheckpointsDeleted(deleted, context)
            confirmed = await _recast_answer(confirming, scheduler_pb2.ConfirmCheckpointsDeletedResponse)
            return scheduler_pb2.ChangeCheckpointsResponse(revision=confirmed.revision)
        present = scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest(
            request_id=request.request_id, checkpoint_ids=request.delete_ids, user=request.user
        )
        return await _recast_answer(self.DeleteCheckpoints(present, context), scheduler_pb2.ChangeCheckpointsResponse)


async def _recast_answer(answer: Message | Awaitable[Message], kind: type[M]) -> M:
    assert not isinstance(answer, Message), "the service is asynchronous"
    return _recast(await answer, kind)


def _recast(message: Message, kind: type[M]) -> M:
    """Returns the message as one of the other type, which has the same fields."""
    return kind.FromString(message.SerializeToString())
