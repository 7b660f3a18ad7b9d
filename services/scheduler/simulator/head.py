"""PURE: watches the holder of the reservation (the head): does work that came after it delay its start?

Examines every plan beside the engine. A request that starts while the head waits, and comes after it in the queue,
overtakes it: that is backfill.

Work with a known end has to leave the agents that the reservation names at the time that it names. Backfill delays the
head for as long as that time has passed, the head still waits, and those agents would suffice if only such work were
gone. All other overtaking work may hold nothing that the head lacks. It delays the head for as long as the head would
fit on any agents without it, unless that work is being stopped.

Other causes (earlier work that overruns its estimate, more urgent requests, the time that a stop takes) only show as a
start after the first promise. Work that overtook the head before a more urgent request started is excused, because the
head lacked something else then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.request.assignment import Reservation
from services.scheduler.placement.request.order import by_priority
from services.scheduler.placement.request.snapshot import PendingRequest, PoolConfig, Running, Snapshot
from services.scheduler.simulator.played import Head


@dataclass(slots=True)
class _Watched:
    """Tracks one head."""

    request: PendingRequest
    since: float  # time at which it first held the reservation
    promised_at: float
    agents: Mapping[str, int]  # agents that the newest reservation names, with the slots it takes there
    # by trial id, the time at which work with a known end that overtook the head since then has to be gone
    due_at: dict[str, float] = field(default_factory=dict)
    overtaken_by: set[str] = field(default_factory=set)  # other work that has overtaken it and cannot be stopped
    broken_since: float | None = None
    broken_seconds: float = 0.0


class HeadWatch:
    """Collects the heads of a played trace. heads: those that have started. When a more urgent request takes a head's
    place, the watch starts again once it is back. A head that work is stopped for is watched until it starts, in
    parallel with the next one."""

    def __init__(self, config: PoolConfig) -> None:
        self.heads: list[Head] = []
        self._config = config
        self._watched: dict[str, _Watched] = {}

    def look(self, snapshot: Snapshot, decided: Plan, requests: Mapping[str, PendingRequest], now: float) -> None:
        """Examines one plan. snapshot: the planner's input. requests: those that waited, by id."""
        reservation = decided.reservations.get(self._config.name)
        starting = {assignment.trial_id for assignment in decided.assignments}
        holder = requests[reservation.trial_id] if reservation is not None else None
        for name, watched in tuple(self._watched.items()):
            _count(watched, now)
            if name in starting:
                self.heads.append(Head(name, watched.promised_at, now, watched.broken_seconds))
            if name in starting or (holder is not None and by_priority(holder) < by_priority(watched.request)):
                del self._watched[name]
            elif any(by_priority(requests[trial_id]) < by_priority(watched.request) for trial_id in starting):
                watched.due_at, watched.overtaken_by = {}, set()
        if reservation is not None and holder is not None:
            self._renew(reservation, holder, snapshot, now)
            self._note_overtaking(reservation, holder, (requests[name] for name in starting))
        if self._watched:
            self._check_overtaking(snapshot, decided, requests, now)

    def _renew(self, reservation: Reservation, holder: PendingRequest, snapshot: Snapshot, now: float) -> None:
        watched = self._watched.setdefault(
            holder.trial_id, _Watched(holder, now, reservation.at, reservation.slots_by_agent)
        )
        if _is_broken(watched, snapshot, now):
            watched.broken_since = now
        if watched.agents != reservation.slots_by_agent:
            watched.agents, watched.due_at = reservation.slots_by_agent, {}

    def _note_overtaking(
        self, reservation: Reservation, holder: PendingRequest, starting: Iterable[PendingRequest]
    ) -> None:
        """Records which of the starting requests overtake the holder; those that can be stopped do not count."""
        order = by_priority(holder)
        for request in starting:
            is_stoppable = self._config.is_on_call_possible and request.is_preemptible
            if is_stoppable or by_priority(request) < order:
                continue
            watched = self._watched[holder.trial_id]
            if request.is_bounded:
                watched.due_at[request.trial_id] = reservation.at
            else:
                watched.overtaken_by.add(request.trial_id)

    def _check_overtaking(
        self, snapshot: Snapshot, decided: Plan, requests: Mapping[str, PendingRequest], now: float
    ) -> None:
        """Checks only the first waiting request: a request before another one may have been promised the same slots."""
        starting = {assignment.trial_id for assignment in decided.assignments}
        waiting = (request for name, request in requests.items() if name not in starting)
        watched = self._watched.get(min(waiting, key=by_priority).trial_id)
        if watched is not None and _is_held_up(watched, snapshot, decided, requests):
            watched.broken_since = now


def _count(watched: _Watched, now: float) -> None:
    if watched.broken_since is not None:
        watched.broken_seconds += now - watched.broken_since
        watched.broken_since = None


def _is_broken(watched: _Watched, snapshot: Snapshot, now: float) -> bool:
    overdue = {name for name, due_at in watched.due_at.items() if due_at <= now}
    if not overdue:
        return False
    lacking = {
        agent.id: watched.agents[agent.id] - agent.free for agent in snapshot.agents if agent.id in watched.agents
    }
    if max(lacking.values(), default=0) <= 0:
        return False
    for work in snapshot.running:
        if work.trial_id in overdue:
            for agent_id in lacking.keys() & work.slots_by_agent.keys():
                lacking[agent_id] -= work.slots_by_agent[agent_id]
    return max(lacking.values()) <= 0


def _is_held_up(watched: _Watched, snapshot: Snapshot, decided: Plan, requests: Mapping[str, PendingRequest]) -> bool:
    """Returns whether the head would fit without the work that has overtaken it, and would not fit on what is being
    stopped already."""
    order = by_priority(watched.request)
    preempted_ids = {preemption.allocation_id for preemption in decided.preemptions}
    is_on_call = snapshot.pools[0].is_on_call_possible
    room = Room(snapshot.agents, snapshot.pools[0])
    for assignment in decided.assignments:
        if by_priority(requests[assignment.trial_id]) < order:
            room.take(assignment.slots_by_agent)
    overtaking: list[Running] = []
    for work in snapshot.running:
        if work.is_stopping or work.allocation_id in preempted_ids:
            room.give_back(work.slots_by_agent)
        elif work.trial_id in watched.overtaken_by or (
            is_on_call and work.is_preemptible and work.started_at >= watched.since and by_priority(work) > order
        ):
            overtaking.append(work)
    if not overtaking or find_fit(watched.request, room) is not None:
        return False
    for work in overtaking:
        room.give_back(work.slots_by_agent)
    return find_fit(watched.request, room) is not None
