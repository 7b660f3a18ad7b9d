"""Why trials wait, their places in the queue, and each pool's default priority, as reported by the leading scheduler.

An answer is cached for a moment, and callers that arrive during a call share it, so that many views cost the leader one
call. Without a leader there are no reasons, and nothing else fails because of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from gangline.domain.allocation import Reason
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.gateway.leader.leader_client import Leader

# How long an answer is used.
FRESH_SECONDS = 0.5
# The least time between two calls, if a trial that waits is missing from the answer.
FRESH_SECONDS_AT_LEAST = 0.1
# Time limit of the call: a view must not wait longer for its reasons.
FETCH_SECONDS = 1.0
# The same for a caller who asks for the reasons alone. A leader with many requests, or on a busy machine, takes longer.
EXPLAIN_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """Holds a trial's reason and place. queue_place: from 1, in the order in which the pool considers its requests."""

    reason: Reason
    queue_place: int


class Pending:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._standing_by_trial_id: Mapping[str, Standing] = {}
        self._default_priority_by_pool: Mapping[str, int] = {}
        self._fetched_at = float("-inf")
        self._is_answered = False
        self._fetching = asyncio.Lock()

    @property
    def default_priority_by_pool(self) -> Mapping[str, int]:
        """Returns the priorities of the last answer, from any leader; empty before the first answer. `standings`
        fetches anew."""
        return self._default_priority_by_pool

    async def standings(self, trial_ids: Iterable[str], seconds: float = FETCH_SECONDS) -> Mapping[str, Standing]:
        """Returns reasons and places by trial id, in the order in which the planner considers the trials.

        trial_ids: trials that wait, as far as the caller knows. If one is missing from the last answer, such as one
        that was submitted since, the caller gets an answer to a call that began after its own. seconds: limit of the
        call.
        """
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        async with self._fetching:
            is_missed = self._is_answered and any(id_ not in self._standing_by_trial_id for id_ in trial_ids)
            if is_missed and self._fetched_at < asked_at:
                # Bounds the rate of calls: callers that arrive during the pause share the call after it.
                await asyncio.sleep(self._fetched_at + FRESH_SECONDS_AT_LEAST - clock())
            if (is_missed and self._fetched_at < asked_at) or clock() - self._fetched_at >= FRESH_SECONDS:
                self._fetched_at = clock()
                self._standing_by_trial_id = await self._fetch(seconds)
            return self._standing_by_trial_id

    async def _fetch(self, seconds: float) -> Mapping[str, Standing]:
        self._is_answered = False
        try:
            answer = await self._leader.call_once(
                lambda scheduler: scheduler.ListPending, scheduler_pb2.ListPendingRequest(), seconds
            )
        except GanglineError as error:
            log.debug("no reasons for pending requests", error=error.message)
            return {}
        self._is_answered = True
        self._default_priority_by_pool = dict(answer.default_priority_by_pool)
        places: Counter[str] = Counter()
        standing_by_trial_id = {}
        for item in answer.pending:
            places[item.request.pool] += 1
            standing = Standing(wire.from_proto(Reason, item.reason), places[item.request.pool])
            standing_by_trial_id[item.request.trial_id] = standing
        return standing_by_trial_id
