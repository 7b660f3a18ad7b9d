"""PURE: the search for work to preempt within one plan.

Owns which candidates a request has examined and when a search is given up, so that a plan stays quick in a pool that is
full of work. victim.py owns which of the candidates are stopped. The ledger calls it for a request that fits neither
into free nor into coming slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.scheduler.placement.capacity.backfill import ReservedSlots
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.promise import Promises
from services.scheduler.placement.capacity.victim import find_victims
from services.scheduler.placement.request.snapshot import PendingRequest, Running, Shape

Victims = Callable[[], Sequence[Running]]
"""The work that a request may have stopped, the first to go first. Called only when it comes to that."""

LeagueKey = tuple[Shape, bool, str]
"""A FitKey and a league: such requests may take the same slots, and each has at most the victims of the one before."""

# Cap on victims examined in one pass. Requests that hit it are examined again in the pass that the first ones cause.
MAX_VICTIMS_SEEN = 20_000


def no_victims() -> Sequence[Running]:
    return ()


class VictimSearch:
    def __init__(self, promises: Promises, reserved: ReservedSlots) -> None:
        self._promises = promises
        self._reserved = reserved
        # Requests for which all their victims together make no room. Never cleared: free slots, coming slots and
        # victims together only shrink while the plan grows, and later requests with the key have no further victims.
        self._hopeless: set[LeagueKey] = set()
        self._num_seen = 0

    def candidates(self, victims: Victims, key: LeagueKey) -> Sequence[Running]:
        """Returns the work that the request may have stopped; nothing where it is not to be examined. Without a
        reservation the request may get it, and then has to know the work."""
        if self._reserved.is_closed or (self._is_hopeless(key) and self._reserved.reservation is not None):
            return ()
        return self.unstopped(victims)

    def unstopped(self, victims: Victims) -> Sequence[Running]:
        """Returns the victims that this plan does not stop already."""
        gone = {preemption.allocation_id for preemption in self._promises.preemptions}
        return [work for work in victims() if work.allocation_id not in gone] if gone else victims()

    def preempt(self, request: PendingRequest, candidates: Sequence[Running], key: LeagueKey) -> bool:
        """Returns whether work was stopped for the request, which then has a claim."""
        if self._is_hopeless(key):
            return False
        candidates = candidates[: MAX_VICTIMS_SEEN - self._num_seen]
        room, choice = self._promises.room, None
        with self._promises.coming.shown():
            if room.free + sum(work.slots for work in candidates) >= request.slots:
                avoided = self._reserved.avoided_by(request)
                choice = find_victims(candidates, request.slots, room, lambda: find_fit(request, room, avoided))
            if choice is None:
                self._hopeless.add(key)
                self._num_seen += len(candidates)
            else:
                chosen, slots_by_agent, num_seen = choice
                self._num_seen += num_seen
                self._promises.preempt(chosen, request)
                self._promises.claim(request, slots_by_agent)
        return choice is not None

    def _is_hopeless(self, key: LeagueKey) -> bool:
        return key in self._hopeless or self._num_seen >= MAX_VICTIMS_SEEN
