"""The history on both databases: exactly once, in order, migrated when it opens. Blocking code, called directly."""

from __future__ import annotations

import asyncio
import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from gangline.domain.history import LogLine, MetricsPoint, Newest, ProgressPoint
from gangline.errors import GanglineError
from services.gateway.history import reader as reader_module
from services.gateway.history import table
from services.gateway.history.database import measure_database, open_database, writing
from services.gateway.history.reader import Reader
from services.gateway.history.store import store_batches
from services.gateway.history.writer import Writer
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord, Scope
from tests.support.postgres import Postgres
from tests.support.source import ROOT
from tests.support.wait import within


def line(sequence: int, text: str = "") -> IngestRecord:
    return IngestRecord(sequence, float(sequence), LogLine(0, "a1", "stdout", text or f"line {sequence}"))


def batch(*records: IngestRecord, spool_id: str = "1.1.1/0", trial_id: str = "1.1") -> IngestBatch:
    return IngestBatch(spool_id, int(trial_id.partition(".")[0]), trial_id, records)


def texts(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(table.logs.c.text).order_by(table.logs.c.id)))


def test_repeated_and_overlapping_batches_are_stored_once(engine: sa.Engine) -> None:
    stored, _ = store_batches(engine, [batch(line(1), line(2)), batch(line(1), line(2), line(3))], 0.0)
    assert stored == [3, 3]
    stored, count = store_batches(engine, [batch(line(2), line(3), line(4)), batch(line(1), spool_id="1.1.1/1")], 0.0)
    assert stored == [4, 1]
    assert count.repeated == 2
    assert texts(engine) == ["line 1", "line 2", "line 3", "line 4", "line 1"]


def test_batch_without_records_tells_how_far_the_spool_is_stored(engine: sa.Engine) -> None:
    store_batches(engine, [batch(line(1), line(5))], 0.0)
    assert store_batches(engine, [batch(), batch(spool_id="9.1.1/0", trial_id="9.1")], 0.0)[0] == [5, 0]


def test_failed_transaction_keeps_neither_rows_nor_cursor(engine: sa.Engine) -> None:
    bad = IngestRecord(2, 2.0, MetricsPoint("training", 2**70, {}))
    with pytest.raises(Exception):  # noqa: B017, PT011  each driver has an error of its own
        store_batches(engine, [batch(line(1), bad)], 0.0)
    assert texts(engine) == []
    assert store_batches(engine, [batch(line(1))], 0.0)[0] == [1]
    assert texts(engine) == ["line 1"]


def test_opening_again_keeps_what_is_there(url: str, engine: sa.Engine) -> None:
    store_batches(engine, [batch(line(1))], 0.0)
    again = open_database(url)
    assert texts(again) == ["line 1"]
    again.dispose()


def test_size_of_the_database_grows_with_its_content(engine: sa.Engine) -> None:
    empty = measure_database(engine)
    assert empty > 10_000
    store_batches(engine, [batch(*(line(number, "x" * 1000) for number in range(1, 501)))], 0.0)
    assert measure_database(engine) > empty + 400_000


def test_role_and_database_of_the_docs_are_enough(postgres: Postgres) -> None:
    """As docs/operation.md makes them. The role owns its database and has no other right."""
    page = (ROOT / "docs" / "operation.md").read_text()
    [block] = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    superuser = sa.create_engine(
        postgres.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with superuser.connect() as connection:
        for statement in block.strip().split(";")[:-1]:
            connection.execute(sa.text(statement))
    superuser.dispose()
    engine = open_database(postgres.url.replace("postgres@/postgres", "gangline@/gangline"))
    store_batches(engine, [batch(line(1))], 0.0)
    assert texts(engine) == ["line 1"]
    assert measure_database(engine) > 0
    engine.dispose()


def test_gateways_that_start_together_migrate_once(url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        engines = list(threads.map(open_database, [url] * 4))
    assert texts(engines[0]) == []
    for engine in engines:
        engine.dispose()


def test_migrations_make_exactly_the_declared_tables(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    assert set(inspector.get_table_names()) == {*table.metadata.tables, "alembic_version"}
    for declared in table.metadata.sorted_tables:
        columns = {column["name"]: column["nullable"] for column in inspector.get_columns(declared.name)}
        assert columns == {column.name: column.nullable for column in declared.columns}
        assert {index["name"] for index in inspector.get_indexes(declared.name)} == {x.name for x in declared.indexes}


def test_database_of_a_newer_version_is_refused(url: str, engine: sa.Engine) -> None:
    with writing(engine) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(GanglineError) as failure:
        open_database(url)
    assert failure.value.code == "database.newer"


def test_writers_of_several_gateways_make_rows_visible_in_the_order_of_their_ids(url: str, engine: sa.Engine) -> None:
    """Else a follower that has seen a greater id would never look for a smaller one that came later."""
    other = open_database(url)

    def write(turn: int) -> None:
        store_batches((engine, other)[turn % 2], [batch(line(1), spool_id=f"1.1.{turn + 1}/0")], 0.0)

    seen, last_id, backwards = 0, 0, []
    with ThreadPoolExecutor(4) as threads:
        writes = [threads.submit(write, turn) for turn in range(60)]
        while seen < 60:
            with engine.connect() as connection:
                ids = list(connection.scalars(sa.select(table.logs.c.id).order_by(table.logs.c.id)))
            backwards += [row_id for row_id in ids[:seen] if row_id > last_id]
            seen, last_id = len(ids), ids[-1] if ids else 0
            assert not any(done.done() and done.exception() for done in writes)
    assert backwards == []
    other.dispose()


async def test_reader_pages_filters_and_finds_the_newest(engine: sa.Engine) -> None:
    store_batches(
        engine,
        [
            batch(line(1), IngestRecord(2, 2.0, MetricsPoint("training", 1, {"loss": 2.0})), line(3)),
            batch(
                IngestRecord(4, 4.0, MetricsPoint("validation", 2, {"accuracy": math.inf})),
                IngestRecord(5, 5.0, MetricsPoint("training", 2, {"loss": 1.0})),
                IngestRecord(6, 6.0, ProgressPoint(2, 10, 99.5)),
            ),
            batch(line(1, "other trial"), spool_id="1.2.1/0", trial_id="1.2"),
            batch(line(1, "other experiment"), spool_id="2.1.1/0", trial_id="2.1"),
        ],
        0.0,
    )
    reader = Reader(engine)
    first = await reader.logs_after(Scope(1), 0, 2)
    rest = await reader.logs_after(Scope(1), first.last_id, 2)
    assert [row.line.text for row in (*first.rows, *rest.rows)] == ["line 1", "line 3", "other trial"]
    assert (first.is_last, rest.is_last) == (False, True)
    tail = await reader.find_tail(Scope(1, "1.1"), 1)
    assert [row.line.text for row in (await reader.logs_after(Scope(1, "1.1"), tail, 9)).rows] == ["line 3"]
    assert await reader.find_tail(Scope(1), 50) == 0
    training = (await reader.metrics_after(Scope(1, "", "training"), 0, 9)).rows
    assert [row.point.metrics["loss"] for row in training] == [2.0, 1.0]
    newest = (await reader.newest(["1.1", "1.2", "7.7"]))["1.1"]
    assert newest == Newest(
        ProgressPoint(2, 10, 99.5),
        MetricsPoint("training", 2, {"loss": 1.0}),
        MetricsPoint("validation", 2, {"accuracy": math.inf}),
        progress_attempt=1,
    )
    reader.close()


async def test_metrics_that_are_no_numbers_are_kept_beside_those_that_are(engine: sa.Engine) -> None:
    reader = Reader(engine)
    text = '{"note": "NUL \\u0000, 猫", "shares": [0.5, NaN]}'
    points = [MetricsPoint("training", 1, {"loss": 1.0}, text), MetricsPoint("training", 2, {"loss": 2.0})]
    store_batches(engine, [batch(*(IngestRecord(number, 1.0, point) for number, point in enumerate(points, 1)))], 0.0)
    page = await reader.metrics_after(Scope(1), 0, 9)
    assert [row.point for row in page.rows] == points
    assert page.rows[0].point.values["note"] == "NUL \x00, 猫"
    assert [row.point.values_json for row in (await reader.metrics_after(Scope(1), 0, 9, has_values=False)).rows] == [
        "",
        "",
    ]
    # A series has the numbers alone.
    series = await reader.series(Scope(1, "1.1", "training"), "note", 10)
    assert (series.num_values, series.points) == (0, ())
    reader.close()


async def test_a_page_ends_before_its_values_fill_the_memory(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "MAX_PAGE_VALUE_BYTES", 1000)
    reader = Reader(engine)
    text = f'{{"note": "{"x" * 400}"}}'
    records = [IngestRecord(number, 1.0, MetricsPoint("training", number, {}, text)) for number in range(1, 8)]
    store_batches(engine, [batch(*records)], 0.0)
    seen: list[int] = []
    sizes: list[int] = []
    is_last, after_id = False, 0
    while not is_last:
        page = await reader.metrics_after(Scope(1), after_id, 9)
        seen += [row.point.batches_completed for row in page.rows]
        sizes.append(len(page.rows))
        is_last, after_id = page.is_last, page.rows[-1].id
    assert (seen, sizes) == (list(range(1, 8)), [3, 3, 1])
    reader.close()


async def test_texts_may_hold_anything(engine: sa.Engine) -> None:
    reader = Reader(engine)
    store_batches(engine, [batch(line(1, "NUL \x00, tab \t, 猫 🐈, quote ' \" %s"), line(2, "x" * 300_000))], 0.0)
    rows = (await reader.logs_after(Scope(1), 0, 9)).rows
    assert rows[0].line.text == "NUL \N{REPLACEMENT CHARACTER}, tab \t, 猫 🐈, quote ' \" %s"
    assert len(rows[1].line.text) == 300_000
    store_batches(engine, [batch(IngestRecord(3, 3.0, MetricsPoint("a\x00b", 7, {})))], 0.0)
    [metric] = (await reader.metrics_after(Scope(1, "", "a\x00b"), 0, 9)).rows
    assert metric.point.batches_completed == 7
    reader.close()


async def test_batch_that_cannot_be_stored_fails_alone(engine: sa.Engine) -> None:
    told: set[int] = set()
    writer = Writer(engine, told.update)
    bad = batch(IngestRecord(1, 1.0, MetricsPoint("training", 2**70, {})), spool_id="3.1.1/0", trial_id="3.1")
    many = [batch(line(1), spool_id=f"1.1.{number}/0") for number in range(1, 20)]
    answers = await within(
        20, asyncio.gather(*map(writer.store, [*many[:10], bad, *many[10:]]), return_exceptions=True)
    )
    failures = [answer for answer in answers if answer != 1]
    assert isinstance(failures[0], GanglineError)
    assert failures[0].code == "history.not_stored"
    assert len(failures) == 1
    assert len(texts(engine)) == 19
    assert told == {1}
    await writer.close()


async def test_outage_of_postgres_fails_batches_until_it_is_back(postgres: Postgres) -> None:
    engine = open_database(postgres.url)
    writer = Writer(engine, lambda _: None)
    spool = {"spool_id": "77.1.1/0", "trial_id": "77.1"}
    assert await writer.store(batch(line(1), **spool)) == 1
    await asyncio.to_thread(postgres.stop)
    with pytest.raises(GanglineError) as failure:
        await writer.store(batch(line(2), **spool))
    assert failure.value.code == "history.not_stored"
    await asyncio.to_thread(postgres.launch)
    assert await writer.store(batch(line(2), **spool)) == 2
    await writer.close()
    engine.dispose()
