"""PURE: the free slots that later requests may take without delaying the request that holds the reservation.

An estimate is a guess: running work may end at any time, so ends may come in any order. Only a bound is certain, see
Running.is_bounded. Slots of an agent are spare if they stay free, besides the holder's, in every order of the ends that
have no bound. The ledger asks once in each plan, when it makes the reservation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.scheduler.placement.capacity.exact import find_sizes
from services.scheduler.placement.capacity.outlook import Outlook, freed_by
from services.scheduler.placement.capacity.room import Bin, Room, Slots
from services.scheduler.placement.request.snapshot import PendingRequest, Running

_End = tuple[float, Running]


@dataclass(frozen=True, slots=True)
class SpareSlots:
    """Holds spare slots."""

    slots_by_agent: Slots  # covers the agents where the holder may start; every other agent is open to all requests
    # The holder cannot start earlier, in any order of ends. So work that is certain to be over by then cannot delay it.
    sure_until: float


def find_spare(holder: PendingRequest, room: Room, outlook: Outlook, now: float, starts_at: float) -> SpareSlots:
    """Computes the spare slots. outlook: of this room, with `now` as the end of work that the holder may have stopped.
    starts_at: when the holder is to start by this outlook."""
    known_ends: list[_End] = []
    guesses: list[Running] = []
    for end, work in outlook.ends:
        # A bound that has passed is none. The end of work that the holder may have stopped is `now`.
        if end <= now or (work.is_bounded and work.estimated_end_at > now):
            known_ends.append((end, work))
        else:
            guesses.append(work)
    first_at, last = now, None
    if not guesses:
        first_at, last = starts_at, outlook
    elif known_ends and known_ends[-1][0] > now:
        at_once = Outlook(room, (), now, [*((now, work) for work in guesses), *known_ends]).opening(holder)
        first_at = now if at_once is None else at_once.at
        last = Outlook(room, (), now, known_ends)
    surely = last.opening(holder) if last is not None else None
    window = _Window(first_at, None if surely is None else surely.at)
    spare_by_agent = _in_any_order(holder, room, guesses, known_ends, window)
    if last is not None and surely is not None:
        for agent_id, slots in surely.slots_by_agent.items():
            left = last.free_at(agent_id, surely.at) - slots
            spare_by_agent[agent_id] = min(left, spare_by_agent.get(agent_id, left))
    return SpareSlots(spare_by_agent, first_at)


@dataclass(frozen=True, slots=True)
class _Window:
    """Holds the time in which the order of ends decides whether the holder starts."""

    first_at: float
    last_at: float | None  # time at which the holder starts for certain; None for never

    def has(self, at: float) -> bool:
        return self.last_at is None or at < self.last_at


class _Agent:
    """Describes what the end of work does to one agent. guesses: slots that come back at an unknown time. steps: slots
    that come back at the given time at the latest. draining: busy slots that no request gets afterwards."""

    __slots__ = ("draining", "guesses", "steps")

    def __init__(self) -> None:
        self.guesses: list[int] = []
        self.steps: list[tuple[float, int]] = []
        self.draining = 0


def _in_any_order(
    holder: PendingRequest, room: Room, guesses: Iterable[Running], known_ends: Iterable[_End], window: _Window
) -> Slots:
    if not window.has(window.first_at):
        return {}
    coming = _coming(guesses, known_ends, window)
    bins = [bin_ for bin_ in room.bins if bin_.agent.id not in holder.blocklist]
    idle = [bin_ for bin_ in bins if bin_.capacity < holder.slots and _can_be_idle(bin_, coming[bin_.agent.id])]
    sizes = _sizes_of_gang(holder, room, Counter(bin_.capacity for bin_ in idle))
    # The gang takes either all of a whole agent or none of it.
    spare = {bin_.agent.id: 0 for bin_ in idle if bin_.capacity in sizes}
    for bin_ in bins:
        if bin_.capacity >= holder.slots:
            least = _least_free(bin_.free, coming[bin_.agent.id], holder.slots, window.first_at)
            if least is not None:
                spare[bin_.agent.id] = least - holder.slots
    return spare


def _coming(guesses: Iterable[Running], known_ends: Iterable[_End], window: _Window) -> Mapping[str, _Agent]:
    coming: dict[str, _Agent] = defaultdict(_Agent)
    for work in guesses:
        for agent_id, slots in freed_by(work).items():
            coming[agent_id].guesses.append(slots)
        for agent_id, slots in work.draining_by_agent.items():
            coming[agent_id].draining += slots
    for end, work in known_ends:
        if window.has(end):
            for agent_id, slots in freed_by(work).items():
                coming[agent_id].steps.append((end, slots))
            for agent_id, slots in work.draining_by_agent.items():
                coming[agent_id].draining += slots
    return coming


def _can_be_idle(bin_: Bin, coming: _Agent) -> bool:
    if not bin_.joins_gangs:
        return False
    free = bin_.free + sum(coming.guesses)
    if coming.steps:
        free += sum(slots for _, slots in coming.steps)
    return 0 < bin_.capacity == free and bin_.agent.draining <= coming.draining


def _sizes_of_gang(holder: PendingRequest, room: Room, count_by_size: Mapping[int, int]) -> set[int]:
    """Returns the sizes of the agents that the holder may take whole, see fit.py."""
    if holder.is_single_agent:
        return set()
    slots = holder.slots
    sizes = {size for size, count in count_by_size.items() if slots % size == 0 and slots // size <= count}
    if room.config.allow_heterogeneous_fits:
        others = count_by_size.keys() - sizes
        sizes |= {size for size in others if _is_part(size, slots, count_by_size)}
    return sizes


def _is_part(size: int, slots: int, count_by_size: Mapping[int, int]) -> bool:
    """Returns whether an agent of this size can be part of a gang made of these agents."""
    left = {agent_size: count - (agent_size == size) for agent_size, count in count_by_size.items()}
    return find_sizes(slots - size, left) is not None


def _least_free(free: int, coming: _Agent, slots: int, first_at: float) -> int | None:
    """Returns the fewest free slots that suffice, over all sets of ends; None when none suffices. The sums of the sets
    are the bits of one integer."""
    # Bit n is set if some set of ends frees exactly n slots.
    sums = 1
    for guess in coming.guesses:
        sums |= sums << guess
    free += sum(more for end, more in coming.steps if end <= first_at)
    least_sums = [_least_sum(free, sums, slots)]
    for end, more in coming.steps:
        if end > first_at:
            free += more
            least_sums.append(_least_sum(free, sums, slots))
    return min((least for least in least_sums if least is not None), default=None)


def _least_sum(free: int, sums: int, slots: int) -> int | None:
    lacking = max(0, slots - free)
    enough = sums >> lacking
    return free + lacking + (enough & -enough).bit_length() - 1 if enough else None
