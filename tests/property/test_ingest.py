"""Whatever a runner sends again, cuts off or sends twice at once: each record of a spool is stored exactly once, in
order, and what was acknowledged is stored."""

from __future__ import annotations

import tempfile

import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gangline.domain.history import LogLine
from services.gateway.history import table
from services.gateway.history.database import open_database
from services.gateway.history.store import store_batches
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord
from tests.support.examples import examples

SPOOLS = st.sampled_from(["1.1.1/0", "1.1.1/1", "1.1.2/0"])


class Delivery(RuleBasedStateMachine):
    """A runner numbers its records and sends, from any one that is not acknowledged, a few. Answers may get lost."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = open_database(f"sqlite:///{self.folder.name}/history.db")
        self.acknowledged: dict[str, int] = {}
        self.sent: dict[str, int] = {}

    def batch(self, spool_id: str, num_records: int, back: int) -> IngestBatch:
        first = max(1, self.acknowledged.get(spool_id, 0) + 1 - back)
        records = tuple(
            IngestRecord(number, 0.0, LogLine(0, "a1", "stdout", f"{spool_id} {number}"))
            for number in range(first, first + num_records)
        )
        return IngestBatch(spool_id, 1, "1.1", records)

    @rule(
        orders=st.lists(st.tuples(SPOOLS, st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=4),
        is_answer_lost=st.booleans(),
    )
    def deliver(self, orders: list[tuple[str, int, int]], is_answer_lost: bool) -> None:
        """Several batches in one transaction, as they come over several streams."""
        batches = [self.batch(*order) for order in orders]
        stored, _ = store_batches(self.engine, batches, 0.0)
        for batch, sequence in zip(batches, stored, strict=True):
            last = batch.records[-1].sequence if batch.records else 0
            self.sent[batch.spool_id] = max(self.sent.get(batch.spool_id, 0), last)
            assert sequence == self.sent[batch.spool_id] or sequence >= last
            if not is_answer_lost:
                self.acknowledged[batch.spool_id] = sequence

    @rule()
    def restart(self) -> None:
        self.engine.dispose()
        self.engine = open_database(f"sqlite:///{self.folder.name}/history.db")

    @invariant()
    def every_record_once_and_in_order(self) -> None:
        with self.engine.connect() as connection:
            texts = list(connection.scalars(sa.select(table.logs.c.text).order_by(table.logs.c.id)))
        for spool_id, last in self.sent.items():
            own = [text for text in texts if text.startswith(spool_id + " ")]
            assert own == [f"{spool_id} {number}" for number in range(1, last + 1)]

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=examples(15), stateful_step_count=12, deadline=None)
