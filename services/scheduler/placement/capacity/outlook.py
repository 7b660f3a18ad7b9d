"""PURE: what running work gives back and when, by its estimates.

Owns the expected end of running work and the sweep over these ends. The sweep yields, for every request, when and where
it would fit, and which work has to end first. One sweep serves all requests of a pool; later queries read only its
tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from services.scheduler.placement.capacity.exact import find_sizes
from services.scheduler.placement.capacity.room import Room, Slots
from services.scheduler.placement.request.snapshot import PendingRequest, Running

# Least time that running work without an estimate is expected to take still, and most time that work being stopped is.
LEAST_LEFT_SECONDS = 60.0
# Work that overruns its estimate is expected to take at most this fraction of its elapsed time in addition, or
# LEAST_LEFT_SECONDS if that is more.
OVERRUN_RATIO = 0.25
# Least time that work is expected to take still once it overruns, so that no end is in the past.
LEAST_OVERRUN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Opening:
    """States where a request fits from `at` on, once the work in `after` has ended."""

    at: float
    slots_by_agent: Slots
    after: tuple[Running, ...]


def expected_end(work: Running, now: float) -> float:
    """Returns the expected end, which is never in the past. Work without an estimate is taken to be in the middle of
    its run, the best guess for run times that spread over magnitudes.

    Work that overruns its estimate is expected to overrun it by as much again, up to a limit. So the end moves by at
    most 2 s for each second that passes, and by LEAST_OVERRUN_SECONDS more at the estimate itself. It never jumps from
    one planning cycle to the next.
    """
    if work.estimated_end_at > now:
        return work.estimated_end_at
    elapsed = max(0.0, now - work.started_at)
    if not work.estimated_end_at:
        return now + (LEAST_LEFT_SECONDS if work.is_stopping else max(LEAST_LEFT_SECONDS, elapsed))
    most = LEAST_LEFT_SECONDS if work.is_stopping else max(LEAST_LEFT_SECONDS, OVERRUN_RATIO * elapsed)
    return now + max(LEAST_OVERRUN_SECONDS, min(now - work.estimated_end_at, most))


def freed_by(work: Running) -> Mapping[str, int]:
    """Returns the slots that come back when the work ends, without draining ones, which no request gets any more."""
    if not work.draining_by_agent:
        return work.slots_by_agent
    drained = work.draining_by_agent
    left = {agent: slots - drained.get(agent, 0) for agent, slots in work.slots_by_agent.items()}
    return {agent: slots for agent, slots in left.items() if slots or not work.slots_by_agent[agent]}


def sum_of_freed(works: Iterable[Running], room: Room) -> Slots:
    """Returns the sum of what all of these works give back, by usable agent."""
    coming: Slots = {}
    for work in works:
        for agent_id, slots in freed_by(work).items():
            if slots and room.get(agent_id) is not None:
                coming[agent_id] = coming.get(agent_id, 0) + slots
    return coming


class Outlook:
    """Predicts when a request fits. room: its state now; later changes do not show here. works: work that occupies it
    and will end. ends: further ends, from an earlier outlook. The sweep runs on the first query."""

    def __init__(
        self, room: Room, works: Iterable[Running], now: float, ends: Iterable[tuple[float, Running]] = ()
    ) -> None:
        self._room = room
        self._now = now
        self._ends = sorted([*ends, *((expected_end(work, now), work) for work in works)], key=itemgetter(0))
        self._free = {bin_.agent.id: bin_.free for bin_ in room.bins}
        self._works_on: dict[str, list[tuple[float, Running]]] = defaultdict(list)
        # The agent with the most free slots so far, whenever the maximum grows: enough for a shared fit.
        self._wider: list[tuple[float, str, int]] = []
        # Free slots of each agent after each end on it.
        self._history: dict[str, list[tuple[float, int]]] = {}
        self._idle: dict[int, list[tuple[float, str]]] = defaultdict(list)
        self._auxiliary: list[tuple[float, str, Running]] = []
        self._is_swept = False
        self._start()

    @property
    def ends(self) -> list[tuple[float, Running]]:
        """Returns the ends of all works, the earliest first."""
        return self._ends

    def opening(self, request: PendingRequest) -> Opening | None:
        """Returns the first opening for the request; None when no end of running work makes room for it."""
        self._sweep()
        if request.slots == 0:
            return self._auxiliary_opening(request.blocklist)
        candidates = [self._shared(request.slots, request.blocklist)]
        if not request.is_single_agent:
            candidates += [self._equal(request.slots, request.blocklist)]
            if self._room.config.allow_heterogeneous_fits:
                candidates += [self._unequal(request.slots, request.blocklist)]
        first = min((candidate for candidate in candidates if candidate is not None), key=itemgetter(0), default=None)
        if first is None:
            return None
        at, slots_by_agent = first
        return Opening(at, slots_by_agent, self._needed(at, slots_by_agent))

    def free_at(self, agent_id: str, at: float) -> int:
        self._sweep()
        history = self._history.get(agent_id, ())
        return max((free for end, free in history if end <= at), default=self._free[agent_id])

    def _start(self) -> None:
        """Records the room that exists without the end of any work."""
        widest = max(self._room.bins, key=lambda bin_: (bin_.free, bin_.token), default=None)
        if widest is not None and widest.free > 0:
            self._wider.append((self._now, widest.agent.id, widest.free))
        for size, rings in self._room.idle.items():
            self._idle[size] = sorted((self._now, agent_id) for ring in rings.values() for _, agent_id in ring)

    def _sweep(self) -> None:
        if self._is_swept:
            return
        self._is_swept = True
        free = dict(self._free)
        draining = {bin_.agent.id: bin_.agent.draining for bin_ in self._room.bins}
        most = self._wider[0][2] if self._wider else 0
        for end, work in self._ends:
            freed = freed_by(work)
            for agent_id, slots in work.slots_by_agent.items():
                if agent_id not in free:
                    continue
                if slots == 0:
                    self._auxiliary.append((end, agent_id, work))
                    continue
                self._works_on[agent_id].append((end, work))
                back = freed.get(agent_id, 0)
                now_free = free[agent_id] = free[agent_id] + back
                draining[agent_id] -= slots - back
                self._history.setdefault(agent_id, []).append((end, now_free))
                if now_free > most:
                    most = now_free
                    self._wider.append((end, agent_id, most))
                self._note_idle(end, agent_id, now_free, draining[agent_id])

    def _note_idle(self, end: float, agent_id: str, free: int, draining: int) -> None:
        bin_ = self._room.get(agent_id)
        if bin_ is not None and bin_.joins_gangs and 0 < free == bin_.capacity and draining <= 0:
            self._idle[free].append((end, agent_id))

    def _auxiliary_opening(self, blocked: Collection[str]) -> Opening | None:
        first = next((place for place in self._auxiliary if place[1] not in blocked), None)
        return None if first is None else Opening(first[0], {first[1]: 0}, (first[2],))

    def _shared(self, slots: int, blocked: Collection[str]) -> tuple[float, Slots] | None:
        if not blocked:
            at = next(((end, agent) for end, agent, free in self._wider if free >= slots), None)
        else:
            at = min(self._shared_by_agent(slots, blocked), default=None)
        return None if at is None else (at[0], {at[1]: slots})

    def _shared_by_agent(self, slots: int, blocked: Collection[str]) -> Iterable[tuple[float, str]]:
        for agent_id, free in self._free.items():
            if agent_id in blocked:
                continue
            if free >= slots:
                yield self._now, agent_id
                continue
            at = next((end for end, later in self._history.get(agent_id, ()) if later >= slots), None)
            if at is not None:
                yield at, agent_id

    def _equal(self, slots: int, blocked: Collection[str]) -> tuple[float, Slots] | None:
        best: tuple[float, Slots] | None = None
        for size in sorted((size for size in self._idle if slots % size == 0), reverse=True):
            idle_agents = (
                [entry for entry in self._idle[size] if entry[1] not in blocked] if blocked else self._idle[size]
            )
            count = slots // size
            if count <= len(idle_agents) and (best is None or idle_agents[count - 1][0] < best[0]):
                best = idle_agents[count - 1][0], {agent_id: size for _, agent_id in idle_agents[:count]}
        return best

    def _unequal(self, slots: int, blocked: Collection[str]) -> tuple[float, Slots] | None:
        """Finds the first time for agents of unequal sizes by bisection: more idle agents make up every sum that fewer
        do."""
        idle = sorted((at, agent, size) for size, entries in self._idle.items() for at, agent in entries)
        idle = [entry for entry in idle if entry[1] not in blocked]
        low, high = 0, len(idle) + 1
        while low < high:
            middle = (low + high) // 2
            if middle > len(idle) or find_sizes(slots, Counter(size for _, _, size in idle[:middle])) is not None:
                high = middle
            else:
                low = middle + 1
        if low > len(idle):
            return None
        wanted = Counter(find_sizes(slots, Counter(size for _, _, size in idle[:low])) or ())
        chosen: Slots = {}
        for _, agent_id, size in idle[:low]:
            if wanted[size] > 0:
                wanted[size] -= 1
                chosen[agent_id] = size
        return idle[low - 1][0], chosen

    def _needed(self, at: float, slots_by_agent: Mapping[str, int]) -> tuple[Running, ...]:
        """Returns the smallest set of works whose ends make this opening possible; drops works that are not needed, the
        latest end first."""
        needed: dict[str, Running] = {}
        for agent_id, slots in slots_by_agent.items():
            ended = [work for end, work in self._works_on[agent_id] if end <= at]
            is_whole = self._is_whole(agent_id, slots)
            spare = self._free[agent_id] + sum(freed_by(work).get(agent_id, 0) for work in ended) - slots
            for work in reversed(ended):
                freed = freed_by(work).get(agent_id, 0)
                if not is_whole and freed <= spare:
                    spare -= freed
                else:
                    needed[work.allocation_id] = work
        return tuple(needed.values())

    def _is_whole(self, agent_id: str, slots: int) -> bool:
        bin_ = self._room.get(agent_id)
        return bin_ is not None and slots == bin_.capacity
