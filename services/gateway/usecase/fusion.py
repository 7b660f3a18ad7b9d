"""What is remembered of tensor fusion: listing it, and having a trial tune anew."""

from __future__ import annotations

from gangline.domain.fusion import FusionRecord
from gangline.v1 import scheduler_pb2
from services.common.server import Principal
from services.gateway.auth import check_user
from services.gateway.leader import Leader
from services.gateway.mirror import Watched
from services.gateway.usecase.settling import check_request_id, settle


class Fusion:
    def __init__(self, mirror: Watched, leader: Leader) -> None:
        self._mirror = mirror
        self._leader = leader

    def list(self, principal: Principal) -> list[FusionRecord]:
        """Newest first."""
        check_user(principal)
        return sorted(self._mirror.state.fusion.all(), key=lambda record: (-record.created_at, record.key))

    async def forget(self, principal: Principal, request_id: str, key: str) -> bool:
        """Whether there was one. Any user may: it costs the next trial of this kind some steps, and nothing else."""
        check_user(principal)
        check_request_id(request_id)
        answer = await self._leader.call(
            lambda scheduler: scheduler.ForgetFusion,
            scheduler_pb2.ForgetFusionRequest(request_id=request_id, key=key, user=principal.name),
        )
        await settle(self._mirror, answer.revision)
        return answer.is_forgotten
