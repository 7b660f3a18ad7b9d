"""A mirror for unit tests: a ClusterState that the test fills, without an etcd."""

from __future__ import annotations

from gangline.protocol import wire
from services.gateway.mirror.change_log import ChangeLog
from services.gateway.mirror.cluster_state import ClusterState, entries_of
from services.gateway.mirror.mirror import LOG_NOTIFICATION
from services.gateway.mirror.notification import NotificationBoard


class StandInMirror:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.changes = NotificationBoard()
        self.log = ChangeLog()

    def put(self, key: str, record: object) -> None:
        self._apply(key, wire.encode(record))

    def remove(self, key: str) -> None:
        self._apply(key, None)

    def _apply(self, key: str, value: bytes | None) -> None:
        before = self.state.find(key)
        touched = self.state.apply(key, value)
        self.state.revision += 1
        self.log.note(entries_of((before, self.state.find(key))), self.state.revision)
        self.changes.ring({*touched, LOG_NOTIFICATION})

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        return self.state.revision >= revision

    async def confirm(self, key: str) -> None:
        pass

    def ended_for(self, allocation_id: str) -> float:
        return 0.0

    def leaderless_seconds(self) -> float:
        return 0.0
