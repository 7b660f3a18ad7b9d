"""PURE: two simple schedulers to compare the planner with. Both are ours, and both use the planner's own fitting.

`plan_in_submission_order` starts requests strictly in the order of submission; the first that does not fit blocks all
others.

`plan_by_documented_priority` restates in our own words what Determined's documentation says of its priority scheduler
(topic guide "Scheduling", docs.determined.ai). Slots go to tasks by priority, a lower number first; while tasks of a
higher priority are pending, none of a lower one is scheduled. Tasks of equal priority are considered in the order of
their creation. A task that fits into one agent gets the best-fitting one, a larger one whole idle agents. There are no
reservations and no estimates: a task that does not fit lets others of equal priority pass. With preemption, work of
lower priority is preempted for it, starting with the lowest. The documentation does not say which of equals goes first:
we take the newest, and only when that makes the fit.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.request.assignment import Assignment, Preemption
from services.scheduler.placement.request.order import in_order
from services.scheduler.placement.request.snapshot import PendingRequest, Running, Shape, Snapshot


def plan_in_submission_order(snapshot: Snapshot, now: float) -> Plan:
    """Plans in the order of submission. now: not used; the signature is the planner's."""
    room = Room(snapshot.agents, snapshot.pools[0])
    assignments = []
    for request in sorted(snapshot.requests, key=attrgetter("submitted_at")):
        fit = find_fit(request, room)
        if fit is None:
            break
        room.take(fit)
        assignments.append(Assignment(request.trial_id, fit))
    return Plan(tuple(assignments), (), {})


def plan_by_documented_priority(snapshot: Snapshot, now: float) -> Plan:
    """Plans by the documented rules; preempts where the pool's preemption is on. now: not used."""
    draft = _Draft(snapshot)
    for _, level in groupby(in_order(snapshot.requests), key=attrgetter("priority")):
        waiting = [request for request in level if not draft.start(request)]
        if snapshot.pools[0].is_preemption_on:
            for request in waiting:
                draft.preempt(request)
        if waiting:
            break
    return Plan(tuple(draft.assignments), tuple(draft.preemptions), {})


class _Draft:
    def __init__(self, snapshot: Snapshot) -> None:
        self.assignments: list[Assignment] = []
        self.preemptions: list[Preemption] = []
        self._room = Room(snapshot.agents, snapshot.pools[0])
        self._refused: set[Shape] = set()
        # Room once stopping work has ended, less what was promised. Its slots are meant for a request already, so only
        # what is lacking beyond them is preempted for.
        self._after = Room(snapshot.agents, snapshot.pools[0])
        self._victims: list[Running] = []
        for work in snapshot.running:
            if work.is_stopping:
                self._after.give_back(work.slots_by_agent)
            elif work.is_preemptible:
                self._victims.append(work)
        self._victims.sort(key=lambda work: (-work.priority, -work.started_at, work.allocation_id))

    def start(self, request: PendingRequest) -> bool:
        shape = request.shape
        fit = None if shape in self._refused else find_fit(request, self._room)
        if fit is None:
            self._refused.add(shape)
            return False
        self._room.take(fit)
        self._after.take(fit)
        self.assignments.append(Assignment(request.trial_id, fit))
        return True

    def preempt(self, request: PendingRequest) -> None:
        """Preempts for the request and takes its slots, so that the next request does not count on them too."""
        fit = find_fit(request, self._after)
        if fit is None:
            fit = self._make_room(request)
        if fit is not None:
            self._after.take(fit)

    def _make_room(self, request: PendingRequest) -> Slots | None:
        chosen: list[Running] = []
        for work in self._victims:
            if work.priority <= request.priority:
                break
            chosen.append(work)
            self._after.give_back(work.slots_by_agent)
            fit = find_fit(request, self._after)
            if fit is not None:
                self.preemptions += [Preemption(victim.allocation_id, request.trial_id) for victim in chosen]
                self._victims = self._victims[len(chosen) :]
                return fit
        for work in chosen:
            self._after.take(work.slots_by_agent)
        return None
