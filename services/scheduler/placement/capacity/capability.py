"""PURE: limits that do not depend on the running work: shapes of requests that a pool could ever hold, and caps of
groups, and limits of users and workspaces.

The agents are counted by size once for each plan. A request that avoids some agents subtracts these from the count, so
its answer adds no cost for other requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import cached_property
from math import inf
from typing import Literal

from services.scheduler.placement.capacity.feasibility import can_counted_hold
from services.scheduler.placement.request.snapshot import AgentRoom, Limit, PendingRequest, PoolView, Shape

Verdict = Literal["fits", "unhealthy", "never"]


# The slots of a request, whether one agent must have them all, and the sizes of the agents that it avoids: of all, and
# of those that take part in gangs over several agents.
_Question = tuple[int, bool, tuple[int, ...], tuple[int, ...]]
# How many agents have each number of slots: all, and those that take part in gangs over several agents.
_Counts = tuple[Counter[int], Counter[int]]


class Capability:
    def __init__(self, view: PoolView) -> None:
        self._view = view
        # Never cleared: a plan does not change which agents there are.
        self._verdicts: dict[Shape, Verdict] = {}
        self._is_held_by_usable: dict[_Question, bool] = {}
        self._is_held_by_coming: dict[_Question, bool] = {}

    def of(self, request: PendingRequest) -> Verdict:
        """Returns the verdict on a request. never: it fits not even with all agents healthy and idle. unhealthy: it
        fits only with agents or slots that are away, that lack a network for gangs, or that the request avoids for a
        limited time."""
        shape = request.shape
        verdict = self._verdicts.get(shape)
        if verdict is None:
            verdict = self._verdicts[shape] = self._judge(request)
        return verdict

    def _judge(self, request: PendingRequest) -> Verdict:
        avoided = [agent for agent in self._find(request.blocklist) if agent.is_usable]
        joining = [agent.slots for agent in avoided if not agent.gang_problem]
        sizes = [agent.slots for agent in avoided]
        if self._can_hold(request, self._num_usable, sizes, joining, self._is_held_by_usable):
            return "fits"
        sizes = [agent.slots + agent.disabled for agent in self._find(request.blocked_for_good)]
        can_hold = self._can_hold(request, self._num_coming, sizes, sizes, self._is_held_by_coming)
        return "unhealthy" if can_hold else "never"

    @cached_property
    def _num_usable(self) -> _Counts:
        usable = [agent for agent in self._view.agents if agent.is_usable]
        return Counter(agent.slots for agent in usable), Counter(a.slots for a in usable if not a.gang_problem)

    @cached_property
    def _num_coming(self) -> _Counts:
        num_by_size = Counter(agent.slots + agent.disabled for agent in self._view.agents)
        return num_by_size, num_by_size

    @cached_property
    def _agent_by_id(self) -> dict[str, AgentRoom]:
        return {agent.id: agent for agent in self._view.agents}

    def _find(self, agent_ids: Collection[str]) -> list[AgentRoom]:
        """Returns the agents of the pool among these ids, each once."""
        return [self._agent_by_id[agent_id] for agent_id in set(agent_ids) if agent_id in self._agent_by_id]

    def _can_hold(
        self,
        request: PendingRequest,
        counts: _Counts,
        avoided: Iterable[int],
        joining: Iterable[int],
        memo: dict[_Question, bool],
    ) -> bool:
        """avoided, joining: the sizes of the agents that the request avoids: of all, and of those that take part in
        gangs. Requests have many blocklists, but few combinations of sizes, so the answer is kept by these."""
        question = (request.slots, request.is_single_agent, tuple(sorted(avoided)), tuple(sorted(joining)))
        is_held = memo.get(question)
        if is_held is None:
            slots, is_single_agent, sizes, joining_sizes = question
            num_by_size, num_in_gangs_by_size = counts
            is_held = memo[question] = can_counted_hold(
                slots,
                num_by_size - Counter(sizes),
                is_single_agent,
                self._view.config.allow_heterogeneous_fits,
                num_in_gangs_by_size - Counter(joining_sizes),
            )
        return is_held


def is_over_several(request: PendingRequest, agents: Iterable[AgentRoom]) -> bool:
    """Returns whether the request needs a gang over several agents, because none of these could ever hold it alone."""
    return not request.is_single_agent and request.slots > max((a.slots + a.disabled for a in agents), default=0)


class QuotaCount:
    """Counts the slots of each group against its cap, and those of each limit (the quota of a user or a workspace).

    used: by group. held: by limit, over all pools. promised: by limit, what this plan has given away. All of them only
    grow with the plan, so a request that was refused stays refused.
    """

    def __init__(self, view: PoolView) -> None:
        self._groups, self._limits = view.groups, view.limits
        self.used: defaultdict[str, int] = defaultdict(int)
        for work in view.running:
            self.used[work.group] += work.slots
        self.held: defaultdict[str, int] = defaultdict(int, view.held)
        self.promised: defaultdict[str, int] = defaultdict(int)

    def cap_of(self, group: str) -> float:
        group_record = self._groups.get(group)
        return inf if group_record is None or group_record.max_slots is None else group_record.max_slots

    def allows(self, request: PendingRequest) -> bool:
        return self.allows_more(request.group, request.limits, request.slots)

    def allows_more(self, group: str, limits: Iterable[str], slots: int) -> bool:
        """Returns whether the cap and the limits allow so many more slots. Work without slots is always allowed."""
        if not slots:
            return True
        return self.used[group] + slots <= self.cap_of(group) and self.breached(limits, slots) is None

    def breached(self, limits: Iterable[str], slots: int) -> Limit | None:
        """Returns the first limit that does not allow so many more slots; None if all do."""
        for limit_id in limits:
            limit = self._limits.get(limit_id)
            if limit is not None and not limit.allows(self.held[limit_id], slots):
                return limit
        return None

    def promise(self, request: PendingRequest) -> None:
        self.promise_more(request.group, request.limits, request.slots)

    def promise_more(self, group: str, limits: Iterable[str], slots: int) -> None:
        self.used[group] += slots
        for limit_id in limits:
            self.held[limit_id] += slots
            self.promised[limit_id] += slots
