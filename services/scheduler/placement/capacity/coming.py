"""PURE: the slots that stopping work is about to give back and that no request of the plan has claimed.

Coming slots are not free. The room counts them only while a request looks for slots to claim. The auxiliary places of
stopping work are in auxiliary.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from services.scheduler.placement.capacity.backfill import FitKey
from services.scheduler.placement.capacity.outlook import freed_by, sum_of_freed
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.request.snapshot import Running


class ComingSlots:
    """stopping: work with slots that stops, since before this plan or because of it. room: without coming slots, except
    within `shown`."""

    def __init__(self, running: Iterable[Running], room: Room) -> None:
        self._room = room
        self.stopping = [work for work in running if work.is_stopping and work.slots]
        self._slots: Slots = sum_of_freed(self.stopping, room)
        # Requests that do not fit into free and coming slots together. Both only shrink, so the answer holds until
        # `release` adds coming slots, which clears it.
        self._refused: set[FitKey] = set()

    @property
    def slots_by_agent(self) -> Mapping[str, int]:
        return self._slots

    def is_refused(self, key: FitKey) -> bool:
        """Returns whether such a request finds nothing to claim, as far as is known."""
        return not self._slots or key in self._refused

    def refuse(self, key: FitKey) -> None:
        """Records that such a request does not fit into the free and coming slots."""
        self._refused.add(key)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Counts the coming slots as free in the room. Slots that are taken meanwhile no longer count as coming."""
        for agent_id, slots in self._slots.items():
            self._room.add(agent_id, slots)
        yield
        for agent_id, slots in tuple(self._slots.items()):
            bin_ = self._room.get(agent_id)
            left = min(slots, bin_.free) if bin_ is not None else 0
            self._room.add(agent_id, -left)
            if left:
                self._slots[agent_id] = left
            else:
                del self._slots[agent_id]

    def release(self, works: Sequence[Running]) -> None:
        """Adds the slots of work that this plan stops. Call it within `shown`, with these slots free in the room."""
        self.stopping += works
        self._add(sum_of_freed(works, self._room))
        # More may be coming than the request that has the work stopped needs: others may fit into the rest.
        self._refused.clear()

    def keep_for_growth(self, work: Running, left: Mapping[str, int]) -> None:
        """Keeps the slots of work that stops in order to grow for that work. left: its slots that others may claim."""
        if work.is_growing:
            for agent_id in freed_by(work).keys() & self._slots.keys():
                self._slots[agent_id] -= freed_by(work)[agent_id]
        else:
            self.stopping.append(work)
        self._add(left)
        self._slots = {agent_id: slots for agent_id, slots in self._slots.items() if slots > 0}

    def blocking(self, slots_by_agent: Mapping[str, int]) -> tuple[str, ...]:
        """Returns the stopping allocations that a claim of these slots waits for: all of those on its agents."""
        agent_ids = slots_by_agent.keys()
        return tuple(work.allocation_id for work in self.stopping if not agent_ids.isdisjoint(work.slots_by_agent))

    def _add(self, slots_by_agent: Mapping[str, int]) -> None:
        for agent_id, slots in slots_by_agent.items():
            self._slots[agent_id] = self._slots.get(agent_id, 0) + slots
