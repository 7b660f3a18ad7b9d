"""Stores the records of trial runners and answers how far they are stored.

A batch of a stream is stored before the next one is read: if one fails, the stream ends, and no later record can be
stored without it.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from gangline.domain.id import describe_allocation, experiment_id_of
from gangline.errors import ErrorKind, GanglineError, invalid
from services.gateway.history.writer import Writer
from services.gateway.mirror import metrics
from services.gateway.mirror.attempt_fence import admitted, is_of_agent, may_deliver, why_over
from services.gateway.mirror.caller import Runner
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord, has_values, plausible_record
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.delivery import Deliveries
from services.gateway.usecase.shared.parsing import off_loop


class Ingest:
    def __init__(self, runner: Runner, mirror: Watched, writer: Writer, deliveries: Deliveries) -> None:
        self._runner = runner
        self._mirror = mirror
        self._writer = writer
        self._deliveries = deliveries

    def connected(self, experiment_id: int) -> AbstractContextManager[None]:
        """Counts the stream while it lasts."""
        return self._deliveries.connected(experiment_id)

    async def store(self, spool_id: str, trial_id: str, records: tuple[IngestRecord, ...]) -> int:
        """Returns the highest sequence number of the spool that is settled: stored, or left out because a later attempt
        of the trial had begun before the record was made. Without records it only asks for that number."""
        allocation_id = spool_id.partition("/")[0]
        self._runner.check_trial(trial_id, allocation_id)
        agent_id = self._runner.agent_id
        if agent_id and not is_of_agent(self._mirror.state, allocation_id, agent_id):
            text = f"agent {agent_id} has no part in {describe_allocation(allocation_id)}"
            raise GanglineError("auth.forbidden", text, ErrorKind.FORBIDDEN)
        _check_sequences(spool_id, records)
        if self.is_closed(spool_id):
            # Nothing new is acknowledged, so the records wait in their spool for the drainer.
            records = ()
        if self._mirror.state.is_removed(experiment_id_of(trial_id)):
            # Nothing of a deleted experiment is stored, not even the cursor of its spool.
            metrics.INGEST_FENCED_ROWS.inc(len(records))
            return records[-1].sequence if records else 0
        records = await self._screened(spool_id, records)
        kept = admitted(self._mirror.state, allocation_id, records)
        metrics.INGEST_FENCED_ROWS.inc(len(records) - len(kept))
        # Left-out records count as settled too, so that the runner does not send them again.
        last_sequence = records[-1].sequence if records else 0
        return await self._writer.store(
            IngestBatch(spool_id, experiment_id_of(trial_id), trial_id, kept, last_sequence)
        )

    def is_closed(self, spool_id: str) -> bool:
        """Returns whether the caller's token is that of an attempt which has ended, and delivers no more."""
        allocation_id = spool_id.partition("/")[0]
        return bool(self._runner.allocation_id) and not may_deliver(
            self._mirror.state, allocation_id, self._mirror.ended_for(allocation_id), time.time()
        )

    def why_over(self, spool_id: str) -> str:
        """Returns why the attempt that fills this spool is over; "" while it is live."""
        return why_over(self._mirror.state, spool_id.partition("/")[0])

    async def _screened(self, spool_id: str, records: tuple[IngestRecord, ...]) -> tuple[IngestRecord, ...]:
        """Returns the records with plausible numbers: a rate that is no number would make the database refuse the whole
        batch for ever. Values of metrics are parsed outside of the event loop."""
        is_costly = any(map(has_values, records))
        screened = await off_loop(_plausible, records) if is_costly else _plausible(records)
        num_replaced = sum(after is not before for after, before in zip(screened, records, strict=True))
        if num_replaced:
            metrics.INGEST_IMPLAUSIBLE_VALUES.inc(num_replaced)
            self._deliveries.warn_implausible(spool_id)
        return screened


def _plausible(records: tuple[IngestRecord, ...]) -> tuple[IngestRecord, ...]:
    now = time.time()
    return tuple(plausible_record(record, now) for record in records)


def _check_sequences(spool_id: str, records: tuple[IngestRecord, ...]) -> None:
    previous = 0
    for record in records:
        if record.sequence <= previous:
            raise invalid(
                "ingest.order",
                f"spool {spool_id}: record {record.sequence} follows {previous}; number them from 1 upwards",
            )
        previous = record.sequence
