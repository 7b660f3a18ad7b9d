"""PURE: the slots that are reserved for the first request that waits, and which free slots other requests may take.

A request that passes the holder of the reservation takes slots on agents where the holder cannot start, or spare slots
(spare.py). It may take reserved slots too if it is certain to end before the holder can start, or if it starts on call:
then it is preempted as soon as that lets the holder start. The ledger of one plan asks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.outlook import Opening
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.capacity.spare import SpareSlots
from services.scheduler.placement.request.assignment import Reservation
from services.scheduler.placement.request.snapshot import PendingRequest, PoolView, Running, Shape

FitKey = tuple[Shape, bool]
"""The shape of a request, and whether it may take reserved slots. Requests with one key may take the same slots."""


class ReservedSlots:
    """reservation: None until a request reserves. stoppable: work that its holder may have stopped once that lets it
    start. waited_for: the other allocations that the holder waits for; empty if there is no stoppable work. spare:
    slots that do not delay the holder; without meaning if there is no reservation.

    is_closed: without backfill, no request with slots starts or claims anything behind the first that waits.
    """

    def __init__(self, view: PoolView, now: float, room: Room) -> None:
        self._view = view
        self._now = now
        self._room = room
        self.reservation: Reservation | None = None
        self.stoppable: Sequence[Running] = ()
        self.waited_for: tuple[str, ...] = ()
        self.spare = SpareSlots({}, now)
        self.is_closed = False
        self._has_on_call = view.config.is_on_call_possible
        # Agents with spare slots when the reservation was made, by id. Spare slots only become fewer.
        self._beside: list[str] = []
        # Requests that do not fit into the free slots that they may take. Never cleared: the room only shrinks while
        # the plan grows, and a reservation takes slots away under a key of its own.
        self._refused: set[FitKey] = set()

    def is_holder(self, request: PendingRequest) -> bool:
        return self.reservation is not None and self.reservation.trial_id == request.trial_id

    def key_of(self, request: PendingRequest) -> FitKey:
        return request.shape, self.may_take_all(request)

    def may_take_all(self, request: PendingRequest) -> bool:
        """Returns whether the request may take the slots of the reservation too."""
        return self._is_short(request) or self.is_on_call(request)

    def is_on_call(self, request: PendingRequest) -> bool:
        """Returns whether it starts on call, even if it seems short: it may exceed its estimate."""
        return self.reservation is not None and self._has_on_call and request.is_preemptible

    def avoided_by(self, request: PendingRequest) -> Collection[str]:
        """Returns agents of which the request may take spare slots only."""
        return () if self.may_take_all(request) else self.spare.slots_by_agent

    def find(self, request: PendingRequest) -> Slots | None:
        """Returns free slots that the request may take now; None when it does not fit. The module's docstring has the
        rule."""
        if self.is_closed:
            return None
        may_take_all = self.may_take_all(request)
        if not self._refused.isdisjoint(((request.shape, may_take_all), (request.bare_shape, may_take_all))):
            return None
        fit = self._search(request, may_take_all)
        if fit is None:
            self._refused.add((request.shape, may_take_all))
            if request.blocklist and self._search(request.without_blocklist(), may_take_all) is None:
                # Agents to avoid only take room away, so one answer holds for all requests of this size.
                self._refused.add((request.bare_shape, may_take_all))
        return fit

    def use(self, request: PendingRequest, slots_by_agent: Slots) -> None:
        """Records that the request starts on these slots: fewer are spare then, unless it is over before the holder
        starts, or preempted for it."""
        if not self.may_take_all(request):
            spare = self.spare.slots_by_agent
            for agent_id in spare.keys() & slots_by_agent.keys():
                spare[agent_id] -= slots_by_agent[agent_id]

    def reserve(
        self, holder: PendingRequest, opening: Opening, spare: SpareSlots, stoppable: Sequence[Running]
    ) -> None:
        """Makes the reservation. opening: when and where the holder is expected to start."""
        if stoppable:
            others = {work.allocation_id for work in self._view.running}.difference(w.allocation_id for w in stoppable)
            self.waited_for = tuple(work.allocation_id for work in opening.after if work.allocation_id in others)
        self.stoppable = stoppable
        self.reservation = Reservation(holder.trial_id, opening.at, opening.slots_by_agent)
        self.spare = spare
        self._beside = sorted(agent_id for agent_id, slots in spare.slots_by_agent.items() if slots > 0)

    def _is_short(self, request: PendingRequest) -> bool:
        """Returns whether the holder's slots are no obstacle: none are reserved, or the request is certain to be over
        before the holder can start."""
        if self.reservation is None:
            return True
        return request.is_bounded and 0 < request.estimated_seconds <= self.spare.sure_until - self._now

    def _search(self, request: PendingRequest, may_take_all: bool) -> Slots | None:
        fit = None
        if not self._is_short(request):
            fit = find_fit(request, self._room, self.spare.slots_by_agent) or self._find_spare(request)
            if fit is None and may_take_all and self.reservation is not None:
                # Work that must stop for the holder sooner or later should rather not run in its place.
                fit = find_fit(request, self._room, self.reservation.slots_by_agent)
        if fit is None and may_take_all:
            fit = find_fit(request, self._room)
        return fit

    def _find_spare(self, request: PendingRequest) -> Slots | None:
        """Finds an agent that has enough spare slots."""
        for agent_id in self._beside:
            bin_, spare = self._room.get(agent_id), self.spare.slots_by_agent[agent_id]
            if bin_ is not None and min(spare, bin_.free) >= request.slots and agent_id not in request.blocklist:
                return {agent_id: request.slots}
        return None
