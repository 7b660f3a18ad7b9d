"""Why trials wait and at which place of their queue, and the priority that each pool gives, as the leading scheduler
says.

An answer is kept for a moment, and callers that come while one is being fetched share it, so that many views cost the
leader one call. Without a leader there are no reasons, and nothing else fails because of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from gangline import wire
from gangline.domain.allocation import Reason
from gangline.errors import GanglineError
from gangline.v1 import scheduler_pb2
from services.gateway.leader import Leader

FRESH_SECONDS = 0.5
FRESH_SECONDS_AT_LEAST = 0.1
FETCH_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """queue_place: from 1 in the order in which the pool looks at its requests."""

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
        """As last heard, from whichever leader; empty before the first answer. `standings` asks anew."""
        return self._default_priority_by_pool

    async def standings(self, trial_ids: Iterable[str]) -> Mapping[str, Standing]:
        """By trial id, in the order in which the planner looks at them.

        trial_ids: those that the caller knows to wait. One that the last answer does not have makes it old sooner.
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
        found = {}
        for item in answer.pending:
            places[item.request.pool] += 1
            standing = Standing(wire.from_proto(Reason, item.reason), places[item.request.pool])
            found[item.request.trial_id] = standing
        return found
