"""PURE: trials that may run on fewer slots: the sizes that a request may take now, and where smaller work grows.

The ledger calls both. A request takes a smaller size only if it does not fit in full, cannot claim slots or have work
preempted for its full size, and expects no opening for that within SOON_SECONDS. Smaller work grows only while no
request with more right waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.scheduler.placement.capacity.capability import Capability
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.outlook import freed_by
from services.scheduler.placement.capacity.promise import Promises
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.request.order import by_priority
from services.scheduler.placement.request.snapshot import PendingRequest, PoolView, Running

# About the cost of two restarts: a full size that is expected within this time is worth waiting for.
SOON_SECONDS = 60.0


def may_shrink(request: PendingRequest, now: float) -> bool:
    """Returns whether the request may take any smaller size now, provided that its full size is not expected soon."""
    return bool(request.smaller_sizes) and (request.kept_slots > 0 or 0 < request.shrink_at <= now)


def sizes_now(request: PendingRequest, now: float, opening_at: float | None) -> tuple[int, ...]:
    """Returns the sizes that the request may take instead of its full one, the largest first. opening_at: when its full
    size is expected to fit; None when no end of running work makes room for it."""
    is_soon = opening_at is not None and opening_at - now <= SOON_SECONDS
    is_due = 0 < request.shrink_at <= now and not is_soon
    return tuple(size for size in request.smaller_sizes if is_due or size == request.kept_slots)


def promise_growth(view: PoolView, now: float, promises: Promises, capability: Capability, has_one_order: bool) -> None:
    """Promises the slots of the full size to work on fewer slots, or keeps them while it stops. It runs first in a
    plan, because a request with more right keeps the work from growing at all.

    has_one_order: whether the pool's requests have one order. Without one every request may have more right, because
    its turn depends on the others.
    """

    def has_more_right(request: PendingRequest, wanted: PendingRequest) -> bool:
        """Returns whether this request waits for slots that smaller work would need to grow."""
        if not request.slots or request.hold is not None or capability.of(request) != "fits":
            return False
        if has_one_order and by_priority(request) > by_priority(wanted):
            return False
        return request.not_before_at > now or quota.allows(request)

    quota = promises.quota
    for work, wanted in _growth_candidates(view.running, now):
        if not quota.allows_more(work.group, work.limits, wanted.slots - work.slots):
            continue
        if any(has_more_right(request, wanted) for request in view.requests):
            continue
        grown = _find_growth(work, wanted, promises.room)
        if grown is not None:
            fit, left = grown
            promises.grow(work, wanted, fit, left)


def _growth_candidates(running: Iterable[Running], now: float) -> list[tuple[Running, PendingRequest]]:
    """Returns work that may grow now, or is being stopped for that, each with the request for its full size, in the
    order of the queue."""
    able = (
        (work, work.wanted)
        for work in running
        if work.wanted is not None and work.wanted.hold is None
        if work.is_growing or (not work.is_stopping and work.is_preemptible and 0 < work.grow_at <= now)
    )
    return sorted(able, key=lambda pair: by_priority(pair[1]))


def _find_growth(work: Running, wanted: PendingRequest, room: Room) -> tuple[Slots, Slots] | None:
    """Takes the slots for the full size out of the room: the work's own where they serve, and free ones.

    Returns where it fits, and which of its own slots come back to others; None when it does not fit. Its own slots
    count as free only for this search.
    """
    own = freed_by(work)
    room.give_back(own)
    fit = find_fit(wanted, room)
    if fit is None:
        room.take(own)
        return None
    room.take(fit)
    left = {agent_id: max(0, slots - fit.get(agent_id, 0)) for agent_id, slots in own.items()}
    left = {agent_id: slots for agent_id, slots in left.items() if slots and room.get(agent_id) is not None}
    for agent_id, slots in left.items():
        room.add(agent_id, -slots)
    return fit, left
