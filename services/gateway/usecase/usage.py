"""Reports the slots that were held in a period, by owner, pool or experiment."""

from __future__ import annotations

import time

from gangline.domain.state import UsageGroup
from gangline.domain.usage import AllocationUsage, UsageReport, add_up, entry_of, usage_of
from gangline.errors import invalid
from gangline.when import check_period
from services.common import keys
from services.common.server import Principal
from services.gateway.history.reader import Reader
from services.gateway.history.usage_recorder import UsageRecorder
from services.gateway.mirror.auth import check_user
from services.gateway.mirror.mirror import Watched

# Allocations that have ended within this time are compared with the live ones by their ids, because one may end while
# the report is made. It exceeds the difference between the clocks of leader and gateway.
RECENT_SECONDS = 600.0


class Usage:
    def __init__(self, mirror: Watched, reader: Reader, recorder: UsageRecorder) -> None:
        self._mirror = mirror
        self._reader = reader
        self._recorder = recorder

    async def report(self, principal: Principal, since: float, until: float, by: UsageGroup | None) -> UsageReport:
        """Adds up the period. until: 0 for now. by: None for a group that this version does not know.

        Raises GanglineError `usage.by`, `usage.period`, `history.*`.
        """
        check_user(principal)
        if by is None:
            raise invalid("usage.by", "usage is added up by OWNER, POOL or EXPERIMENT; name one of them")
        now = time.time()
        until = until or now
        check_period(since, until, now)
        # Invariant: read before the ended ones are stored, so each allocation is among the live or the stored ones.
        record_by_id = {record.allocation_id: record for record in self._live(now)}
        await self._recorder.record()
        entries, recent = await self._reader.usage(since, until, by, now - RECENT_SECONDS)
        record_by_id |= {record.allocation_id: record for record in recent}
        parts = (entry_of(record, by, since, until) for record in record_by_id.values())
        return UsageReport(since, until, by, add_up([*entries, *(part for part in parts if part is not None)]))

    def _live(self, now: float) -> list[AllocationUsage]:
        state = self._mirror.state
        records: list[AllocationUsage] = []
        for allocation in state.allocations.all():
            experiment = state.experiments.find(keys.experiment(allocation.experiment_id))
            owner = experiment.owner if experiment is not None else ""
            usage = usage_of(allocation, now)
            records.append(AllocationUsage(allocation.id, allocation.experiment_id, owner, usage))
        return records
