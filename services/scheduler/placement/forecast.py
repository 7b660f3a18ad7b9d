"""PURE: when each waiting request is to be expected to start.

Plays the queue forward on the sum of the pool's slots: running work ends by its estimates, those who wait start in the
order of the plan and end in turn. Nobody is placed on an agent, so it costs the same for any number of agents; where a
request cannot start before certain agents are free, the outlook sets the bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

from services.scheduler.placement.ledger import Ledger, Waiting
from services.scheduler.placement.outlook import LEAST_LEFT_SECONDS, Opening
from services.scheduler.placement.snapshot import UNKNOWN_RUN_SECONDS, PendingRequest

_CERTAIN = ("never", "unhealthy", "held")


class Forecast:
    """Ask in the order of the plan: each answer occupies slots for those that are asked about later."""

    def __init__(self, ledger: Ledger, opening: Callable[[PendingRequest], Opening | None]) -> None:
        self._ledger = ledger
        self._opening = opening
        self._clock = ledger.now
        self._free = ledger.room.free
        self._ends = [(end, work.slots) for end, work in ledger.outlook.ends if work.slots]
        for assignment in ledger.assignments:
            slots = sum(assignment.slots_by_agent.values())
            self._ends.append((ledger.now + UNKNOWN_RUN_SECONDS, slots))
        heapify(self._ends)
        self._caps = _Caps(ledger)

    def eta(self, waiting: Waiting) -> float | None:
        """None when only a change can start it."""
        request = waiting.request
        if waiting.cause in _CERTAIN:
            return None
        at = self._ledger.now + LEAST_LEFT_SECONDS if waiting.cause == "claim" else self._queued(request)
        allowed_at = self._caps.allowed_at(request)
        if at is None or allowed_at is None:
            return None
        at = max(at, allowed_at, request.not_before_at)
        end_at = at + (request.estimated_seconds or UNKNOWN_RUN_SECONDS)
        heappush(self._ends, (end_at, request.slots))
        self._caps.promise(request, end_at)
        return at

    def _queued(self, request: PendingRequest) -> float | None:
        opening = self._opening(request)
        if opening is None:
            return None
        if not request.slots:
            return opening.at
        while self._free < request.slots and self._ends:
            end, slots = heappop(self._ends)
            self._clock = max(self._clock, end)
            self._free += slots
        if self._free < request.slots:
            return None
        self._free -= request.slots
        return max(self._clock, opening.at)


class _Caps:
    """What each group with a cap holds, and when it gives that back."""

    def __init__(self, ledger: Ledger) -> None:
        self._now = ledger.now
        self._cap_of = ledger.quota.cap_of
        self._used: Counter[str] = Counter()
        self._ends: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._free_at: dict[str, float] = {}
        capped = {group.id for group in ledger.view.groups.values() if group.max_slots is not None}
        if not capped:
            return
        for end, work in ledger.outlook.ends:
            if work.group in capped:
                self._promise(work.group, work.slots, end)
        group_of = {request.trial_id: request.group for request in ledger.view.requests}
        for assignment in ledger.assignments:
            group = group_of[assignment.trial_id]
            if group in capped:
                self._promise(group, sum(assignment.slots_by_agent.values()), ledger.now + UNKNOWN_RUN_SECONDS)

    def allowed_at(self, request: PendingRequest) -> float | None:
        """From when on its group's cap lets it start; None for never."""
        group, cap = request.group, self._cap_of(request.group)
        while self._used[group] + request.slots > cap and self._ends[group]:
            end, slots = heappop(self._ends[group])
            self._used[group] -= slots
            self._free_at[group] = max(self._free_at.get(group, self._now), end)
        return None if self._used[group] + request.slots > cap else self._free_at.get(group, self._now)

    def promise(self, request: PendingRequest, end_at: float) -> None:
        if request.slots and self._cap_of(request.group) < inf:
            self._promise(request.group, request.slots, end_at)

    def _promise(self, group: str, slots: int, end_at: float) -> None:
        self._used[group] += slots
        heappush(self._ends[group], (end_at, slots))
