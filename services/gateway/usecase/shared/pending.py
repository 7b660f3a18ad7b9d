"""Why trials wait, their places in the queue, and each pool's default priority, as reported by the leading scheduler.

An answer is cached for a moment, and callers that arrive during a call share it, so that many views cost the leader one
call at a time. Each caller waits as long as it can afford. Without a leader there are no reasons, and nothing else
fails because of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import structlog

from gangline.domain.allocation import Reason
from gangline.domain.state import ReasonCode
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.gateway.leader.leader_client import Leader

# How long an answer is used after it has arrived.
FRESH_SECONDS = 0.5
# The least time between the begins of two calls, if a trial that waits is missing from the answer.
FRESH_SECONDS_AT_LEAST = 0.1
# A view does not wait longer for its reasons, from the begin of the call.
FETCH_SECONDS = 1.0
# The same for a caller who asks for the reasons alone, and the limit of the call. A leader with many requests, or on a
# busy machine, takes longer.
EXPLAIN_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """Holds a trial's reason and place."""

    reason: Reason
    # From 1, in the order in which the pool considers its requests; 0 for one that cannot start because its experiment
    # is paused or is being ended.
    queue_place: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of the leader about the requests that wait."""

    began_at: float = float("-inf")  # start of the call, by the event loop's clock
    arrived_at: float = float("-inf")  # arrival of the answer, by the event loop's clock
    standing_by_trial_id: Mapping[str, Standing] = field(default_factory=dict)
    is_given: bool = False  # whether the leader answered

    def serves(self, trial_ids: Collection[str], asked_at: float, now: float) -> bool:
        """Whether a caller who has asked then can use the answer now. What is missing in an answer may be newer than
        its call."""
        if now - self.arrived_at >= FRESH_SECONDS:
            return False
        is_missed = self.is_given and any(id_ not in self.standing_by_trial_id for id_ in trial_ids)
        return not is_missed or self.began_at >= asked_at


class Pending:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._default_priority_by_pool: Mapping[str, int] = {}
        self._last = _Answer()
        self._began_at = float("-inf")
        self._fetching: asyncio.Task[_Answer] | None = None

    @property
    def default_priority_by_pool(self) -> Mapping[str, int]:
        """Returns the priorities of the last answer, from any leader; empty before the first answer. `standings`
        fetches anew."""
        return self._default_priority_by_pool

    async def standings(self, trial_ids: Collection[str], seconds: float = FETCH_SECONDS) -> Mapping[str, Standing]:
        """Returns reasons and places by trial id, in the order in which the planner considers the trials; none if the
        leader has not answered after so many seconds.

        trial_ids: trials that wait, as far as the caller knows. If one is missing from the last answer, such as one
        that was submitted since, the caller gets an answer to a call that began after its own.
        """
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        while not self._last.serves(trial_ids, asked_at, clock()):
            if self._fetching is None:
                # Bounds the rate of calls: callers that arrive during the pause share the call after it.
                self._began_at = max(clock(), self._began_at + FRESH_SECONDS_AT_LEAST)
                self._fetching = asyncio.create_task(self._fetch(self._began_at), name="pending requests")
            fetching = self._fetching
            left = self._began_at + seconds - clock()
            done, _ = await asyncio.wait({fetching}, timeout=max(0.0, left))
            if not done:
                return {}
            if fetching.result().began_at >= asked_at:
                return fetching.result().standing_by_trial_id
        return self._last.standing_by_trial_id

    async def _fetch(self, begin_at: float) -> _Answer:
        clock = asyncio.get_running_loop().time
        try:
            await asyncio.sleep(begin_at - clock())
            standings, is_given = await self._ask()
            self._last = _Answer(begin_at, clock(), standings, is_given)
            return self._last
        finally:
            self._fetching = None

    async def _ask(self) -> tuple[Mapping[str, Standing], bool]:
        """Returns no standings, and False, without an answer."""
        try:
            answer = await self._leader.call_once(
                lambda scheduler: scheduler.ListPending, scheduler_pb2.ListPendingRequest(), EXPLAIN_SECONDS
            )
        except GanglineError as error:
            log.debug("no reasons for pending requests", error=error.message)
            return {}, False
        self._default_priority_by_pool = dict(answer.default_priority_by_pool)
        places: Counter[str] = Counter()
        standing_by_trial_id = {}
        for item in answer.pending:
            reason = wire.from_proto(Reason, item.reason)
            waits = reason.code is not ReasonCode.PAUSED
            places[item.request.pool] += waits
            standing = Standing(reason, places[item.request.pool] if waits else 0)
            standing_by_trial_id[item.request.trial_id] = standing
        return standing_by_trial_id, True
