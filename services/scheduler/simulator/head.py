"""PURE: watches whoever holds the reservation: does work that came after it hold its start up?

Looks at every plan beside the engine. What starts while the head waits, and comes after it in the queue, overtakes it:
that is backfill, and it promises to leave the agents that the reservation names as they are needed at the time that it
names. The promise is broken, and the head moved by backfill, for as long as that time is over, the head waits still,
and those agents would do if only such work were gone. Whatever else makes a head late (work that ran before it and
overruns its estimate, requests that are more urgent) shows in its start against its first promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.scheduler.placement.assignment import Reservation
from services.scheduler.placement.order import by_priority
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.snapshot import PendingRequest, PoolConfig, Snapshot
from services.scheduler.simulator.played import Head


@dataclass(slots=True)
class _Watched:
    """agents: that the newest reservation names, with the slots it takes. due_at: by what overtook the head since these
    were named, when the reservation of that time wanted it out of the way."""

    request: PendingRequest
    promised_at: float
    agents: Mapping[str, int]
    due_at: dict[str, float] = field(default_factory=dict)
    broken_since: float | None = None
    broken_seconds: float = 0.0


class HeadWatch:
    """heads: those that have started. A head whose place a more urgent one takes is watched anew when it is back."""

    def __init__(self, config: PoolConfig) -> None:
        self.heads: list[Head] = []
        self._pool = config.name
        self._watched: _Watched | None = None

    def look(self, snapshot: Snapshot, decided: Plan, requests: Mapping[str, PendingRequest], now: float) -> None:
        """snapshot: what was decided on. requests: those that waited, by id."""
        reservation = decided.reservations.get(self._pool)
        starting = {one.trial_id for one in decided.assignments}
        watched = self._watched
        if watched is not None:
            _count(watched, now)
            if watched.request.trial_id in starting:
                self.heads.append(Head(watched.request.trial_id, watched.promised_at, now, watched.broken_seconds))
            if reservation is None or reservation.trial_id != watched.request.trial_id:
                watched = None
        if reservation is not None:
            head = requests[reservation.trial_id]
            watched = watched or _Watched(head, reservation.at, reservation.slots_by_agent)
            _renew(watched, reservation, snapshot, now)
            order = by_priority(head)
            overtaking = (name for name in starting if by_priority(requests[name]) > order)
            watched.due_at.update(dict.fromkeys(overtaking, reservation.at))
        self._watched = watched


def _count(watched: _Watched, now: float) -> None:
    if watched.broken_since is not None:
        watched.broken_seconds += now - watched.broken_since
        watched.broken_since = None


def _renew(watched: _Watched, reservation: Reservation, snapshot: Snapshot, now: float) -> None:
    if _is_broken(watched, snapshot, now):
        watched.broken_since = now
    if watched.agents != reservation.slots_by_agent:
        watched.agents, watched.due_at = reservation.slots_by_agent, {}


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
