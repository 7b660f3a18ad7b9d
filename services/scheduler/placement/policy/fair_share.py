"""PURE: the policy `fair_share`: each group gets slots in proportion to its weight, up to what it wants.

Shares are max-min fair: a share can grow only at the cost of a group that has no more. Slots are given to whole
requests, always of the group that has the least for its weight, and are gone at once. So two winners can both start,
and two requests that each need more than their share do not wait for one another. A group that is owed slots may
preempt work that other groups hold beyond their share; a preemption never takes a group below its share.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from services.scheduler.placement.capacity.capability import QuotaCount
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.outlook import freed_by
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.capacity.victim import in_order, less_urgent
from services.scheduler.placement.explain.reason import close
from services.scheduler.placement.request.assignment import PoolPlan
from services.scheduler.placement.request.snapshot import PendingRequest, PoolView, Running

_Turn = tuple[float, int, str]


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now, is_order_fixed=False)
    # 1. Auxiliary places, which go by priority, and requests that were moved to the front do not wait for a share.
    auxiliary = in_order(view.running, now, is_auxiliary=True) if view.config.is_preemption_on else []
    queues: dict[str, deque[PendingRequest]] = defaultdict(deque)
    for request in view.requests:
        if request.slots == 0:
            ledger.consider(request, partial(less_urgent, auxiliary, request))
        elif request.is_first:
            ledger.consider(request)
        else:
            queues[request.group].append(request)
    # 2. Work that may be stopped: slots that groups hold beyond their shares.
    freed = {work.allocation_id: _freed_slots(work, ledger.room) for work in view.running}
    # Work on slots that no request gets afterwards holds slots all the same, so these are shared out too.
    shares = fair_shares(
        view, ledger.room.capacity + sum(work.slots - freed[work.allocation_id] for work in view.running)
    )
    victims = _beyond_share(view, shares, freed, now) if view.config.is_preemption_on else []
    # 3. Slots go to the group that has the least.
    for request in _least_first(view, ledger, queues):
        share = shares[request.group]
        is_owed = ledger.quota.used[request.group] + request.slots <= share
        others = [work for work in victims if work.group != request.group] if is_owed and victims else []
        ledger.consider(request, partial(list, others), league=f"{request.group} {bool(others)}")
    return close(ledger)


def fair_shares(view: PoolView, capacity: float) -> dict[str, float]:
    """Computes the shares by max-min filling: groups that want less than their part of the remaining slots get all they
    want, and leave the rest to the others."""
    open_ = {group: want for group, want in _wanted(view).items() if want > 0}
    shares = dict.fromkeys([*(r.group for r in view.requests), *(w.group for w in view.running)], 0.0)
    left = capacity
    while open_ and left > 0:
        weights = {group: view.weight_of(group) for group in open_}
        total = sum(weights.values())
        # A group with weight 0 gets what no other group wants, in equal parts.
        weights, total = (weights, total) if total else (dict.fromkeys(open_, 1.0), float(len(open_)))
        sated = [group for group, want in open_.items() if want <= left * weights[group] / total]
        if not sated:
            shares.update({group: left * weights[group] / total for group in open_})
            break
        for group in sated:
            shares[group] = open_.pop(group)
            left -= shares[group]
    return shares


def _wanted(view: PoolView) -> Mapping[str, float]:
    """Returns, by group, the slots that it holds and waits for, up to its cap. A request that its limits do not let
    start wants nothing: its share would be left over."""
    wanted: dict[str, float] = defaultdict(float)
    for work in view.running:
        wanted[work.group] += work.slots
    quota = QuotaCount(view)
    for request in view.requests:
        if request.hold is None and quota.breached(request.limits, request.slots) is None:
            wanted[request.group] += request.slots
            quota.promise(request)
    caps = {group: view.cap_of(group) for group in wanted}
    return {group: want if caps[group] is None else min(want, caps[group] or 0) for group, want in wanted.items()}


def _freed_slots(work: Running, room: Room) -> int:
    """Returns the slots that another request gets after this work: neither draining nor on an agent that starts
    nothing."""
    return sum(slots for agent_id, slots in freed_by(work).items() if room.get(agent_id) is not None)


def _beyond_share(view: PoolView, shares: Mapping[str, float], freed: Mapping[str, int], now: float) -> list[Running]:
    """Returns work beyond the shares, in the order of preemption; each group keeps its share. freed: slots by
    allocation. Work that frees no slots is left out, because stopping it helps no request."""
    held_by_group: dict[str, int] = defaultdict(int)
    for work in view.running:
        if not work.is_stopping:
            held_by_group[work.group] += work.slots
    beyond = []
    for work in in_order(view.running, now):
        if freed[work.allocation_id] and held_by_group[work.group] - work.slots >= shares[work.group]:
            held_by_group[work.group] -= work.slots
            beyond.append(work)
    return beyond


def _least_first(
    view: PoolView, ledger: Ledger, queues: Mapping[str, deque[PendingRequest]]
) -> Iterator[PendingRequest]:
    """Yields requests, each time from the group that has the least for its weight by then. Ties go to the group whose
    first request came first."""
    order = {group: number for number, group in enumerate(queues)}
    turns: list[_Turn] = [(_ratio(view, ledger, group), order[group], group) for group in queues]
    heapify(turns)
    while turns:
        _, number, group = heappop(turns)
        yield queues[group].popleft()
        if queues[group]:
            heappush(turns, (_ratio(view, ledger, group), number, group))


def _ratio(view: PoolView, ledger: Ledger, group: str) -> float:
    weight = view.weight_of(group)
    return ledger.quota.used[group] / weight if weight else inf
