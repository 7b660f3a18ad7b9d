"""PURE: what a pool could hold if its agents were idle, asked once for each shape of requests."""

from __future__ import annotations

from typing import Literal

from services.scheduler.placement.feasibility import can_hold
from services.scheduler.placement.snapshot import PendingRequest, PoolView, Shape

Verdict = Literal["fits", "unhealthy", "never"]


class Capability:
    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._verdicts: dict[Shape, Verdict] = {}

    def of(self, request: PendingRequest) -> Verdict:
        """never: not even with all its agents well and idle. unhealthy: only with agents or slots that are away,
        or that the request avoids for a while."""
        shape = request.shape
        verdict = self._verdicts.get(shape)
        if verdict is None:
            verdict = self._verdicts[shape] = self._judge(request)
        return verdict

    def _judge(self, request: PendingRequest) -> Verdict:
        allowed = [agent for agent in self._view.agents if agent.id not in request.blocklist]
        if self._can_hold(request, [agent.slots for agent in allowed if agent.is_usable]):
            return "fits"
        blocked = request.blocked_for_good
        coming = [agent.slots + agent.disabled for agent in self._view.agents if agent.id not in blocked]
        return "unhealthy" if self._can_hold(request, coming) else "never"

    def _can_hold(self, request: PendingRequest, sizes: list[int]) -> bool:
        is_heterogeneous = self._view.config.allow_heterogeneous_fits
        return can_hold(request.slots, sizes, request.is_single_agent, is_heterogeneous)
