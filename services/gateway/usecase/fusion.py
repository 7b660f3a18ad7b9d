"""Records of tensor fusion: lists them, and deletes one so that a trial tunes anew."""

from __future__ import annotations

from gangline.domain.fusion import FusionRecord
from gangline.v1 import scheduler_pb2
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched


class FusionRecords:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader

    def list(self) -> list[FusionRecord]:
        """Returns the records, the newest first."""
        return sorted(self._mirror.state.fusion.all(), key=lambda record: (-record.created_at, record.key))

    async def forget(self, key: str) -> bool:
        """Deletes a record; returns whether there was one. Any user may do this: it only costs the next trial of this
        kind some steps."""
        request = scheduler_pb2.ForgetFusionRequest(key=key)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.ForgetFusion, request)
        return answer.is_forgotten
