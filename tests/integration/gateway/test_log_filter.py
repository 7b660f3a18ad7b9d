"""Filters of logs on a real gateway with both databases: what matches, in the tail, in pages, and while following."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from gangline.client import Client as SdkClient
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.history import LogFilter, LogLine
from gangline.domain.state import LogLevel, Outcome, State
from gangline.errors import GanglineError
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.history import log_scan
from services.gateway.history.database import MIGRATIONS, open_database
from services.gateway.history.reader import Reader
from services.gateway.mirror.ingest_record import Scope
from services.gateway.program import run_gateway
from tests.support.gateway import USER_TOKEN, Client, GatewayProcess, add_user, settings_in
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async, within

# Rank, agent, stream, level and text of each line; the first one is of 1001 s.
LINES: list[tuple[int | None, str, str, int, str]] = [
    (None, "a1", "runner", types_pb2.LOG_LEVEL_INFO, "the gang of 2 is linked"),
    (0, "a1", "stdout", types_pb2.LOG_LEVEL_INFO, "epoch 1 loss 0.5"),
    (1, "a2", "stdout", types_pb2.LOG_LEVEL_DEBUG, "epoch 1 loss 0.6"),
    (2, "a2", "stderr", types_pb2.LOG_LEVEL_WARNING, "slow \x1b[31mloader\x1b[0m: 猫 100%_"),
    (3, "a2", "stderr", types_pb2.LOG_LEVEL_ERROR, "CUDA error: out of memory"),
    (0, "a1", "stdout", types_pb2.LOG_LEVEL_UNSPECIFIED, "of an older runner"),
    (0, "a1", "stderr", types_pb2.LOG_LEVEL_CRITICAL, "epoch 2 loss nan"),
]


def records(lines: list[tuple[int | None, str, str, int, str]], first: int = 1) -> list[ingest_pb2.IngestRecord]:
    return [
        ingest_pb2.IngestRecord(
            sequence=number,
            at=1000.0 + number,
            log=ingest_pb2.LogLine(rank=rank, agent_id=agent, stream=stream, text=text, level=level),  # type: ignore[arg-type]
        )
        for number, (rank, agent, stream, level, text) in enumerate(lines, first)
    ]


async def deliver(client: Client, made: list[ingest_pb2.IngestRecord]) -> None:
    batch = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=made)
    stream = client.ingest.Ingest(iter([batch]), metadata=client.runner_metadata("7.1.1"))
    assert [answer.stored_sequence async for answer in stream] == [made[-1].sequence]


async def has_trial(client: Client) -> bool:
    return (await client.http.get("/api/v1/trials/7.1")).status_code == 200


@pytest.fixture
async def running(etcd: EtcdClient) -> None:
    """Experiment 7 with trial 7.1 on four slots, both RUNNING."""
    config = '{"resources": {"slots_per_trial": 4}}'
    experiment = Experiment(7, "digits", "alice", config, "a" * 64, State.RUNNING)
    trial = Trial("7.1", 7, 1, state=State.RUNNING)
    await etcd.commit([Put(keys.experiment(7), wire.encode(experiment)), Put(keys.trial("7.1"), wire.encode(trial))])
    await add_user(etcd)


@pytest_asyncio.fixture
async def seen(running: None, url: str, etcd_settings: EtcdSettings, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a gateway on either database that has seen experiment 7 and has no log yet."""
    async with run_gateway(settings_in(tmp_path, etcd_settings, database_url=url)) as addresses:
        client = Client(addresses.grpc, addresses.http)
        await until_async(lambda: has_trial(client), "the gateway seeing trial 7.1")
        yield client
        await client.close()


async def read(client: Client, *, tail: int = 0, **parts: Any) -> list[str]:
    wanted = wire.to_proto(LogFilter(**parts))
    request = pb.StreamLogsRequest(experiment_id=7, trial_id="7.1", tail=tail, filter=wanted)
    pages = client.gateway.StreamLogs(request, metadata=client.metadata)
    return [log.line.text async for page in pages for log in page.logs]


async def get(client: Client, query: str) -> list[str]:
    answer = await client.http.get(f"/api/v1/trials/7.1/logs?{query}")
    assert answer.status_code == 200, answer.text
    return [row["line"]["text"] for row in answer.json()["logs"]]


TEXTS = [line[4] for line in LINES]
AFTER_3, BEFORE_6 = "timestampAfter=1970-01-01T00:16:43Z", "timestampBefore=1970-01-01T00:16:46Z"
FILTERS: list[tuple[dict[str, Any], str, list[int]]] = [
    ({}, "", [1, 2, 3, 4, 5, 6, 7]),
    ({"ranks": (0,)}, "rankIds=0", [2, 6, 7]),
    ({"ranks": (1, 3)}, "rankIds=1&rankIds=3", [3, 5]),
    ({"agent_ids": ("a2",)}, "agentIds=a2", [3, 4, 5]),
    ({"agent_ids": ("a2", "a1\0", "x' OR 1=1 --")}, "agentIds=a2&agentIds=x'%20OR%201=1", [3, 4, 5]),
    ({"levels": (LogLevel.INFO,)}, "levels=INFO", [1, 2, 6]),
    ({"levels": (LogLevel.ERROR, LogLevel.CRITICAL)}, "level=error", [5, 7]),
    ({"levels": (LogLevel.DEBUG, LogLevel.WARNING)}, "levels=LOG_LEVEL_DEBUG&levels=LOG_LEVEL_WARNING", [3, 4]),
    ({"since": 1003.0, "until": 1006.0}, f"{AFTER_3}&{BEFORE_6}", [3, 4, 5]),
    ({"since": 1006.5}, "timestampAfter=1970-01-01T01:16:46.5%2B01:00", [7]),
    ({"pattern": "loss (0|nan)"}, "searchText=loss+(0|nan)&enableRegex=true", [2, 3, 7]),
    ({"pattern": "slow loader"}, "searchText=SLOW+Loader", [4]),
    ({"pattern": "100%_$"}, "searchText=100%25_", [4]),
    ({"pattern": "[🐈猫]"}, "searchText=猫", [4]),
    ({"pattern": "loss", "ranks": (0,), "since": 1003.0}, f"searchText=loss&rankIds=0&{AFTER_3}", [7]),
    ({"pattern": "no such text"}, "searchText=no+such+text", []),
]  # fmt: skip


async def test_each_filter_on_both_surfaces(seen: Client) -> None:
    await deliver(seen, records(LINES))
    for parts, query, places in FILTERS:
        expected = [TEXTS[place - 1] for place in places]
        assert await read(seen, **parts) == expected, parts
        assert await get(seen, query) == expected, query
        assert await read(seen, tail=2, **parts) == expected[-2:], parts
        assert await get(seen, f"{query}&tail=2") == expected[-2:], query
    levels = [row["line"]["level"] for row in (await seen.http.get("/api/v1/trials/7.1/logs")).json()["logs"]]
    assert levels == ["INFO", "INFO", "DEBUG", "WARNING", "ERROR", "INFO", "CRITICAL"]


async def test_filter_that_cannot_be_carried_out_is_one_line_on_both_surfaces(seen: Client) -> None:
    await deliver(seen, records(LINES))
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"ranks": (4,)}, "rankIds=4", "there is no rank 4: each trial of experiment 7 has ranks 0 to 3"),
        ({"since": 2.0, "until": 1.0}, f"timestampAfter=1970-01-02T00:00:00Z&{BEFORE_6}", "since is later than until"),
        ({"pattern": "(x"}, "searchText=(x&enableRegex=true", "'(x' is no pattern of RE2: missing ): (x"),
        ({"pattern": "(?:a{999}){999}"}, "searchText=(?:a{999}){999}&enableRegex=true", "is no pattern of RE2"),
        ({"pattern": "x" * 1001}, f"searchText={'x' * 1001}&enableRegex=true", "the pattern has 1001 characters"),
    ]  # fmt: skip
    for parts, query, message in cases:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read(seen, **parts)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = rpc.error_of(failure.value, "")
        assert message in error.message
        for follow in ("", "&follow=true"):
            answer = await seen.http.get(f"/api/v1/trials/7.1/logs?{query}{follow}")
            assert (answer.status_code, answer.json()["code"]) == (400, error.code)
            assert message in answer.json()["detail"]
            assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("rankIds=x", "query.rankIds.0: expected an integer, found the string 'x'"),
        ("rankIds=-1", "there is no rank -1"),
        (
            "timestampAfter=yesterday",
            "query.timestampAfter: expected a time as 2030-12-31T23:59:59Z, found the string 'yesterday'",
        ),
        ("timestampAfter=2026-11-23T09:00:00", "query.timestampAfter: expected a time as 2030-12-31T23:59:59Z"),
        ("level=loud", "'loud' is no level; use one of debug, info, warning, error, critical"),
        ("levels=%1b[2J", "'\\x1b[2J' is no level"),
        ("level=info&levels=INFO", "level and levels are both given"),
        ("agentIds=", "'' is no agent's id"),
        ("enableRegex=perhaps", "query.enableRegex: expected true or false, found the string 'perhaps'"),
        ("tail=-1", "query.tail: must be at least 0, found -1"),
    ],
)
async def test_parameter_of_another_type(running: None, client: Client, query: str, detail: str) -> None:
    await until_async(lambda: has_trial(client), "the gateway seeing trial 7.1")
    answer = await client.http.get(f"/api/v1/experiments/7/logs?{query}")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(detail)


async def test_rare_matches_are_found_in_bounded_steps(seen: Client, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Every limit of a step is smaller than the log, so that a match is in each part of it."""
    monkeypatch.setattr(log_scan, "SCAN_ROWS", 10)
    monkeypatch.setattr(log_scan, "FETCH_ROWS", 3)
    lines = [(n % 4, "a1", "stdout", types_pb2.LOG_LEVEL_INFO, f"line {n}") for n in range(1, 101)]
    await deliver(seen, records(lines))  # type: ignore[arg-type]
    rare = "(24|49|74|99)$"
    expected = [f"line {n}" for n in range(1, 101) if n % 25 == 24]
    assert await read(seen, pattern=rare) == expected
    assert await read(seen, pattern=rare, tail=3) == expected[-3:]
    assert await read(seen, pattern=rare, tail=100) == expected
    assert await read(seen, since=1080.0, ranks=(2,)) == ["line 82", "line 86", "line 90", "line 94", "line 98"]
    assert await read(seen, since=1080.0, ranks=(2,), tail=2) == ["line 94", "line 98"]
    # Of each ten, six that stand side by side: a row that a step left out would be missing.
    dense = [f"line {n}" for n in range(1, 101) if n % 10 > 3]
    assert await read(seen, pattern="[4-9]$") == dense
    assert await read(seen, pattern="[4-9]$", tail=50) == dense[-50:]
    # A step that has no time left ends after one row, and the next one goes on behind it.
    monkeypatch.setattr(log_scan, "SCAN_SECONDS", 0.0)
    assert await read(seen, pattern="[4-9]$") == dense
    assert await read(seen, pattern=rare, tail=3) == expected[-3:]
    texts: list[str] = []
    after: int | None = 0
    num_pages = 0
    while after is not None:
        query = f"searchText={rare}&enableRegex=true&limit=1&afterId={after}"
        page = (await seen.http.get(f"/api/v1/trials/7.1/logs?{query}")).json()
        texts += [row["line"]["text"] for row in page["logs"]]
        assert len(page["logs"]) <= 1
        after, num_pages = page["nextAfterId"], num_pages + 1
    assert texts == expected
    assert num_pages > 4


async def test_event_loop_is_free_while_a_hostile_pattern_is_searched_for(seen: Client) -> None:
    letters = random.Random(1)
    text = "".join(letters.choice("xab") for _ in range(20_000))
    lines = [(0, "a1", "stdout", types_pb2.LOG_LEVEL_INFO, text) for _ in range(180)]
    await deliver(seen, records(lines))  # type: ignore[arg-type]
    scans = [asyncio.create_task(read(seen, pattern="[xa].{0,900}y")) for _ in range(6)]
    loop, num_turns = asyncio.get_running_loop(), 0
    until = loop.time() + 1.2
    while loop.time() < until:
        await asyncio.sleep(0.01)
        num_turns += 1
    assert not any(scan.done() for scan in scans), "the pattern is not slow"
    assert (await seen.http.get("/api/v1/experiments/7")).status_code == 200
    for scan in scans:
        scan.cancel()
    await asyncio.gather(*scans, return_exceptions=True)
    # A loop that searched itself would turn once for each step of SCAN_SECONDS, at most 6 times.
    assert num_turns > 18


async def test_follower_with_a_filter_gets_only_what_matches(seen: Client, leader: StandInLeader) -> None:
    await deliver(seen, records(LINES))
    wanted = wire.to_proto(LogFilter(levels=(LogLevel.ERROR,)))
    request = pb.StreamLogsRequest(experiment_id=7, follow=True, tail=5, filter=wanted)
    texts: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async for page in seen.gateway.StreamLogs(request, metadata=seen.metadata):
            for log in page.logs:
                texts.put_nowait(log.line.text)

    following = asyncio.create_task(follow())
    assert await within(10, texts.get()) == TEXTS[4]
    more = [
        (0, "a1", "stdout", types_pb2.LOG_LEVEL_INFO, "no error"),
        (0, "a1", "stderr", types_pb2.LOG_LEVEL_ERROR, "an error"),
    ]
    await deliver(seen, records(more, len(LINES) + 1))  # type: ignore[arg-type]
    assert await within(10, texts.get()) == "an error"
    await leader.end(7, Outcome.COMPLETED)
    await within(20, following)
    assert texts.empty()


async def test_first_answer_settles_an_empty_tail(seen: Client) -> None:
    """A client that has no answer yet asks for the tail again after a lost connection."""
    request = pb.StreamLogsRequest(experiment_id=7, follow=True, tail=2)
    following = aiter(seen.gateway.StreamLogs(request, metadata=seen.metadata))
    first = await within(10, anext(following))
    assert list(first.logs) == []


async def test_sse_that_resumes_minds_no_tail(seen: Client, leader: StandInLeader) -> None:
    await deliver(seen, records(LINES))
    rows = (await seen.http.get("/api/v1/trials/7.1/logs?level=warning")).json()["logs"]
    await leader.end(7, Outcome.COMPLETED)
    resumed = await seen.http.get(
        "/api/v1/trials/7.1/logs?follow=true&tail=1&level=warning", headers={"Last-Event-ID": str(rows[0]["id"])}
    )
    assert resumed.text.count("event: log") == 2
    assert "out of memory" in resumed.text
    assert "loss nan" in resumed.text


async def test_lines_of_an_earlier_version_count_as_info(url: str) -> None:
    """The database has the tables of the first migration, and a line in them."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            sa.text(
                "INSERT INTO logs (experiment_id, trial_id, at, rank, agent_id, stream, text) "
                "VALUES (7, '7.1', 5.0, 0, 'a1', 'stderr', 'old')"
            )
        )
    engine.dispose()
    migrated = open_database(url)
    reader = Reader(migrated)
    for levels, num_lines in (((LogLevel.INFO,), 1), ((LogLevel.WARNING, LogLevel.DEBUG), 0), ((), 1)):
        query = log_scan.LogQuery(LogFilter(levels=levels))
        rows = (await reader.logs_after(Scope(7), 0, 9, query)).rows
        assert [row.line for row in rows] == [LogLine(0, "a1", "stderr", "old", LogLevel.INFO)] * num_lines
    reader.close()
    migrated.dispose()


@pytest_asyncio.fixture
async def gateway(running: None, etcd_settings: EtcdSettings, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    process = GatewayProcess(tmp_path, etcd_settings.endpoints[0])
    await process.start()
    yield process
    await process.end()


async def test_sdk_goes_on_after_the_gateway_was_killed(gateway: GatewayProcess, leader: StandInLeader) -> None:
    """Lines that match before, during and after the outage arrive once each and in order, and no other lines."""
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    await until_async(lambda: has_trial(client), "the gateway seeing trial 7.1")
    lines = [(n % 2, "a1", "stdout", types_pb2.LOG_LEVEL_INFO, f"line {n}") for n in range(1, 1401)]
    await deliver(client, records(lines[:1200]))  # type: ignore[arg-type]
    with SdkClient(gateway.addresses["grpc"], USER_TOKEN, retry_seconds=60) as sdk:
        # The tail counts once, at the beginning: more lines than the tail has match after the outage.
        entries = sdk.stream_logs(7, tail=30, follow=True, ranks=[1], pattern=r"line \d*[13579]$")
        got = [await within(30, asyncio.to_thread(next, entries)) for _ in range(20)]
        await gateway.end()
        await gateway.start()
        await until_async(lambda: has_trial(client), "the gateway seeing trial 7.1 again")
        await deliver(client, records(lines[1200:], 1201))  # type: ignore[arg-type]
        got += [await within(30, asyncio.to_thread(next, entries)) for _ in range(110)]
        await leader.end(7, Outcome.COMPLETED)
        assert await within(30, asyncio.to_thread(next, entries, None)) is None
    assert [entry.text for entry in got] == [f"line {n}" for n in range(1141, 1401) if n % 2]
    await client.close()


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"level": "loud"}, "logs.level"),
        ({"level": 5}, "logs.level"),
        ({"since": "10m"}, "logs.time"),
        ({"until": float("nan")}, "logs.time"),
        ({"since": 2, "until": 1}, "logs.order"),
        ({"ranks": "x"}, "logs.rank"),
        ({"ranks": -1}, "logs.rank"),
        ({"agents": [5]}, "logs.agent"),
        ({"pattern": b"x"}, "logs.pattern"),
    ],
)
async def test_sdk_refuses_a_bad_filter_before_it_calls(part: dict[str, Any], code: str) -> None:
    with SdkClient("127.0.0.1:1", "token") as sdk, pytest.raises(GanglineError) as failure:
        next(sdk.stream_logs(7, **part))
    assert failure.value.code == code
