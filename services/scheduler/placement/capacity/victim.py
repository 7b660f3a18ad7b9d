"""PURE: which running work is preempted for a request, in which order, and how little of it.

The least urgent work goes first, then the newest, then the work that loses the least because its checkpoint is the
freshest. A fit is proven before any work is released, and work that turns out not to be needed is spared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from services.scheduler.placement.capacity.outlook import freed_by, sum_of_freed
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.request.snapshot import PendingRequest, Running

Find = Callable[[], Slots | None]

# Victims tried one by one before a single check asks whether all of them together suffice.
_MANY = 256


def in_order(works: Iterable[Running], now: float, *, is_auxiliary: bool = False) -> list[Running]:
    """Returns the work that can be preempted at all, in the order of preemption. is_auxiliary: work without slots
    instead of work with slots."""
    able = (work for work in works if work.is_preemptible and not work.is_stopping and is_auxiliary == (not work.slots))
    return sorted(
        able, key=lambda work: (-work.priority, -work.started_at, _lost_seconds(work, now), work.allocation_id)
    )


def less_urgent(victims: Sequence[Running], request: PendingRequest) -> Sequence[Running]:
    """Returns the victims that are less urgent than the request. victims: in the order of preemption."""
    return victims[: bisect_left(victims, -request.priority, key=lambda work: -work.priority)]


def find_victims(
    victims: Sequence[Running], slots: int, room: Room, find: Find
) -> tuple[list[Running], Slots, int] | None:
    """Returns the work to stop, where the request fits then, and how many victims were examined; None when not even all
    of them make room. On success the slots of the work to stop stay given back in the room; otherwise the room is left
    as it was."""
    freed: list[Running] = []
    for number, work in enumerate(victims):
        if number == _MANY and not _is_enough(victims[number:], room, find):
            break
        room.give_back(freed_by(work))
        freed.append(work)
        if _can_matter(work, slots, room) and (fit := find()) is not None:
            needed, fit = _pruned(freed, fit, room, find)
            return needed, fit, len(freed)
    for work in freed:
        _take_back(work, room)
    return None


def _is_enough(victims: Sequence[Running], room: Room, find: Find) -> bool:
    """Returns whether there is a fit when all of them stop. One check for all costs far less than one for each."""
    coming = sum_of_freed(victims, room)
    for agent_id, slots in coming.items():
        room.add(agent_id, slots)
    fit = find()
    for agent_id, slots in coming.items():
        room.add(agent_id, -slots)
    return fit is not None


def _pruned(freed: list[Running], fit: Slots, room: Room, find: Find) -> tuple[list[Running], Slots]:
    """Spares work on other agents than those of the fit. Among the rest, the most valuable work is spared first."""
    needed: list[Running] = []
    for work in freed:
        if fit.keys().isdisjoint(work.slots_by_agent):
            _take_back(work, room)
        else:
            needed.append(work)
    # The list is in the order of preemption, so its end is the most valuable.
    for work in reversed(tuple(needed)):
        _take_back(work, room)
        again = find()
        if again is None:
            room.give_back(freed_by(work))
        else:
            needed.remove(work)
            fit = again
    return needed, find() or fit


def _can_matter(work: Running, slots: int, room: Room) -> bool:
    """Returns whether the end of this work can matter: a request that did not fit before fits only if one of these
    agents is now wide enough or idle."""
    bins = (room.get(agent_id) for agent_id in work.slots_by_agent)
    return any(bin_ is not None and (bin_.free >= slots or bin_.is_idle) for bin_ in bins)


def _take_back(work: Running, room: Room) -> None:
    for agent_id, slots in freed_by(work).items():
        room.add(agent_id, -slots)


def _lost_seconds(work: Running, now: float) -> float:
    """Returns the training time that stopping the work would lose: since its checkpoint, else since its start."""
    age = work.checkpoint_age_seconds
    return max(0.0, now - work.started_at) if age is None else age
