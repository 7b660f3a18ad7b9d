"""PURE: limits that do not depend on the running work: shapes of requests that a pool could ever hold, and caps of
groups.

The agents are counted by size once for each plan. A request that avoids some agents subtracts these from the count, so
its answer adds no cost for other requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from functools import cached_property
from math import inf
from typing import Literal

from services.scheduler.placement.capacity.feasibility import can_counted_hold
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, PoolView, Shape

Verdict = Literal["fits", "unhealthy", "never"]


class Capability:
    def __init__(self, view: PoolView) -> None:
        self._view = view
        # Never cleared: a plan does not change which agents there are.
        self._verdicts: dict[Shape, Verdict] = {}

    def of(self, request: PendingRequest) -> Verdict:
        """Returns the verdict on a request. never: it fits not even with all agents healthy and idle. unhealthy: it
        fits only with agents or slots that are away, or that the request avoids for a limited time."""
        shape = request.shape
        verdict = self._verdicts.get(shape)
        if verdict is None:
            verdict = self._verdicts[shape] = self._judge(request)
        return verdict

    def _judge(self, request: PendingRequest) -> Verdict:
        avoided = (agent.slots for agent in self._find(request.blocklist) if agent.is_usable)
        if self._can_hold(request, self._num_usable_by_size - Counter(avoided)):
            return "fits"
        avoided = (agent.slots + agent.disabled for agent in self._find(request.blocked_for_good))
        return "unhealthy" if self._can_hold(request, self._num_coming_by_size - Counter(avoided)) else "never"

    @cached_property
    def _num_usable_by_size(self) -> Counter[int]:
        return Counter(agent.slots for agent in self._view.agents if agent.is_usable)

    @cached_property
    def _num_coming_by_size(self) -> Counter[int]:
        return Counter(agent.slots + agent.disabled for agent in self._view.agents)

    @cached_property
    def _agent_by_id(self) -> dict[str, AgentRoom]:
        return {agent.id: agent for agent in self._view.agents}

    def _find(self, agent_ids: Collection[str]) -> list[AgentRoom]:
        """Returns the agents of the pool among these ids, each once."""
        return [self._agent_by_id[agent_id] for agent_id in set(agent_ids) if agent_id in self._agent_by_id]

    def _can_hold(self, request: PendingRequest, num_by_size: Counter[int]) -> bool:
        is_heterogeneous = self._view.config.allow_heterogeneous_fits
        return can_counted_hold(request.slots, num_by_size, request.is_single_agent, is_heterogeneous)


class Quota:
    """Counts the slots of each group. used: by group; grows with the plan."""

    def __init__(self, view: PoolView) -> None:
        self._groups = view.groups
        self.used: defaultdict[str, int] = defaultdict(int)
        for work in view.running:
            self.used[work.group] += work.slots

    def cap_of(self, group: str) -> float:
        group_record = self._groups.get(group)
        return inf if group_record is None or group_record.max_slots is None else group_record.max_slots

    def allows(self, request: PendingRequest) -> bool:
        if not request.slots:
            return True
        return self.used[request.group] + request.slots <= self.cap_of(request.group)

    def promise(self, request: PendingRequest) -> None:
        self.used[request.group] += request.slots
