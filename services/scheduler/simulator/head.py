"""PURE: watches whoever holds the reservation: is its start moved later, and by whom?

Looks at every plan beside the engine. A head's promise is the start that its newest reservation names. It is moved
when the next plan promises a later start, or when it starts later than promised. Work that started while the head
waited, and that comes after it in the queue, has overtaken it. A move is laid to backfill when the promise could have
been kept had the work that overtook the head not been there; else to what ran before, or to more urgent requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.scheduler.placement.fit import find_fit
from services.scheduler.placement.order import by_priority
from services.scheduler.placement.outlook import Outlook
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.room import Room
from services.scheduler.placement.snapshot import (
    UNKNOWN_RUN_SECONDS,
    PendingRequest,
    PoolConfig,
    Running,
    Snapshot,
)
from services.scheduler.simulator.played import Head

_LEAST_MOVE_SECONDS = 1e-3


@dataclass(slots=True)
class _Watched:
    """moved: seconds by backfill, and by anything else. before: what the newest promise was made on."""

    request: PendingRequest
    first_promise: float
    promise: float
    before: Snapshot
    moved_by_backfill: float = 0.0
    moved_by_others: float = 0.0
    overtaken_by: set[str] = field(default_factory=set)


class HeadWatch:
    """heads: those that have started. A head whose place a more urgent one takes is watched anew when it is back."""

    def __init__(self, config: PoolConfig) -> None:
        self.heads: list[Head] = []
        self._config = config
        self._watched: _Watched | None = None

    def look(self, snapshot: Snapshot, decided: Plan, requests: Mapping[str, PendingRequest], now: float) -> None:
        """snapshot: what was decided on. requests: those that waited, by id."""
        reservation = decided.reservations.get(self._config.name)
        starting = {one.trial_id: one.slots_by_agent for one in decided.assignments}
        watched = self._watched
        if watched is not None:
            if watched.request.trial_id in starting:
                self._close(watched, now)
            elif reservation is not None and reservation.trial_id == watched.request.trial_id:
                self._renew(watched, reservation.at, self._ahead(watched, starting, requests, now), snapshot, now)
            else:
                self._watched = None
        if reservation is not None and self._watched is None:
            head = requests[reservation.trial_id]
            self._watched = _Watched(head, reservation.at, reservation.at, snapshot)
        if self._watched is not None:
            self._overtake(self._watched, starting, requests)

    def _close(self, watched: _Watched, now: float) -> None:
        late = now - watched.promise
        if late > _LEAST_MOVE_SECONDS:
            # Nothing has changed since that promise; whoever was in the way then has only just ended.
            self._lay(watched, late, self._fits_without_overtakers(watched))
        self.heads.append(
            Head(
                watched.request.trial_id,
                watched.first_promise,
                now,
                watched.moved_by_backfill,
                watched.moved_by_others,
            )
        )
        self._watched = None

    def _renew(self, watched: _Watched, promise: float, ahead: list[Running], snapshot: Snapshot, now: float) -> None:
        late = promise - watched.promise
        if late > _LEAST_MOVE_SECONDS:
            kept = self._opening_without_overtakers(watched, ahead, snapshot, now)
            self._lay(watched, late, kept is not None and kept <= watched.promise + _LEAST_MOVE_SECONDS)
        watched.promise, watched.before = promise, snapshot

    def _lay(self, watched: _Watched, seconds: float, is_backfill: bool) -> None:
        if is_backfill:
            watched.moved_by_backfill += seconds
        else:
            watched.moved_by_others += seconds

    def _overtake(
        self, watched: _Watched, starting: Mapping[str, object], requests: Mapping[str, PendingRequest]
    ) -> None:
        head = by_priority(watched.request)
        watched.overtaken_by.update(name for name in starting if by_priority(requests[name]) > head)

    def _ahead(
        self,
        watched: _Watched,
        starting: Mapping[str, Mapping[str, int]],
        requests: Mapping[str, PendingRequest],
        now: float,
    ) -> list[Running]:
        """What starts with this plan and is more urgent than the head."""
        head = by_priority(watched.request)
        ahead = [(requests[name], slots) for name, slots in starting.items() if by_priority(requests[name]) < head]
        return [
            Running(
                one.trial_id,
                one.trial_id,
                one.group,
                one.pool,
                slots,
                estimated_end_at=now + (one.estimated_seconds or UNKNOWN_RUN_SECONDS),
            )
            for one, slots in ahead
        ]

    def _fits_without_overtakers(self, watched: _Watched) -> bool:
        room, _ = self._without_overtakers(watched, watched.before)
        return find_fit(watched.request, room) is not None

    def _opening_without_overtakers(
        self, watched: _Watched, ahead: list[Running], snapshot: Snapshot, now: float
    ) -> float | None:
        room, works = self._without_overtakers(watched, snapshot)
        for work in ahead:
            room.take(work.slots_by_agent)
        opening = Outlook(room, [*works, *ahead], now).opening(watched.request)
        return None if opening is None else opening.at

    def _without_overtakers(self, watched: _Watched, snapshot: Snapshot) -> tuple[Room, list[Running]]:
        room = Room(snapshot.agents, self._config)
        works = []
        for work in snapshot.running:
            if work.trial_id in watched.overtaken_by:
                room.give_back(work.slots_by_agent)
            else:
                works.append(work)
        return room, works
