"""PURE: auxiliary places (taken by requests without slots) that stopping work is about to give back.

Owns which work has to end for a request. A place that a request claims goes to no other request of the same plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from services.scheduler.placement.capacity.room import Bin, Room
from services.scheduler.placement.request.snapshot import PendingRequest, Running


class ComingPlaces:
    """Tracks auxiliary places that stopping work gives back. room: an agent may have a negative number of free places,
    after an operator has lowered its limit."""

    def __init__(self, running: Iterable[Running], room: Room) -> None:
        self._room = room
        self._coming: dict[str, list[Running]] = defaultdict(list)
        for work in running:
            if work.is_stopping and not work.slots:
                for agent_id in work.slots_by_agent:
                    self._coming[agent_id].append(work)

    def claim(self, request: PendingRequest) -> tuple[Running, ...] | None:
        """Returns the stopping work whose place the request takes; None when none is left."""
        for agent_id in sorted(self._coming):
            bin_ = self._open(agent_id, request)
            if bin_ is not None and len(self._coming[agent_id]) >= _num_lacking(bin_):
                return self._take(bin_)
        return None

    def make_room(self, request: PendingRequest, victims: Sequence[Running]) -> tuple[Running, ...] | None:
        """Returns the work that must stop, or stops already, to give the request a place. victims: work that the
        request may have stopped, in the order of preemption."""
        for work in victims:
            for agent_id in work.slots_by_agent:
                bin_ = self._open(agent_id, request)
                if bin_ is None:
                    continue
                self._coming[agent_id].append(work)
                if len(self._coming[agent_id]) >= _num_lacking(bin_):
                    taken = self._take(bin_)
                    self._forget(victims)
                    return taken
        self._forget(victims)
        return None

    def _open(self, agent_id: str, request: PendingRequest) -> Bin | None:
        return None if agent_id in request.blocklist else self._room.get(agent_id)

    def _take(self, bin_: Bin) -> tuple[Running, ...]:
        coming, agent_id = self._coming[bin_.agent.id], bin_.agent.id
        num_lacking = _num_lacking(bin_)
        self._coming[agent_id] = coming[num_lacking:]
        self._room.add(agent_id, 0, num_lacking - 1)
        return tuple(coming[:num_lacking])

    def _forget(self, victims: Iterable[Running]) -> None:
        """Removes work that is not stopped after all, because it gives nothing back."""
        ids = {work.allocation_id for work in victims}
        for agent_id, works in self._coming.items():
            self._coming[agent_id] = [work for work in works if work.allocation_id not in ids]


def _num_lacking(bin_: Bin) -> int:
    """Returns how many places have to come back until one is free."""
    return max(1, 1 - bin_.auxiliary)
