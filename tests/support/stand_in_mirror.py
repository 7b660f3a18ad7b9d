"""A mirror for unit tests: a ClusterState that the test fills, without an etcd."""

from __future__ import annotations

from gangline.protocol import wire
from services.gateway.mirror.cluster_state import ClusterState
from services.gateway.mirror.notification import NotificationBoard


class StandInMirror:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.changes = NotificationBoard()

    def put(self, key: str, record: object) -> None:
        self.changes.ring(self.state.apply(key, wire.encode(record)))

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        return self.state.revision >= revision

    async def confirm(self, key: str) -> None:
        pass

    def ended_for(self, allocation_id: str) -> float:
        return 0.0

    def leaderless_seconds(self) -> float:
        return 0.0
