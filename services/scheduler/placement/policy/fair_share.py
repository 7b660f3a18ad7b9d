"""PURE: the policy `fair_share`: each group gets slots in proportion to its weight, as far as it wants them.

Shares are max-min fair: nobody's can grow but at the cost of somebody with no more. Slots are given out by whole
requests, always to the group that has the least for its weight, and are gone at once; so two winners can both start,
and two requests that each need more than their share do not wait for one another. A group that is owed slots may have
those stopped that others hold beyond their share; giving them back never takes anybody below it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from services.scheduler.placement.assignment import PoolPlan
from services.scheduler.placement.ledger import Ledger
from services.scheduler.placement.outlook import freed_by
from services.scheduler.placement.reason import close
from services.scheduler.placement.room import Room
from services.scheduler.placement.snapshot import PendingRequest, PoolView, Running
from services.scheduler.placement.victim import in_order, less_urgent

_Turn = tuple[float, int, str]


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now, is_order_fixed=False)
    # 1. Auxiliary places, which go by priority, and what was moved to the front have no share to wait for.
    auxiliary = in_order(view.running, now, is_auxiliary=True) if view.config.is_preemption_on else []
    queues: dict[str, deque[PendingRequest]] = defaultdict(deque)
    for request in view.requests:
        if request.slots == 0:
            ledger.consider(request, partial(less_urgent, auxiliary, request))
        elif request.is_first:
            ledger.consider(request)
        else:
            queues[request.group].append(request)
    # 2. Who may be stopped: what groups hold beyond their shares.
    freed = {work.allocation_id: _freed_slots(work, ledger.room) for work in view.running}
    # Who finishes on slots that nobody gets afterwards holds slots all the same, so they are shared out too.
    shares = fair_shares(
        view, ledger.room.capacity + sum(work.slots - freed[work.allocation_id] for work in view.running)
    )
    victims = _beyond_share(view, shares, freed, now) if view.config.is_preemption_on else []
    # 3. Slots go where the least is.
    for request in _least_first(view, ledger, queues):
        share = shares[request.group]
        is_owed = ledger.quota.used[request.group] + request.slots <= share
        others = [work for work in victims if work.group != request.group] if is_owed and victims else []
        ledger.consider(request, partial(list, others), league=f"{request.group} {bool(others)}")
    return close(ledger)


def fair_shares(view: PoolView, capacity: float) -> dict[str, float]:
    """Max-min filling: groups that want less than their part of what is left get what they want, and leave the rest to
    the others."""
    open_ = {group: want for group, want in _wanted(view).items() if want > 0}
    shares = dict.fromkeys([*(r.group for r in view.requests), *(w.group for w in view.running)], 0.0)
    left = capacity
    while open_ and left > 0:
        weights = {group: view.weight_of(group) for group in open_}
        total = sum(weights.values())
        # Without a weight a group gets what nobody else wants, in equal parts.
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
    """By group: what it holds and waits for, as far as its cap lets it."""
    wanted: dict[str, float] = defaultdict(float)
    for work in view.running:
        wanted[work.group] += work.slots
    for request in view.requests:
        if request.hold is None:
            wanted[request.group] += request.slots
    caps = {group: view.cap_of(group) for group in wanted}
    return {group: want if caps[group] is None else min(want, caps[group] or 0) for group, want in wanted.items()}


def _freed_slots(work: Running, room: Room) -> int:
    """Those that somebody gets after it: neither draining nor of an agent that starts nothing."""
    return sum(slots for agent_id, slots in freed_by(work).items() if room.get(agent_id) is not None)


def _beyond_share(view: PoolView, shares: Mapping[str, float], freed: Mapping[str, int], now: float) -> list[Running]:
    """The first to go first; of each group only so many that it keeps its share. freed: slots by allocation; to stop
    what frees none helps nobody."""
    held: dict[str, int] = defaultdict(int)
    for work in view.running:
        if not work.is_stopping:
            held[work.group] += work.slots
    beyond = []
    for work in in_order(view.running, now):
        if freed[work.allocation_id] and held[work.group] - work.slots >= shares[work.group]:
            held[work.group] -= work.slots
            beyond.append(work)
    return beyond


def _least_first(
    view: PoolView, ledger: Ledger, queues: Mapping[str, deque[PendingRequest]]
) -> Iterator[PendingRequest]:
    """Each time the next request of the group that has the least for its weight by then; ties go to the group whose
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
