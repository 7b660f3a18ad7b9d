"""The buffer of the audit log: its order, and what becomes of it while the database is away, slow or refusing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from gangline.domain.audit import AuditRecord
from gangline.errors import unavailable
from services.gateway.audit import audit_log as module
from services.gateway.audit.audit_log import AuditLog, Entry
from services.gateway.mirror import metrics
from tests.support.wait import until_async


class Database:
    """Keeps what is written. is_away: refuses everything. refused: ids of objects whose records it refuses."""

    def __init__(self) -> None:
        self.is_away = False
        self.refused: set[str] = set()
        self.written: list[Entry] = []
        self.num_tries = 0
        self.gate = threading.Event()
        self.gate.set()

    def store(self, entries: Sequence[Entry]) -> None:
        self.num_tries += 1
        self.gate.wait(10)
        if self.is_away:
            raise unavailable("audit.unavailable", "away")
        if any(entry.record.object_id in self.refused for entry in entries):
            raise ValueError("a value that no database takes")
        self.written += entries

    @property
    def ids(self) -> list[str]:
        return [entry.record.object_id or entry.record.action for entry in self.written]


def record(own_id: object) -> AuditRecord:
    return AuditRecord(0, 1.0, "user", "ann", "token 1", "10.0.0.1", "grpc", "trial.kill", "trial", str(own_id))


@asynccontextmanager
async def running(database: Database, max_bytes: int = 1 << 20) -> AsyncIterator[AuditLog]:
    log = AuditLog(database.store, max_bytes)
    log.start()
    yield log
    await log.close()


async def until_(is_so: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return is_so()

    await until_async(check, what)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(module, "CLOSE_SECONDS", 1.0)


async def test_records_are_written_in_their_order_and_in_batches() -> None:
    database = Database()
    async with running(database) as log:
        for number in range(1200):
            log.add(record(number))
        await until_(lambda: len(database.written) == 1200, "all records")
    assert database.ids == [str(number) for number in range(1200)]
    assert database.num_tries == 3


async def test_full_batches_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 60.0)
    database = Database()
    async with running(database) as log:
        for number in range(2 * module.MAX_BATCH + 1):
            log.add(record(number))
        await until_(lambda: len(database.written) >= 2 * module.MAX_BATCH, "the full batches")
        assert len(database.written) == 2 * module.MAX_BATCH


async def test_what_waits_for_the_database_is_written_later_in_order() -> None:
    database = Database()
    database.is_away = True
    async with running(database) as log:
        log.add(record(1))
        await until_(lambda: database.num_tries > 1, "the second try")
        log.add(record(2))
        database.is_away = False
        await until_(lambda: len(database.written) == 2, "both records")
    assert database.ids == ["1", "2"]


async def test_adding_does_not_wait_for_a_slow_database() -> None:
    database = Database()
    database.gate.clear()
    async with running(database) as log:
        log.add(record(1))
        await until_(lambda: database.num_tries == 1, "the first try")
        started = asyncio.get_running_loop().time()
        for number in range(2, 102):
            log.add(record(number))
        assert asyncio.get_running_loop().time() - started < 0.5
        database.gate.set()
        await until_(lambda: len(database.written) == 101, "all records")


async def test_what_is_dropped_is_counted_and_becomes_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    database = Database()
    database.is_away = True
    before = metrics.AUDIT_DROPPED._value.get()
    async with running(database, max_bytes=3 * 900) as log:
        for number in range(10):
            log.add(record(number))
        database.is_away = False
        await until_(lambda: "audit.dropped" in database.ids, "the record of the dropped ones")
    kept = database.ids[:-1]
    assert kept == [str(number) for number in range(len(kept))]
    num_dropped = 10 - len(kept)
    assert database.written[-1].record.changes["records"] == {"new": num_dropped}
    assert metrics.AUDIT_DROPPED._value.get() - before == num_dropped > 0
    assert capsys.readouterr().out.count("are dropped") == 1


async def test_a_record_that_the_database_refuses_takes_no_other_with_it() -> None:
    database = Database()
    database.refused = {"2"}
    async with running(database) as log:
        for number in (1, 2, 3):
            log.add(record(number))
        await until_(lambda: len(database.written) == 3, "the others")
    assert database.ids == ["1", "3", "audit.dropped"]


async def test_a_gateway_that_stops_writes_what_waits() -> None:
    database = Database()
    async with running(database) as log:
        log.add(record(1))
    assert database.ids == ["1"]


async def test_a_stop_without_a_database_ends_in_time_and_says_what_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = Database()
    database.is_away = True
    async with running(database) as log:
        log.add(record(1))
    assert "are lost" in capsys.readouterr().out
