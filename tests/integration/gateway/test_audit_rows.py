"""The rows of the audit log on both databases: filters, pages, repeated requests, pruning, and the use of indexes."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from gangline.domain.audit import AuditFilter, AuditRecord, parse_place, place_of
from gangline.errors import ErrorKind, GanglineError
from services.gateway.audit.audit_log import Entry
from services.gateway.history import audit_rows as module
from services.gateway.history.audit_rows import AuditRows, AuditSweep
from services.gateway.history.database import open_database

DAY = 86400.0


def record(number: int = 0, **values: object) -> AuditRecord:
    fixed = {
        "id": 0, "at": 1000.0 + number, "actor_kind": "user", "actor": "ann", "credential": "token 1",
        "address": "10.0.0.1", "surface": "grpc", "action": "trial.kill", "object_kind": "trial",
        "object_id": f"7.{number}", "request_id": f"r{number}",
    }  # fmt: skip
    return AuditRecord(**{**fixed, **values})  # type: ignore[arg-type]


def store(rows: AuditRows, *records: AuditRecord) -> None:
    rows.store([Entry(f"key {time.monotonic_ns()} {number}", each) for number, each in enumerate(records)])


async def test_each_filter_selects_by_its_own_field(engine: sa.Engine) -> None:
    rows = AuditRows(engine)
    store(
        rows,
        record(0),
        record(1, actor="bob"),
        record(2, action="trial.profile"),
        record(3, action="trials.odd", object_kind="trials"),
        record(4, outcome="auth.not_owner"),
        record(5, address="10.0.0.2"),
    )
    for wanted, numbers in [
        (AuditFilter(), [5, 4, 3, 2, 1, 0]),
        (AuditFilter(user="bob"), [1]),
        (AuditFilter(action="trial"), [5, 4, 2, 1, 0]),
        (AuditFilter(action="trial.profile"), [2]),
        (AuditFilter(action="tr_al"), []),
        (AuditFilter(object="trial"), [5, 4, 2, 1, 0]),
        (AuditFilter(object="trial/7.4"), [4]),
        (AuditFilter(since=1002, until=1004), [3, 2]),
        (AuditFilter(outcome="done"), [5, 3, 2, 1, 0]),
        (AuditFilter(outcome="failed"), [4]),
        (AuditFilter(outcome="auth.not_owner"), [4]),
        (AuditFilter(address="10.0.0.2", user="ann"), [5]),
        (AuditFilter(user="an\0"), []),
    ]:
        assert [each.at - 1000 for each in await rows.list(wanted)] == numbers, wanted


async def test_pages_have_every_record_once_also_those_of_one_time(engine: sa.Engine) -> None:
    rows = AuditRows(engine)
    store(rows, *(record(number, at=1000.0 + number // 4) for number in range(10)))
    shown: list[AuditRecord] = []
    before = ""
    while page := await rows.list(AuditFilter(), 3, parse_place(before)):
        shown += page
        before = place_of(page[-1])
    assert [each.object_id for each in shown] == [f"7.{number}" for number in reversed(range(10))]


async def test_a_repeated_request_is_done_once_and_a_batch_is_written_once(engine: sa.Engine) -> None:
    rows = AuditRows(engine)
    first, again = record(), record(at=1001.0)
    rows.store([Entry("k1", first), Entry("k2", again)])
    rows.store([Entry("k2", again), Entry("k3", record(at=1002.0)), Entry("k4", record(at=1003.0, object_id="8.1"))])
    # A refused attempt and another user's request with the same id are no repetition.
    rows.store([Entry("k5", record(at=1004.0, outcome="auth.not_owner")), Entry("k6", record(at=1005.0, actor="bob"))])
    outcomes = [(each.at, each.outcome) for each in await rows.list(AuditFilter())]
    assert outcomes == [
        (1005.0, "done"), (1004.0, "auth.not_owner"), (1003.0, "done"), (1002.0, "repeated"), (1001.0, "repeated"),
        (1000.0, "done"),
    ]  # fmt: skip


async def test_old_records_are_deleted_in_small_steps(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PRUNED", 4)
    rows = AuditRows(engine)
    store(rows, *(record(number, at=number * DAY + 1) for number in range(12)))
    assert await rows.prune(9 * DAY) == 9
    assert [each.at // DAY for each in await rows.list(AuditFilter())] == [11, 10, 9]


async def test_a_gateway_that_keeps_records_for_ever_deletes_none(engine: sa.Engine) -> None:
    rows = AuditRows(engine)
    store(rows, record())
    await AuditSweep(rows, -1).run()
    assert len(await rows.list(AuditFilter())) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        AuditFilter(),
        AuditFilter(user="ann"),
        AuditFilter(action="trial.kill"),
        AuditFilter(object="trial/7.1"),
        AuditFilter(outcome="auth.not_owner"),
        AuditFilter(address="10.0.0.1"),
        AuditFilter(since=1.0),
    ],
    ids=str,
)
async def test_a_filter_reads_along_an_index(tmp_path: object, wanted: AuditFilter) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/audit.db")
    statement = module.select(wanted, 100, (5.0, 5))
    text = str(statement.compile(engine, compile_kwargs={"literal_binds": True}))
    with engine.connect() as connection:
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
    engine.dispose()
    # The whole table is neither read nor sorted.
    assert any("USING INDEX audit_by_" in line for line in plan), plan
    assert not any("TEMP B-TREE" in line for line in plan), plan


async def test_a_database_that_cannot_be_used_is_named_as_the_reason(tmp_path: object) -> None:
    engine = sa.create_engine(f"sqlite:////nowhere{tmp_path}/audit.db")
    with pytest.raises(GanglineError, match="cannot be read or written now") as refused:
        store(AuditRows(engine), record())
    assert refused.value.kind is ErrorKind.UNAVAILABLE
