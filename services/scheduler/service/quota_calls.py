"""The calls of SchedulerService that set and remove quotas."""

from __future__ import annotations

import time
from typing import Any

import structlog

from gangline.domain.quota import Quota, QuotaChange
from gangline.protocol import wire
from gangline.v1 import quota_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.service.access import require_cluster
from services.scheduler.transition.project.rule import Caller
from services.scheduler.transition.quota_change import remove_quota, set_quota, subject_of

_log = structlog.get_logger(__name__)


class QuotaChangeCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def SetQuota(  # noqa: N802 - grpc's name
        self, request: quota_pb2.SchedulerServiceSetQuotaRequest, _context: Any
    ) -> quota_pb2.SchedulerServiceSetQuotaResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change, caller, now = wire.from_proto(QuotaChange, request.change), Caller.of(request), time.time()
        written = await term.store.commit_asked(
            lambda records: set_quota(records, request.kind, request.name, change, caller, now=now)
        )
        subject = subject_of(term.state, request.kind, request.name)
        # A change that lifts the last limit removes the quota.
        quota = term.state.find(Quota, subject.id) or Quota(subject)
        if written:
            _log.info(
                "quota is set",
                subject=subject.id,
                max_slots=quota.max_slots,
                slot_hours=quota.slot_hours,
                user=request.user,
            )
        return quota_pb2.SchedulerServiceSetQuotaResponse(quota=wire.to_proto(quota), revision=term.state.revision)

    async def RemoveQuota(  # noqa: N802 - grpc's name
        self, request: quota_pb2.SchedulerServiceRemoveQuotaRequest, _context: Any
    ) -> quota_pb2.SchedulerServiceRemoveQuotaResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        caller = Caller.of(request)
        written = await term.store.commit_asked(
            lambda records: remove_quota(records, request.kind, request.name, caller)
        )
        if written:
            _log.info("quota is removed", kind=request.kind, name=request.name, user=request.user)
        return quota_pb2.SchedulerServiceRemoveQuotaResponse(revision=term.state.revision)
