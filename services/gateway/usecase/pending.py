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
# How long it is used if a trial that waits is missing from it.
FRESH_SECONDS_AT_LEAST = 0.1
# Time limit of the call: a view must not wait longer for its reasons.
FETCH_SECONDS = 1.0

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

    async def standings(self, trial_ids: Iterable[str]) -> Mapping[str, Standing]:
        """Returns reasons and places by trial id, in the order in which the planner considers the trials.

        trial_ids: trials that wait, as far as the caller knows. If one is missing from the last answer, a new one is
        fetched sooner.
        """
        clock = asyncio.get_running_loop().time
        async with self._fetching:
            age_seconds = clock() - self._fetched_at
            is_missed = self._is_answered and any(id_ not in self._standing_by_trial_id for id_ in trial_ids)
            if age_seconds >= (FRESH_SECONDS_AT_LEAST if is_missed else FRESH_SECONDS):
                self._standing_by_trial_id = await self._fetch()
                self._fetched_at = clock()
            return self._standing_by_trial_id

    async def _fetch(self) -> Mapping[str, Standing]:
        self._is_answered = False
        try:
            answer = await self._leader.call_once(
                lambda scheduler: scheduler.ListPending, scheduler_pb2.ListPendingRequest(), FETCH_SECONDS
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
