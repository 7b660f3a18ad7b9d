"""PURE: the slots that are promised while the plan of one pool grows.

Owns the four answers to a request: it starts now; it claims slots that stopping work is about to give back; it has less
urgent work preempted; or it waits. The first that waits holds a reservation, which no request behind it may delay. A
request that starts meanwhile takes slots that are spare in every order of ends (spare.py), or is certain to end in
time, or starts on call. Work on call is stopped when that lets the holder start. A request that may have fewer slots
takes them before it waits; work on fewer slots grows before anything else is placed (elastic.py). A policy decides in
which order requests are considered, and which work each may have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal, NamedTuple

from services.scheduler.placement.assignment import Assignment, Preemption, Reservation
from services.scheduler.placement.auxiliary import ComingPlaces
from services.scheduler.placement.capability import Capability
from services.scheduler.placement.elastic import find_growth, growth_candidates, may_shrink, sizes_now
from services.scheduler.placement.fit import find_fit
from services.scheduler.placement.order import by_priority
from services.scheduler.placement.outlook import Outlook, freed_by, sum_of_freed
from services.scheduler.placement.queue import Cursor, PoolQueue
from services.scheduler.placement.quota import Quota
from services.scheduler.placement.room import Room, Slots
from services.scheduler.placement.snapshot import UNKNOWN_RUN_SECONDS, PendingRequest, PoolView, Running, Shape
from services.scheduler.placement.spare import Spare, find_spare
from services.scheduler.placement.victim import find_victims

Victims = Callable[[], Sequence[Running]]
"""Whom a request may have stopped, the first to go first; worked out when it comes to that."""

Cause = Literal["held", "backoff", "never", "unhealthy", "quota", "claim", "behind", "full"]

# Cap on victims examined in one pass. Requests that hit it are examined again in the pass that the first ones cause.
MAX_VICTIMS_SEEN = 20_000


def no_victims() -> Sequence[Running]:
    return ()


class Waiting(NamedTuple):
    """Holds a request that waits. is_behind: whether others of its kind (with slots, or without) may precede it."""

    request: PendingRequest
    cause: Cause
    is_behind: bool


class Ledger:
    """outlook: the state before this plan. claims: trial id -> the stopping allocations that it waits for. stoppable:
    work that the holder of the reservation may have stopped once that lets it start. waited_for: the other allocations
    that it waits for; empty if there is no stoppable work. spare: slots that do not delay the holder; without meaning
    if there is no reservation.

    shrunk: trial id -> the cause for which it starts on fewer slots. look_at: when a full size is expected that a
    request waits for instead of taking a smaller one.

    is_order_fixed: False where the order depends on running work, so that no request is sure to be first.
    """

    def __init__(self, view: PoolView, now: float, is_order_fixed: bool = True) -> None:
        self.view = view
        self._has_one_order = is_order_fixed
        self._is_order_fixed = is_order_fixed or len(view.requests) < 2
        self._has_seen = self._seen_at_first()
        self.now = now
        self.room = Room(view.agents, view.config)
        self.outlook = Outlook(self.room, view.running, now)
        self.capability = Capability(view)
        self.quota = Quota(view)
        self.assignments: list[Assignment] = []
        self.preemptions: list[Preemption] = []
        self.claims: dict[str, tuple[str, ...]] = {}
        self.reservation: Reservation | None = None
        self.stoppable: Sequence[Running] = ()
        self.waited_for: tuple[str, ...] = ()
        self._waiting: list[Waiting] = []
        self._queue: PoolQueue | None = None
        self._promised: list[Running] = []  # started or claimed in this plan, for the outlook
        self._stopping = [work for work in view.running if work.is_stopping and work.slots]
        self._coming = sum_of_freed(self._stopping, self.room)  # slots that stop and are not claimed yet
        self._places = ComingPlaces(view.running, self.room)
        self.spare = Spare({}, now)
        self._beside: list[str] = []  # agents with spare slots when the reservation was made
        self._is_closed = False  # without backfill, nothing starts behind the first that waits
        self._has_on_call = view.config.is_on_call_possible
        self._refused: set[tuple[Shape, bool]] = set()  # did not fit; never cleared, as the room only shrinks
        self._refused_claims: set[tuple[Shape, bool]] = set()  # did not fit; cleared when more slots are coming
        self._hopeless: set[tuple[Shape, bool, str]] = set()  # its victims make no room
        self._settled: dict[tuple[Shape, bool, str], Cause] = {}  # answers; cleared when more is coming
        self._behind: dict[Shape, bool] = {}
        self._victims_seen = 0
        self.shrunk: dict[str, Cause] = {}
        self.look_at: float | None = None
        self._grow()

    @property
    def waiting(self) -> list[Waiting]:
        """Returns waiting requests in the order of consideration. Requests that were passed over are answered first."""
        if self._queue is not None:
            queue, self._queue = self._queue, None
            found = {one.request.trial_id: one for one in self._waiting}
            assigned = {assignment.trial_id for assignment in self.assignments}
            self._waiting, self._has_seen = [], self._seen_at_first()
            for request in queue:
                known = found.get(request.trial_id)
                if known is not None:
                    self._waiting.append(known._replace(is_behind=self._count(request, known.cause)))
                elif request.trial_id in assigned:
                    self._count(request, None)
                else:
                    self.consider(request)
        return self._waiting

    def consider_queue(self, queue: PoolQueue, victims_for: Callable[[PendingRequest], Victims]) -> None:
        """Considers a pool's whole queue, the last step of its plan. Once a request of a kind is refused, the rest of
        its kind would be too; they are passed over and answered on demand."""
        self._queue = queue
        open_ = [Cursor(requests) for requests in queue.by_kind.values()]
        heapify(open_)
        refused: list[Cursor] = []
        situation = self._situation
        while open_:
            cursor = open_[0]
            place = cursor.place
            self.consider(cursor.head, victims_for(cursor.head))
            is_refused = all(map(self._is_refused, cursor.ends))
            if is_refused:
                refused.append(cursor)
            if is_refused or not cursor.advance():
                heappop(open_)
            else:
                heapreplace(open_, cursor)
            if self._situation != situation:
                # Requests behind this place must be considered again.
                situation = self._situation
                for cursor in refused:
                    if cursor.skip_to(place):
                        heappush(open_, cursor)
                refused = []

    @property
    def _situation(self) -> tuple[int, bool]:
        """Returns what answers depend on besides the room, which only shrinks: preemptions leave more room than they
        need, and a reservation takes some away."""
        return len(self.preemptions), self.reservation is None

    def _is_refused(self, request: PendingRequest) -> bool:
        """Returns whether considering it would change nothing."""
        if request.hold is not None:
            return True
        if may_shrink(request, self.now):
            # Each request of this kind may still start on fewer slots.
            return False
        if self.capability.of(request) != "fits":
            return True
        return (request.shape, self._may_take_all(request), "") in self._settled

    def consider(self, request: PendingRequest, victims: Victims = no_victims, league: str = "") -> bool:
        """Returns whether the request starts or has slots promised. Otherwise it joins those that wait.

        victims: within one shape and league, each request has at most the victims of the one before.
        """
        cause = self._obstacle(request)
        is_behind = self._count(request, cause)
        if cause is None:
            kind = self._league(request, league)
            cause = self._settled.get(kind)
            if cause is None:
                slots_by_agent = self._find_now(request)
                if slots_by_agent is not None:
                    self._start(request, slots_by_agent)
                    return True
                cause = self._secure(request, victims, league)
                if request.trial_id in self.shrunk:
                    return True
                if cause != "claim":
                    self._settled[kind] = cause
            elif self._start_smaller(request, cause):
                return True
        elif cause in ("unhealthy", "never") and self._start_smaller(request, cause):
            return True
        self._waiting.append(Waiting(request, cause, is_behind))
        return cause == "claim"

    def _start_smaller(self, request: PendingRequest, cause: Cause) -> bool:
        """Returns whether the request starts on fewer slots: the largest allowed size that fits now. It takes no slots
        that are kept for a request ahead of it, and preempts no work."""
        if not may_shrink(request, self.now) or request.not_before_at > self.now:
            return False
        opening = self.outlook.opening(request)
        opening_at = None if opening is None else opening.at
        if opening_at is not None and self.reservation is not None:
            # The outlook does not know that free slots are kept for the reservation.
            opening_at = max(opening_at, self.reservation.at)
        for size in sizes_now(request, self.now, opening_at):
            smaller = replace(request, slots=size, smaller_sizes=())
            found = self._find_now(smaller) if self.quota.allows(smaller) else None
            if found is not None:
                self._start(smaller, found)
                self.shrunk[request.trial_id] = cause
                return True
        if opening_at is not None:
            self.look_at = opening_at if self.look_at is None else min(self.look_at, opening_at)
        return False

    def _grow(self) -> None:
        """Promises the slots of the full size to work on fewer slots, or keeps them while it stops. It runs first,
        because a request with more right keeps it from growing at all."""
        for work, wanted in growth_candidates(self.view.running, self.now):
            extra = wanted.slots - work.slots
            if self.quota.used[work.group] + extra > self.quota.cap_of(work.group):
                continue
            if any(self._has_more_right(request, wanted) for request in self.view.requests):
                continue
            grown = find_growth(work, wanted, self.room)
            if grown is None:
                continue
            fit, left = grown
            if work.is_growing:
                for agent_id in freed_by(work).keys() & self._coming.keys():
                    self._coming[agent_id] -= freed_by(work)[agent_id]
            else:
                self.preemptions.append(Preemption(work.allocation_id, work.trial_id, is_growth=True))
                self._stopping.append(work)
            for agent_id, slots in left.items():
                self._coming[agent_id] = self._coming.get(agent_id, 0) + slots
            self._coming = {agent_id: slots for agent_id, slots in self._coming.items() if slots > 0}
            self.quota.used[work.group] += extra
            end_at = self.now + (wanted.estimated_seconds or UNKNOWN_RUN_SECONDS)
            self._promised.append(_as_running(work.trial_id, wanted, fit, end_at))

    def _has_more_right(self, request: PendingRequest, wanted: PendingRequest) -> bool:
        """Returns whether this request waits for slots that smaller work would need to grow. Without one order of the
        queue every request counts, because its turn depends on the others."""
        if not request.slots or request.hold is not None or self.capability.of(request) != "fits":
            return False
        if self._has_one_order and by_priority(request) > by_priority(wanted):
            return False
        return request.not_before_at > self.now or self.quota.allows(request)

    def _seen_at_first(self) -> dict[bool, bool]:
        """Returns whether a request with slots, or without, may come before the first."""
        return {False: not self._is_order_fixed, True: not self._is_order_fixed}

    def _count(self, request: PendingRequest, cause: Cause | None) -> bool:
        """Returns whether a request of its kind goes before it and might take what a change would give to it."""
        kind = request.slots > 0
        is_behind = self._has_seen[kind]
        if not is_behind and cause not in ("held", "backoff"):
            self._has_seen[kind] = True
        return is_behind

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

    def _find_now(self, request: PendingRequest) -> Slots | None:
        if request.slots == 0:
            return find_fit(request, self.room)
        if self._is_closed:
            return None
        may_take_all = self._may_take_all(request)
        if not self._refused.isdisjoint(((request.shape, may_take_all), (request.bare_shape, may_take_all))):
            return None
        found = self._search(request, may_take_all)
        if found is None:
            # The room only shrinks while the plan grows: a request that does not fit now does not fit later.
            self._refused.add((request.shape, may_take_all))
            if request.blocklist and self._search(request.without_blocklist(), may_take_all) is None:
                # Agents to avoid only take room away, so one answer holds for all requests of this size.
                self._refused.add((request.bare_shape, may_take_all))
        return found

    def _search(self, request: PendingRequest, may_take_all: bool) -> Slots | None:
        found = None
        if not self._is_short(request):
            found = find_fit(request, self.room, self.spare.slots_by_agent) or self._beside_reservation(request)
            if found is None and may_take_all and self.reservation is not None:
                # Work that must stop for the holder sooner or later should rather not run in its place.
                found = find_fit(request, self.room, self.reservation.slots_by_agent)
        if found is None and may_take_all:
            found = find_fit(request, self.room)
        return found

    def _may_take_all(self, request: PendingRequest) -> bool:
        """Returns whether the request may take the slots of the reservation too."""
        return self._is_short(request) or self._is_on_call(request)

    def _is_on_call(self, request: PendingRequest) -> bool:
        """Returns whether it starts on call, even if it seems short: it may exceed its estimate."""
        return self.reservation is not None and self._has_on_call and request.is_preemptible

    def _is_short(self, request: PendingRequest) -> bool:
        """Returns whether it may use the holder's slots: it is certain to be over before the holder can start."""
        if self.reservation is None:
            return True
        return request.is_bounded and 0 < request.estimated_seconds <= self.spare.sure_until - self.now

    def _kept_from(self, request: PendingRequest) -> Collection[str]:
        """Returns agents of which the request may take spare slots only."""
        return () if self._may_take_all(request) else self.spare.slots_by_agent

    def _beside_reservation(self, request: PendingRequest) -> Slots | None:
        """Finds an agent that has enough spare slots."""
        for agent_id in self._beside:
            bin_, spare = self.room.get(agent_id), self.spare.slots_by_agent[agent_id]
            if bin_ is not None and min(spare, bin_.free) >= request.slots and agent_id not in request.blocklist:
                return {agent_id: request.slots}
        return None

    def _start(self, request: PendingRequest, slots_by_agent: Slots) -> None:
        is_on_call = request.slots > 0 and self._is_on_call(request)
        if not is_on_call and not self._is_short(request):
            spare = self.spare.slots_by_agent
            for agent_id in spare.keys() & slots_by_agent.keys():
                spare[agent_id] -= slots_by_agent[agent_id]
        self.room.take(slots_by_agent)
        self.assignments.append(Assignment(request.trial_id, slots_by_agent, is_on_call))
        self._promise(request, slots_by_agent)

    def _promise(self, request: PendingRequest, slots_by_agent: Slots) -> None:
        self.quota.promise(request)
        if request.slots:
            end_at = self.now + (request.estimated_seconds or UNKNOWN_RUN_SECONDS)
            self._promised.append(_as_running(request.trial_id, request, slots_by_agent, end_at))

    def _secure(self, request: PendingRequest, victims: Victims, league: str) -> Cause:
        """Finds another answer for a request that cannot start now."""
        if request.slots == 0:
            return self._secure_place(request, victims)
        if not self._is_closed and self._claim(request):
            return "claim"
        stoppable = self._stoppable_for(request, victims, league)
        if stoppable and self._preempt(request, stoppable, league):
            return "claim"
        is_behind = self._is_closed or (self.reservation is not None and self._fits_without_reservation(request))
        if self._start_smaller(request, "behind" if is_behind else "full"):
            return "full"
        if self.reservation is None:
            self._reserve(request, stoppable)
        if not self.view.config.backfill:
            self._is_closed = True
        return "behind" if is_behind else "full"

    def _secure_place(self, request: PendingRequest, victims: Victims) -> Cause:
        found = self._places.claim(request) or self._places.make_room(request, self._unstopped(victims()))
        if found is None:
            return "full"
        stopped = (work for work in found if not work.is_stopping)
        self.preemptions += [Preemption(work.allocation_id, request.trial_id) for work in stopped]
        self.claims[request.trial_id] = tuple(work.allocation_id for work in found)
        return "claim"

    def _claim(self, request: PendingRequest) -> bool:
        """Claims slots of stopping work that no more urgent request waits for."""
        shape = request.shape, self._may_take_all(request)
        if not self._coming or shape in self._refused_claims:
            return False
        for agent_id, slots in self._coming.items():
            self.room.add(agent_id, slots)
        found = find_fit(request, self.room, self._kept_from(request))
        if found is None:
            self._refused_claims.add(shape)
        else:
            self._take_claim(request, found)
        self._hide_coming()
        return found is not None

    def _stoppable_for(self, request: PendingRequest, victims: Victims, league: str) -> Sequence[Running]:
        """Returns the work that the request may have stopped; nothing where it is not to be examined."""
        is_hopeless = self._league(request, league) in self._hopeless or self._victims_seen >= MAX_VICTIMS_SEEN
        if self._is_closed or (is_hopeless and self.reservation is not None):
            return ()
        return self._unstopped(victims())

    def _unstopped(self, victims: Sequence[Running]) -> Sequence[Running]:
        if not self.preemptions:
            return victims
        gone = {preemption.allocation_id for preemption in self.preemptions}
        return [work for work in victims if work.allocation_id not in gone]

    def _league(self, request: PendingRequest, league: str) -> tuple[Shape, bool, str]:
        """Returns the key of requests that examine the same agents, each with at most the victims of the one before."""
        return request.shape, self._may_take_all(request), league

    def _preempt(self, request: PendingRequest, stoppable: Sequence[Running], league: str) -> bool:
        shape = self._league(request, league)
        if shape in self._hopeless or self._victims_seen >= MAX_VICTIMS_SEEN:
            return False
        candidates = stoppable[: MAX_VICTIMS_SEEN - self._victims_seen]
        for agent_id, slots in self._coming.items():
            self.room.add(agent_id, slots)
        found = None
        if self.room.free + sum(work.slots for work in candidates) >= request.slots:
            found = find_victims(
                candidates, request.slots, self.room, lambda: find_fit(request, self.room, self._kept_from(request))
            )
        if found is None:
            self._hopeless.add(shape)
            self._victims_seen += len(candidates)
        else:
            chosen, slots_by_agent, num_seen = found
            self._victims_seen += num_seen
            self._release(chosen, request)
            self._take_claim(request, slots_by_agent)
        self._hide_coming()
        return found is not None

    def _release(self, victims: Sequence[Running], request: PendingRequest) -> None:
        for work in victims:
            self.preemptions.append(Preemption(work.allocation_id, request.trial_id))
            self._stopping.append(work)
        for agent_id, slots in sum_of_freed(victims, self.room).items():
            self._coming[agent_id] = self._coming.get(agent_id, 0) + slots
        # More is coming than they may need: others may fit into the rest.
        self._refused_claims.clear()
        self._settled.clear()

    def _take_claim(self, request: PendingRequest, slots_by_agent: Slots) -> None:
        self.room.take(slots_by_agent)
        blocking = [work for work in self._stopping if not slots_by_agent.keys().isdisjoint(work.slots_by_agent)]
        self.claims[request.trial_id] = tuple(work.allocation_id for work in blocking)
        self._promise(request, slots_by_agent)

    def _hide_coming(self) -> None:
        """Takes slots that are not free yet out of the room again. Claimed slots no longer count as coming."""
        for agent_id, slots in tuple(self._coming.items()):
            bin_ = self.room.get(agent_id)
            left = min(slots, bin_.free) if bin_ is not None else 0
            self.room.add(agent_id, -left)
            if left:
                self._coming[agent_id] = left
            else:
                del self._coming[agent_id]

    def _reserve(self, request: PendingRequest, stoppable: Sequence[Running]) -> None:
        outlook = self._present_outlook(stoppable)
        opening = outlook.opening(request)
        if opening is None:
            return
        if stoppable:
            others = {work.allocation_id for work in self.view.running}.difference(w.allocation_id for w in stoppable)
            self.waited_for = tuple(work.allocation_id for work in opening.after if work.allocation_id in others)
        self.stoppable = stoppable
        self.reservation = Reservation(request.trial_id, opening.at, opening.slots_by_agent)
        self.spare = find_spare(request, self.room, outlook, self.now, opening.at)
        self._beside = sorted(agent_id for agent_id, slots in self.spare.slots_by_agent.items() if slots > 0)

    def _present_outlook(self, stoppable: Sequence[Running]) -> Outlook:
        """Returns the outlook with what this plan has promised. stoppable: stops once that lets the request start, so
        the request waits for the other work alone."""
        if not self._promised and not self._stopping and not stoppable:
            return self.outlook
        gone = {work.allocation_id for work in self._stopping}
        able = {work.allocation_id for work in stoppable}
        ends = self.outlook.ends
        if gone or able:
            ends = [
                (self.now if work.allocation_id in able else end, work)
                for end, work in ends
                if work.allocation_id not in gone
            ]
        coming = [_as_coming(agent_id, slots, self.now) for agent_id, slots in self._coming.items()]
        return Outlook(self.room, [*self._promised, *coming], self.now, ends)

    def _fits_without_reservation(self, request: PendingRequest) -> bool:
        shape = request.shape
        if shape not in self._behind:
            self._behind[shape] = find_fit(request, self.room) is not None
        return self._behind[shape]


def _as_running(name: str, request: PendingRequest, slots_by_agent: Slots, end_at: float) -> Running:
    return Running(
        name,
        name,
        request.group,
        request.pool,
        slots_by_agent,
        estimated_end_at=end_at,
        is_bounded=request.is_bounded and request.estimated_seconds > 0,
    )


def _as_coming(agent_id: str, slots: int, now: float) -> Running:
    return Running(agent_id, "", "", "", {agent_id: slots}, started_at=now, is_stopping=True)
