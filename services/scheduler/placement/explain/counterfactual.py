"""PURE: the smallest change that can be named and would start a waiting request.

The required changes follow from the pool as it was before the plan, so that one answer serves all requests of a shape.
A request that others would get ahead of also has to be moved to the front of the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from gangline.domain.state import ReasonCode
from services.scheduler.placement.capacity.capability import is_over_several
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.outlook import Opening
from services.scheduler.placement.capacity.promise import Waiting
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, Running, Shape
from services.scheduler.placement.request.snapshot_change import (
    AddAgents,
    Change,
    EmptyAgents,
    EnableAgents,
    EndWork,
    MoveToFront,
    RaiseHours,
    RaiseLimit,
    RaiseMaxSlots,
    Release,
    RestoreNetwork,
    enabled,
)

# What ends each hold.
_RELEASES = {
    ReasonCode.PAUSED: "it is activated",
    ReasonCode.SEARCH_WAITING: "its search lets it start",
    ReasonCode.NO_GATEWAY: "a gateway registers",
}


class Counterfactual:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._used = Counter[str]()
        for work in ledger.view.running:
            self._used[work.group] += work.slots
        # Valid for the whole plan: both depend only on the pool before it.
        self._by_shape: dict[Shape, tuple[Change, ...]] = {}
        self._openings: dict[Shape, Opening | None] = {}

    def of(self, waiting: Waiting) -> tuple[Change, ...]:
        request = waiting.request
        changes = self._room_for(request)
        if waiting.is_behind:
            changes = (MoveToFront(request.trial_id), *changes)
        if waiting.cause == "quota" or self._exceeds_cap(request):
            changes = (*self._raise(request), *changes)
        if request.limits and request.slots:
            changes = self._within_limits(request, changes)
        if waiting.cause in ("held", "backoff") or request.not_before_at > self._ledger.now:
            changes = (Release(request.trial_id, _released(request)), *changes)
        return changes

    def opening(self, request: PendingRequest) -> Opening | None:
        """Returns when the ends of running work would make room for the request, if no other request waited."""
        shape = request.shape
        if shape not in self._openings:
            self._openings[shape] = self._ledger.promises.outlook.opening(request)
        return self._openings[shape]

    def _exceeds_cap(self, request: PendingRequest) -> bool:
        return self._used[request.group] + request.slots > self._ledger.quota.cap_of(request.group)

    def _raise(self, request: PendingRequest) -> tuple[Change, ...]:
        """Returns the raised cap; nothing when only requests ahead of this one exhaust the cap."""
        if not request.slots or not self._exceeds_cap(request):
            return ()
        return (RaiseMaxSlots(request.group, self._used[request.group] + request.slots),)

    def _within_limits(self, request: PendingRequest, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Adds what the limits of the request need: the ends of work that counts for them, the earliest first, or
        higher limits where these ends do not suffice. What a request ahead takes of a limit needs no change."""
        view = self._ledger.view
        ended = next((set(change.allocation_ids) for change in changes if isinstance(change, EndWork)), set[str]())
        raised: list[Change] = []
        for limit_id in request.limits:
            limit = view.limits.get(limit_id)
            if limit is None:
                continue
            if limit.is_spent:
                raised.append(RaiseHours(limit_id, limit.name, limit.used_hours, limit.renews_at))
            if limit.max_slots is None:
                continue
            holders = view.holders.get(limit_id, ())
            held = view.held.get(limit_id, 0)
            needed = held + request.slots - limit.max_slots
            if needed <= 0:
                continue
            chosen = _earliest(holders, ended, needed) if request.slots <= limit.max_slots else None
            if chosen is None:
                raised.append(RaiseLimit(limit_id, limit.name, held + request.slots))
            else:
                ended |= chosen
        if ended:
            others = tuple(change for change in changes if not isinstance(change, EndWork))
            changes = (*others, EndWork(tuple(sorted(ended))))
        return (*raised, *changes)

    def _room_for(self, request: PendingRequest) -> tuple[Change, ...]:
        shape = request.shape
        if shape not in self._by_shape:
            self._by_shape[shape] = self._changes_for(request)
        return self._by_shape[shape]

    def _changes_for(self, request: PendingRequest) -> tuple[Change, ...]:
        agents = self._ledger.view.agents
        match self._ledger.capability.of(request):
            case "never":
                return (_more_agents(request, agents, request.pool),)
            case "unhealthy":
                return self._restored(request)
            case "fits":
                opening = self._initial_opening(request)
                if opening is None:
                    return self._emptied(request, [agent for agent in agents if agent.is_usable])
                return (EndWork(tuple(w.allocation_id for w in opening.after)),) if opening.after else ()

    def _restored(self, request: PendingRequest) -> tuple[Change, ...]:
        """Returns what brings all agents of the pool back, for a request that the present ones cannot hold."""
        agents, blocked = self._ledger.view.agents, request.blocked_for_good
        away = tuple(
            agent.id
            for agent in agents
            if (not agent.is_usable or agent.disabled or agent.id in request.blocklist) and agent.id not in blocked
        )
        cut_off = tuple(agent.id for agent in agents if agent.gang_problem and agent.id not in blocked)
        readmitted = replace(request, blocklist=tuple(sorted(blocked)), excluded=())
        whole = [replace(enabled(agent), gang_problem="") for agent in agents]
        there = {agent.id for agent in agents if agent.is_usable and not agent.disabled}
        excluded = tuple(agent_id for agent_id in away if agent_id in there)
        changes: tuple[Change, ...] = (EnableAgents(away, excluded),) if away else ()
        if cut_off and is_over_several(request, agents):
            changes += (RestoreNetwork(cut_off),)
        return *changes, *self._emptied(readmitted, whole)

    def _initial_opening(self, request: PendingRequest) -> Opening | None:
        """Returns the first opening before this plan. An auxiliary place that is free already needs no work to end."""
        if request.slots == 0 and find_fit(request, Room(self._ledger.view.agents, self._ledger.view.config)):
            return Opening(self._ledger.now, {}, ())
        return self.opening(request)

    def _emptied(self, request: PendingRequest, agents: Sequence[AgentRoom]) -> tuple[Change, ...]:
        """Returns the agents that have to become idle as a whole, whatever occupies them."""
        config = self._ledger.view.config
        if find_fit(request, Room(agents, config)) is not None:
            return ()
        idle = [replace(agent, used=0, draining=0, used_zero_slot=0) for agent in agents]
        fit = find_fit(request, Room(idle, config))
        return (EmptyAgents(tuple(sorted(fit))),) if fit else ()


def _earliest(holders: Sequence[Running], ended: Collection[str], needed: int) -> set[str] | None:
    """Returns the work that ends first and gives back so many slots, beside the work that ends anyway; None if there is
    not enough. ended: allocations that end anyway."""
    chosen: list[Running] = []
    needed -= sum(work.slots for work in holders if work.allocation_id in ended)
    for work in sorted(holders, key=lambda work: (work.estimated_end_at or inf, work.allocation_id)):
        if needed <= 0:
            break
        if work.slots and work.allocation_id not in ended:
            chosen.append(work)
            needed -= work.slots
    if needed > 0:
        return None
    # Work that ends early and is not needed after all is left out.
    for work in tuple(chosen):
        if needed + work.slots <= 0:
            chosen.remove(work)
            needed += work.slots
    return {work.allocation_id for work in chosen}


def _more_agents(request: PendingRequest, agents: Sequence[AgentRoom], pool: str) -> AddAgents:
    """Returns agents of the most common size, if the request fills them completely; else one agent that holds it."""
    sizes = Counter(agent.slots for agent in agents if agent.slots)
    size = max(sizes, key=lambda size: (sizes[size], size), default=0)
    if size and not request.is_single_agent and request.slots > size and request.slots % size == 0:
        return AddAgents(pool, request.slots // size, size)
    return AddAgents(pool, 1, max(1, request.slots))


def _released(request: PendingRequest) -> str:
    if request.hold is None:
        return "its wait after the failure is over"
    return _RELEASES[request.hold]
