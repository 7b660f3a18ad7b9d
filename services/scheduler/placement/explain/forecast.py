"""PURE: when each waiting request can be expected to start.

Plays the queue forward on the sum of the pool's slots. Running work ends by its estimates. Waiting requests start in
the order of the plan, wherever requests ahead of them leave room, and end in turn. Before the time of the reservation,
its kept slots go only to work that is certain to be over or starts on call. The forecast assigns no agents, so its cost
does not grow with their number. Where a request cannot start before certain agents are free, the outlook sets the
bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from math import log2

from services.scheduler.placement.capacity.free_slots import FreeSlots
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.outlook import LEAST_LEFT_SECONDS, Opening, freed_by
from services.scheduler.placement.capacity.promise import Waiting
from services.scheduler.placement.request.snapshot import UNKNOWN_RUN_SECONDS, PendingRequest, Running

# A step beyond every profile.
_NEVER = 1 << 30
_Key = str | tuple[str]
# Causes that time alone does not remove, so that there is no ETA.
_CERTAIN = ("never", "unhealthy", "held")


class Forecast:
    """Forecasts starts. Call it in the order of the plan: each answer occupies slots for the requests after it."""

    def __init__(self, ledger: Ledger, opening: Callable[[PendingRequest], Opening | None]) -> None:
        self._ledger = ledger
        self._reserved = ledger.reserved
        self._opening = opening
        self._requests = {request.trial_id: request for request in ledger.view.requests}
        ends = [(end, work.slots) for end, work in ledger.promises.outlook.ends if work.slots]
        for assignment in ledger.promises.assignments:
            request = self._requests[assignment.trial_id]
            if request.slots:
                ends.append((ledger.now + self._run_seconds(request), sum(assignment.slots_by_agent.values())))
        self._profile = FreeSlots(ledger.now, ledger.room.free, ends)
        self._lent_until = ledger.now
        if self._reserved.reservation is not None and ledger.view.config.is_on_call_possible:
            self._lent_until = self._reserved.reservation.at
            self._profile.lend(self._profile.step_at(self._lent_until))
        else:
            self._profile.keep(self._kept_slots())
        # Where the search for this kind of request resumes. Room is only taken, so earlier steps stay too full.
        self._looked_until: dict[tuple[int, bool, int, int], int] = {}
        self._caps = _Caps(ledger, self._run_seconds)

    def eta(self, waiting: Waiting) -> float | None:
        """Returns the expected start; None when only a change can start the request."""
        request = waiting.request
        if waiting.cause in _CERTAIN:
            return None
        allowed_at = self._caps.allowed_at(request)
        bound = self._bound(waiting)
        if bound is None or allowed_at is None:
            return None
        at: float | None = max(bound, allowed_at, request.not_before_at)
        if request.slots:
            at = self._queued(waiting, max(bound, allowed_at, request.not_before_at))
        if at is not None:
            self._caps.promise(request, at + self._run_seconds(request))
        return at

    def _bound(self, waiting: Waiting) -> float | None:
        """Returns the time before which the request cannot start, even if no other request waited; None for never."""
        if waiting.cause == "claim":
            return self._ledger.now + LEAST_LEFT_SECONDS
        reservation = self._reserved.reservation
        if reservation is not None and self._reserved.is_holder(waiting.request) and self._reserved.stoppable:
            return reservation.at
        opening = self._opening(waiting.request)
        return None if opening is None else opening.at

    def _queued(self, waiting: Waiting, bound: float) -> float | None:
        """Returns the first time from the bound on at which the request finds room, and takes that room."""
        request, reservation = waiting.request, self._reserved.reservation
        if waiting.cause == "claim":
            step, at = self._profile.step_at(bound), bound
        elif reservation is not None and self._reserved.is_holder(request):
            at = max(bound, reservation.at)
            step = self._profile.step_at(at)
        else:
            free_step = self._find(request, bound)
            if free_step is None:
                return None
            step, at = free_step, self._profile.start_in(free_step, bound, request.slots)
        end_at = at + self._run_seconds(request)
        if at < self._lent_until:
            # The holder of the reservation has it stopped then.
            end_at = min(end_at, self._lent_until)
        self._profile.take(step, end_at, request.slots)
        return at

    def _find(self, request: PendingRequest, bound: float) -> int | None:
        """Returns the first step with room for the request's whole run.

        The search resumes where the last one with the same key ended: a later request for as many slots, with the same
        bound, finds no earlier step. Run times share a key up to a factor of two, which is accurate enough.
        """
        run_seconds = self._run_seconds(request)
        is_sure = request.is_bounded and request.estimated_seconds > 0 and bool(self._ledger.view.config.backfill)
        first = self._profile.step_at(bound)
        key = request.slots, is_sure, int(log2(max(1.0, run_seconds))), first
        free_step = self._profile.find(request.slots, run_seconds, is_sure, self._looked_until.get(key, first))
        self._looked_until[key] = _NEVER if free_step is None else free_step
        return free_step

    def _run_seconds(self, request: PendingRequest) -> float:
        return request.estimated_seconds or self._ledger.view.typical_run_seconds or UNKNOWN_RUN_SECONDS

    def _kept_slots(self) -> list[int]:
        """Returns, for each step before the reservation's time, how many free slots are kept for it. On the agents
        where its holder may start, these are all slots that are not spare; without backfill, all slots of the pool."""
        reservation = self._reserved.reservation
        if reservation is None:
            return []
        num_steps = self._profile.step_at(reservation.at)
        if not self._ledger.view.config.backfill:
            return self._profile.free[:num_steps]
        spare = self._reserved.spare.slots_by_agent
        freed: dict[str, list[int]] = {agent: [0] * (num_steps + 1) for agent in spare}
        for agent, steps in freed.items():
            bin_ = self._ledger.room.get(agent)
            steps[0] = bin_.free if bin_ is not None else 0
        for end, work in self._ledger.promises.outlook.ends:
            if end > reservation.at:
                break
            for agent, slots in freed_by(work).items():
                if agent in freed:
                    freed[agent][min(num_steps, self._profile.step_at(end))] += slots
        kept = [0] * num_steps
        for agent, steps in freed.items():
            free = 0
            for step in range(num_steps):
                free += steps[step]
                kept[step] += max(0, free - spare[agent])
        return kept


class _Caps:
    """Tracks what each group with a cap and each limit holds, and when that is given back. A key is a group, or a limit
    in a tuple of its own, because both may have one name. What a limit has in other pools counts as held for ever."""

    def __init__(self, ledger: Ledger, run_seconds: Callable[[PendingRequest], float]) -> None:
        self._now = ledger.now
        self._limits = ledger.view.limits
        self._used: Counter[_Key] = Counter()
        self._ends: defaultdict[_Key, list[tuple[float, int]]] = defaultdict(list)
        self._free_at: dict[_Key, float] = {}
        self._caps: dict[_Key, int] = {
            group.id: group.max_slots for group in ledger.view.groups.values() if group.max_slots is not None
        }
        for limit in self._limits.values():
            if limit.max_slots is not None:
                self._caps[limit.id,] = limit.max_slots
                holders = ledger.view.holders.get(limit.id, ())
                own = sum(work.slots for work in holders if work.pool == ledger.view.config.name)
                self._used[limit.id,] = ledger.view.held.get(limit.id, 0) - own
        if not self._caps:
            return
        for end, work in ledger.promises.outlook.ends:
            for key in self._keys(work):
                self._promise(key, work.slots, end)
        requests = {request.trial_id: request for request in ledger.view.requests}
        for assignment in ledger.promises.assignments:
            self.promise(request := requests[assignment.trial_id], ledger.now + run_seconds(request))

    def allowed_at(self, request: PendingRequest) -> float | None:
        """Returns the time from which the group's cap and the limits let the request start; None for never."""
        allowed_at = self._now
        if not request.slots:
            return allowed_at
        for limit_id in request.limits:
            limit = self._limits.get(limit_id)
            if limit is not None and limit.is_spent:
                allowed_at = max(allowed_at, limit.renews_at)
        for key in self._keys(request):
            while self._used[key] + request.slots > self._caps[key] and self._ends[key]:
                end, slots = heappop(self._ends[key])
                self._used[key] -= slots
                self._free_at[key] = max(self._free_at.get(key, self._now), end)
            if self._used[key] + request.slots > self._caps[key]:
                return None
            allowed_at = max(allowed_at, self._free_at.get(key, self._now))
        return allowed_at

    def promise(self, request: PendingRequest, end_at: float) -> None:
        if request.slots:
            for key in self._keys(request):
                self._promise(key, request.slots, end_at)

    def _keys(self, work: PendingRequest | Running) -> list[_Key]:
        """Returns the caps and limits that count for this request or work."""
        keys: list[_Key] = [work.group] if work.group in self._caps else []
        if work.limits:
            keys += [(limit_id,) for limit_id in work.limits if (limit_id,) in self._caps]
        return keys

    def _promise(self, key: _Key, slots: int, end_at: float) -> None:
        self._used[key] += slots
        heappush(self._ends[key], (end_at, slots))
