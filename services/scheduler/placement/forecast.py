"""PURE: when each waiting request is to be expected to start.

Plays the queue forward on the sum of the pool's slots: running work ends by its estimates, those who wait start in the
order of the plan and end in turn. Nobody is placed on an agent, so it costs the same for any number of agents; where a
request cannot start before certain agents are free, the outlook sets the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

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

    def eta(self, waiting: Waiting) -> float | None:
        """None when only a change can start it."""
        request = waiting.request
        if waiting.cause in _CERTAIN:
            return None
        at = self._ledger.now + LEAST_LEFT_SECONDS if waiting.cause == "claim" else self._queued(request)
        if at is None:
            return None
        heappush(self._ends, (at + (request.estimated_seconds or UNKNOWN_RUN_SECONDS), request.slots))
        return max(at, request.not_before_at)

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
