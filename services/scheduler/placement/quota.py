"""PURE: how many slots each group holds or was promised, against its cap."""

from __future__ import annotations

from collections import defaultdict
from math import inf

from services.scheduler.placement.snapshot import PendingRequest, PoolView


class Quota:
    """Counts the slots of each group. used: by group; grows with the plan."""

    def __init__(self, view: PoolView) -> None:
        self._groups = view.groups
        self.used: defaultdict[str, int] = defaultdict(int)
        for work in view.running:
            self.used[work.group] += work.slots

    def cap_of(self, group: str) -> float:
        found = self._groups.get(group)
        return inf if found is None or found.max_slots is None else found.max_slots

    def allows(self, request: PendingRequest) -> bool:
        if not request.slots:
            return True
        return self.used[request.group] + request.slots <= self.cap_of(request.group)

    def promise(self, request: PendingRequest) -> None:
        self.used[request.group] += request.slots
