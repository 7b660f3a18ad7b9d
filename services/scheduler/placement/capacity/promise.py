"""PURE: what the plan of one pool has promised so far: who starts, who claims slots, and which work is preempted.

Owns the room that is left after these promises. Every promise is made here, whole: the room, the group's quota and the
outlook count it at once, so that no slot is promised twice. The ledger decides which promises are made.

Owns Waiting as well: the requests that the plan leaves waiting, each with the cause that reasons and forecasts read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from services.scheduler.placement.capacity.capability import QuotaCount
from services.scheduler.placement.capacity.coming import ComingSlots
from services.scheduler.placement.capacity.outlook import Outlook
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.request.assignment import Assignment, Preemption
from services.scheduler.placement.request.snapshot import UNKNOWN_RUN_SECONDS, PendingRequest, PoolView, Running

Cause = Literal["held", "backoff", "never", "unhealthy", "quota", "claim", "behind", "full"]


class Waiting(NamedTuple):
    """Holds a request that waits."""

    request: PendingRequest
    cause: Cause
    is_behind: bool  # whether others of its kind (with slots, or without) may precede it


def in_turn(answers: Iterable[tuple[PendingRequest, Cause | None]], is_order_fixed: bool) -> list[Waiting]:
    """Returns the requests that wait. answers: every request of the pool in its turn; the cause is None for requests
    that start. A request in front counts for those behind it unless only time or its owner can start it."""
    # With slots, and without. Where the order is not fixed, another request may come even before the first.
    is_behind = {True: not is_order_fixed, False: not is_order_fixed}
    waiting = []
    for request, cause in answers:
        has_slots = request.slots > 0
        if cause is not None:
            waiting.append(Waiting(request, cause, is_behind[has_slots]))
        if cause not in ("held", "backoff"):
            is_behind[has_slots] = True
    return waiting


class Promises:
    """room: what is free now and not promised. coming: what stopping work gives back. claims: trial id -> the stopping
    allocations that it waits for. outlook: the state before this plan."""

    def __init__(self, view: PoolView, now: float) -> None:
        self._now = now
        self.room = Room(view.agents, view.config)
        self.outlook = Outlook(self.room, view.running, now)
        self.quota = QuotaCount(view)
        self.coming = ComingSlots(view.running, self.room)
        self.assignments: list[Assignment] = []
        self.preemptions: list[Preemption] = []
        self.claims: dict[str, tuple[str, ...]] = {}
        # Requests that start or claim slots, as the work that they become, for the outlook.
        self._works: list[Running] = []

    def start(self, request: PendingRequest, slots_by_agent: Slots, is_on_call: bool) -> None:
        self.room.take(slots_by_agent)
        self.assignments.append(Assignment(request.trial_id, slots_by_agent, is_on_call))
        self._count(request, slots_by_agent)

    def claim(self, request: PendingRequest, slots_by_agent: Slots) -> None:
        """Gives the request slots that are free or coming. Call it within `coming.shown()`."""
        self.room.take(slots_by_agent)
        self.claims[request.trial_id] = self.coming.blocking(slots_by_agent)
        self._count(request, slots_by_agent)

    def preempt(self, victims: Sequence[Running], request: PendingRequest) -> None:
        """Stops work with slots for the request. Call it within `coming.shown()`, with the victims' slots free in the
        room."""
        self.preemptions += [Preemption(work.allocation_id, request.trial_id) for work in victims]
        self.coming.release(victims)

    def claim_place(self, request: PendingRequest, works: Sequence[Running]) -> None:
        """Gives the request an auxiliary place that these works give back. Stops those that do not stop already."""
        stopped = (work for work in works if not work.is_stopping)
        self.preemptions += [Preemption(work.allocation_id, request.trial_id) for work in stopped]
        self.claims[request.trial_id] = tuple(work.allocation_id for work in works)

    def grow(self, work: Running, wanted: PendingRequest, slots_by_agent: Slots, left: Slots) -> None:
        """Stops work so that it starts again on its full size; if it stops already, keeps the slots for it. The room
        must be without these slots. left: slots of its own that others may claim."""
        if not work.is_growing:
            self.preemptions.append(Preemption(work.allocation_id, work.trial_id, is_growth=True))
        self.coming.keep_for_growth(work, left)
        self.quota.promise_more(work.group, work.limits, wanted.slots - work.slots)
        self._works.append(self._as_running(wanted, slots_by_agent))

    def outlook_now(self, stoppable: Sequence[Running]) -> Outlook:
        """Returns the outlook with what this plan has promised. stoppable: stops once that lets the request start, so
        the request waits for the other work alone."""
        if not self._works and not self.coming.stopping and not stoppable:
            return self.outlook
        gone = {work.allocation_id for work in self.coming.stopping}
        able = {work.allocation_id for work in stoppable}
        ends = self.outlook.ends
        if gone or able:
            ends = [
                (self._now if work.allocation_id in able else end, work)
                for end, work in ends
                if work.allocation_id not in gone
            ]
        coming = [
            Running(agent_id, "", "", "", {agent_id: slots}, started_at=self._now, is_stopping=True)
            for agent_id, slots in self.coming.slots_by_agent.items()
        ]
        return Outlook(self.room, [*self._works, *coming], self._now, ends)

    def _count(self, request: PendingRequest, slots_by_agent: Slots) -> None:
        self.quota.promise(request)
        if request.slots:
            self._works.append(self._as_running(request, slots_by_agent))

    def _as_running(self, request: PendingRequest, slots_by_agent: Slots) -> Running:
        return Running(
            request.trial_id,
            request.trial_id,
            request.group,
            request.pool,
            slots_by_agent,
            estimated_end_at=self._now + (request.estimated_seconds or UNKNOWN_RUN_SECONDS),
            is_bounded=request.is_bounded and request.estimated_seconds > 0,
        )
