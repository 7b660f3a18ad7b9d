"""Records of tensor fusion: lists them, and deletes one so that a trial tunes anew."""

from __future__ import annotations

from gangline.domain.fusion import FusionRecord
from gangline.v1 import scheduler_pb2
from services.common.server import Principal
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.auth import check_user
from services.gateway.mirror.mirror import Watched


class Fusion:
    def __init__(self, mirror: Watched, leader: Leader) -> None:
        self._mirror = mirror
        self._leader = leader

    def list(self, principal: Principal) -> list[FusionRecord]:
        """Returns the records, the newest first."""
        check_user(principal)
        return sorted(self._mirror.state.fusion.all(), key=lambda record: (-record.created_at, record.key))

    async def forget(self, principal: Principal, request_id: str, key: str) -> bool:
        """Deletes a record; returns whether there was one. Any user may do this: it only costs the next trial of this
        kind some steps."""
        request = scheduler_pb2.ForgetFusionRequest(key=key)
        answer = await self._leader.change(principal, request_id, lambda scheduler: scheduler.ForgetFusion, request)
        return answer.is_forgotten
