"""PURE: the answers to the requests of one pool while its plan grows.

Owns the four answers to a request: it starts now; it claims slots that stopping work is about to give back; it has less
urgent work preempted; or it waits. The first that waits holds a reservation, which no request behind it may delay. A
policy decides in which order requests are considered, and which work each may have stopped.

The ledger is the one door of the policies. Its parts: promise.py (what the plan has given away), backfill.py (the
reservation, and who may pass it), preemption.py (the search for victims), coming.py and auxiliary.py (slots and places
of stopping work) and elastic.py (smaller sizes, and growth before anything else is placed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace

from services.scheduler.placement.capacity.auxiliary import ComingPlaces
from services.scheduler.placement.capacity.backfill import ReservedSlots
from services.scheduler.placement.capacity.capability import Capability
from services.scheduler.placement.capacity.elastic import may_shrink, promise_growth, sizes_now
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.preemption import LeagueKey, Victims, VictimSearch, no_victims
from services.scheduler.placement.capacity.promise import Cause, Promises, Waiting, in_turn
from services.scheduler.placement.capacity.spare import find_spare
from services.scheduler.placement.request.queue import Cursor, PoolQueue
from services.scheduler.placement.request.snapshot import PendingRequest, PoolView, Running, Shape


class Ledger:
    """promises: what is given away so far, and the room that is left. reserved: the reservation. shrunk: trial id ->
    the cause for which it starts on fewer slots. look_at: when a full size is expected that a request waits for instead
    of taking a smaller one.

    is_order_fixed: False where the order depends on running work, so that no request is sure to be first.
    """

    def __init__(self, view: PoolView, now: float, is_order_fixed: bool = True) -> None:
        self.view = view
        self.now = now
        self.capability = Capability(view)
        self.promises = Promises(view, now)
        self.room, self.quota = self.promises.room, self.promises.quota
        self.reserved = ReservedSlots(view, now, self.room)
        self.shrunk: dict[str, Cause] = {}
        self.look_at: float | None = None
        self._victims = VictimSearch(self.promises, self.reserved)
        self._places = ComingPlaces(view.running, self.room)
        self._is_order_fixed = is_order_fixed or len(view.requests) < 2
        # trial id -> why the request waits, None if it starts; in the order of consideration.
        self._causes: dict[str, Cause | None] = {}
        self._queue: PoolQueue | None = None
        # Why requests with this key wait. Room, spare slots and the victims of a key only shrink while the plan grows,
        # so later ones wait as well. Cleared by a preemption, which may leave more slots to claim than it needs.
        self._settled: dict[LeagueKey, Cause] = {}
        # Whether requests of a shape fit into the room that the plan leaves. Valid once the plan is made, and read only
        # then: until then the room shrinks.
        self._fits_at_last: dict[Shape, bool] = {}
        promise_growth(view, now, self.promises, self.capability, is_order_fixed)

    def waiting(self) -> list[Waiting]:
        """Returns the waiting requests in the order of consideration, once the plan is made. Requests that
        `consider_queue` passed over are answered first; the plan stays as it is."""
        decided = self._decided
        for request in self._queue or ():
            if request.trial_id not in self._causes:
                self.consider(request)
        assert self._decided == decided, "a request that was passed over has changed the plan"
        order: Sequence[PendingRequest] | None = self._queue
        if order is None:
            request_by_id = {request.trial_id: request for request in self.view.requests}
            order = [request_by_id[trial_id] for trial_id in self._causes]
        return in_turn(((request, self._cause_at_last(request)) for request in order), self._is_order_fixed)

    def consider_queue(self, queue: PoolQueue, victims_for: Callable[[PendingRequest], Victims]) -> None:
        """Considers a pool's whole queue, the last step of its plan. Once a request of a kind is refused, the rest of
        its kind would be too; they are passed over and answered on demand."""
        self._queue = queue
        # Places are unique, so cursors are never compared.
        open_ = [(cursor.place, cursor) for cursor in map(Cursor, queue.by_kind.values())]
        heapify(open_)
        refused: list[Cursor] = []
        situation = self._situation
        while open_:
            place, cursor = open_[0]
            # A kind may be refused by what other kinds have met. Asking that first is cheap for many kinds of few
            # requests, which limits make; for the later requests of a kind it would be asked twice.
            is_refused = cursor.is_fresh and all(map(self._is_refused, cursor.ends))
            if not is_refused:
                self.consider(cursor.head, victims_for(cursor.head))
                is_refused = all(map(self._is_refused, cursor.ends))
            if is_refused:
                refused.append(cursor)
            if is_refused or not cursor.advance():
                heappop(open_)
            else:
                heapreplace(open_, (cursor.place, cursor))
            if self._situation != situation:
                # Requests behind this place must be considered again.
                situation = self._situation
                for cursor in refused:
                    if cursor.skip_to(place):
                        heappush(open_, (cursor.place, cursor))
                refused = []

    def consider(self, request: PendingRequest, victims: Victims = no_victims, league: str = "") -> bool:
        """Returns whether the request starts or has slots promised. Otherwise it joins those that wait.

        victims: within one shape and league, each request has at most the victims of the one before.
        """
        cause = self._answer(request, victims, league)
        self._causes[request.trial_id] = cause
        return cause is None or cause == "claim"

    def _answer(self, request: PendingRequest, victims: Victims, league: str) -> Cause | None:
        """Returns why the request waits; None if it starts."""
        cause = self._obstacle(request)
        if cause is None:
            cause = self._settled_cause(request, league)
            if cause is None:
                return self._decide(request, victims, (*self.reserved.key_of(request), league))
        elif cause not in ("unhealthy", "never"):
            return cause
        return None if self._start_smaller(request, cause) else cause

    def _obstacle(self, request: PendingRequest) -> Cause | None:
        """Returns the cause that keeps the request from starting whatever room there is; None if there is none."""
        if request.hold is not None:
            return "held"
        verdict = self.capability.of(request)
        if verdict != "fits":
            return verdict
        if request.not_before_at > self.now:
            return "backoff"
        return None if self.quota.allows(request) else "quota"

    def _settled_cause(self, request: PendingRequest, league: str) -> Cause | None:
        """Returns why the request waits, if that follows from an earlier request: one of the same shape, or one of the
        same size that avoids no agent. Agents to avoid only take away room, coming slots and victims."""
        may_take_all = self.reserved.may_take_all(request)
        cause = self._settled.get((request.shape, may_take_all, league))
        if cause is not None or not request.blocklist:
            return cause
        cause = self._settled.get((request.bare_shape, may_take_all, league))
        return "behind" if cause == "full" and request.slots and self.reserved.is_closed else cause

    def _decide(self, request: PendingRequest, victims: Victims, key: LeagueKey) -> Cause | None:
        """Tries the answers one after the other. Returns why the request waits; None if it starts."""
        if self._start(request):
            return None
        cause = self._secure(request, victims, key) if request.slots else self._secure_place(request, victims)
        if cause is not None and cause != "claim":
            self._settled[key] = cause
        return cause

    def _start(self, request: PendingRequest) -> bool:
        """Returns whether the request starts on free slots, or on a free auxiliary place."""
        slots_by_agent = self.reserved.find(request) if request.slots else find_fit(request, self.room)
        if slots_by_agent is None:
            return False
        self.reserved.use(request, slots_by_agent)
        self.promises.start(request, slots_by_agent, is_on_call=request.slots > 0 and self.reserved.is_on_call(request))
        return True

    def _secure(self, request: PendingRequest, victims: Victims, key: LeagueKey) -> Cause | None:
        """Finds another answer for a request with slots that cannot start on its full size now."""
        if self._claim(request):
            return "claim"
        candidates = self._victims.candidates(victims, key)
        if candidates and self._victims.preempt(request, candidates, key):
            self._settled.clear()
            return "claim"
        cause: Cause = "behind" if self.reserved.is_closed else "full"
        if self._start_smaller(request, cause):
            return None
        if self.reserved.reservation is None:
            self._reserve(request, candidates)
        if not self.view.config.backfill:
            self.reserved.is_closed = True
        return cause

    def _secure_place(self, request: PendingRequest, victims: Victims) -> Cause:
        """Claims an auxiliary place that stopping work gives back, or has work stopped for one."""
        works = self._places.claim(request) or self._places.make_room(request, self._victims.unstopped(victims))
        if works is None:
            return "full"
        self.promises.claim_place(request, works)
        return "claim"

    def _claim(self, request: PendingRequest) -> bool:
        """Claims slots of stopping work that no more urgent request waits for."""
        key, coming = self.reserved.key_of(request), self.promises.coming
        if self.reserved.is_closed or coming.is_refused(key):
            return False
        with coming.shown():
            fit = find_fit(request, self.room, self.reserved.avoided_by(request))
            if fit is not None:
                self.promises.claim(request, fit)
        if fit is None:
            coming.refuse(key)
        return fit is not None

    def _start_smaller(self, request: PendingRequest, cause: Cause) -> bool:
        """Returns whether the request starts on fewer slots: the largest allowed size that fits now. It takes no slots
        that are kept for a request ahead of it, and preempts no work."""
        if not may_shrink(request, self.now) or request.not_before_at > self.now:
            return False
        opening = self.promises.outlook.opening(request)
        opening_at = None if opening is None else opening.at
        if opening_at is not None and self.reserved.reservation is not None:
            # The outlook does not know that free slots are kept for the reservation.
            opening_at = max(opening_at, self.reserved.reservation.at)
        for size in sizes_now(request, self.now, opening_at):
            smaller = replace(request, slots=size, smaller_sizes=())
            if self.quota.allows(smaller) and self._start(smaller):
                self.shrunk[request.trial_id] = cause
                return True
        if opening_at is not None:
            self.look_at = opening_at if self.look_at is None else min(self.look_at, opening_at)
        return False

    def _reserve(self, request: PendingRequest, stoppable: Sequence[Running]) -> None:
        outlook = self.promises.outlook_now(stoppable)
        opening = outlook.opening(request)
        if opening is not None:
            spare = find_spare(request, self.room, outlook, self.now, opening.at)
            self.reserved.reserve(request, opening, spare, stoppable)

    def _cause_at_last(self, request: PendingRequest) -> Cause | None:
        """Returns why the request waits once the plan is made; None if it starts. A request that fits into the room
        that is left waits for the reservation alone."""
        cause = self._causes[request.trial_id]
        if cause != "full" or not request.slots or self.reserved.reservation is None:
            return cause
        if request.shape not in self._fits_at_last:
            self._fits_at_last[request.shape] = find_fit(request, self.room) is not None
        return "behind" if self._fits_at_last[request.shape] else "full"

    @property
    def _situation(self) -> tuple[int, bool]:
        """Returns what answers depend on besides the room, which only shrinks: preemptions leave more room than they
        need, and a reservation takes some away."""
        return len(self.promises.preemptions), self.reserved.reservation is None

    @property
    def _decided(self) -> tuple[object, ...]:
        """Returns what no longer changes once a policy has considered its requests."""
        promises = self.promises
        return len(promises.assignments), len(promises.preemptions), len(promises.claims), self.reserved.reservation

    def _is_refused(self, request: PendingRequest) -> bool:
        """Returns whether considering it would change nothing."""
        if request.hold is not None:
            return True
        if may_shrink(request, self.now):
            # Each request of this kind may still start on fewer slots.
            return False
        if request.slots and self.quota.breached(request.limits, request.slots) is not None:
            # All requests of this kind count for the same limits, with as many slots.
            return True
        return self._settled_cause(request, "") is not None or self.capability.of(request) != "fits"
