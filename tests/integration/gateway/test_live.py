"""The stream of changes on a real gateway: deltas after a cursor, resumption, `reset`, and one writing for all."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline.domain.allocation import Allocation, Member, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import State
from gangline.errors import unavailable
from gangline.protocol import wire
from gangline.v1 import ingest_pb2
from services.common import keys
from services.common.etcd import Delete, EtcdClient, EtcdSettings, Put
from services.gateway.history.reader import Reader
from services.gateway.http.live import metrics_feed, route, stream
from services.gateway.http.live.shared_text import SharedTexts
from services.gateway.program import run_gateway
from tests.support.gateway import CLUSTER_TOKEN, Client, settings_in
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

STREAM = "/api/v1/stream"
EXPERIMENT = Experiment(7, "digits", "alice", "{}", "a" * 64, State.RUNNING)
TRIAL = Trial("7.1", 7, 1, state=State.RUNNING)


def put(record: Experiment | Trial | Agent | Allocation) -> Put:
    make_key: Any = {
        Experiment: keys.experiment, Trial: keys.trial, Agent: keys.agent, Allocation: keys.allocation
    }[type(record)]  # fmt: skip
    return Put(make_key(record.id), wire.encode(record))


@pytest.fixture
async def seen(etcd: EtcdClient, client: Client) -> Client:
    """A client of a gateway that has seen experiment 7 with trial 7.1 and its first attempt."""
    allocation = Allocation("7.1.1", "7.1", 7, 1, 1, "default", (), state=State.RUNNING)
    await etcd.commit([put(EXPERIMENT), put(TRIAL), put(allocation)])

    async def is_there() -> bool:
        return (await client.http.get("/api/v1/trials/7.1")).status_code == 200

    await until_async(is_there, "the gateway seeing trial 7.1")
    return client


class Events:
    """The events of one stream; the wait for each has a deadline."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last_id = ""

    async def next(self, name: str) -> Any:
        fields: dict[str, str] = {}
        async with asyncio.timeout(10):
            async for line in self._lines:
                key, _, value = line.partition(": ")
                if key:
                    fields[key] = value
                elif not line and "event" in fields:
                    assert fields["event"] == name, fields
                    self.last_id = fields["id"]
                    return json.loads(fields["data"])
        raise AssertionError("the stream ended")


@asynccontextmanager
async def follow(client: Client, last_id: str = "", **params: Any) -> AsyncIterator[Events]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with client.http.stream("GET", STREAM, params=params, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        events = Events(answer)
        await events.next("open")
        yield events


async def test_rows_that_match_come_with_their_fields_and_others_go(etcd: EtcdClient, seen: Client) -> None:
    wanted = {"experiments": "true", "experimentFilter": "owner = alice", "experimentFields": "name,state"}
    async with follow(seen, **wanted) as events:
        await etcd.commit([put(replace(EXPERIMENT, name="renamed"))])
        changes = await events.next("changes")
        assert changes == {"experiments": {"rows": [{"id": 7, "name": "renamed", "state": "RUNNING"}], "gone": []}}
        await etcd.commit([put(replace(EXPERIMENT, owner="bob"))])
        assert (await events.next("changes"))["experiments"] == {"rows": [], "gone": [7]}
        first_id = events.last_id
        # Several changes of one row between two events make one row.
        await etcd.commit([put(EXPERIMENT)])
        await etcd.commit([put(replace(EXPERIMENT, id=8, name="new"))])
        rows: dict[int, str] = {}
        while len(rows) < 2:
            rows |= {row["id"]: row["name"] for row in (await events.next("changes"))["experiments"]["rows"]}
        assert rows == {7: "digits", 8: "new"}
    # A client that comes back gets what it has missed, as one event.
    await etcd.commit([Delete(keys.experiment(8))])
    await until_async(lambda: is_gone(seen, 8), "the gateway seeing the deletion")
    async with follow(seen, first_id, **wanted) as events:
        changes = await events.next("changes")
        assert [row["id"] for row in changes["experiments"]["rows"]] == [7]
        assert changes["experiments"]["gone"] == [8]


async def is_gone(client: Client, number: int) -> bool:
    return (await client.http.get(f"/api/v1/experiments/{number}")).status_code == 404


async def test_a_page_and_the_stream_after_its_cursor_miss_nothing(etcd: EtcdClient, seen: Client) -> None:
    page = (await seen.http.get("/api/v1/tables/trials", params={"experimentId": 7, "fields": "batches"})).json()
    assert page["rows"] == [{"id": "7.1", "batches": 0}]
    other = Trial("8.1", 8, 1)
    await etcd.commit([put(replace(TRIAL, batches_completed=5)), put(other)])
    wanted = {"trials": "true", "experimentId": 7, "trialFields": "batches", "cursor": page["cursor"]}
    async with follow(seen, **wanted) as events:
        assert await events.next("changes") == {"trials": {"rows": [{"id": "7.1", "batches": 5}], "gone": []}}


async def test_agents_come_with_the_holders_of_their_slots(etcd: EtcdClient, seen: Client) -> None:
    agent = Agent("a1", "default", slots=(Slot("a1/0"), Slot("a1/1")))
    async with follow(seen, agents="true") as events:
        await etcd.commit([put(agent)])
        assert (await events.next("changes"))["agents"]["rows"][0]["allocationIdBySlotId"] == {}
        member = Member("a1", 0, ("a1/1",))
        held = Allocation("7.1.2", "7.1", 7, 2, 1, "default", (member,), state=State.RUNNING)
        await etcd.commit([put(held)])
        agents = (await events.next("changes"))["agents"]
        assert agents["rows"][0]["allocationIdBySlotId"] == {"a1/1": "7.1.2"}
        holder = {"trialId": "7.1", "experimentId": 7, "experimentName": "digits", "owner": "alice", "state": "RUNNING"}
        assert agents["holders"] == {"7.1.2": holder}
        await etcd.commit([Delete(keys.allocation("7.1.2"))])
        assert (await events.next("changes"))["agents"]["rows"][0]["allocationIdBySlotId"] == {}
        await etcd.commit([Delete(keys.agent("a1"))])
        assert (await events.next("changes"))["agents"] == {"rows": [], "gone": ["a1"], "holders": {}}


async def test_the_queue_comes_whole_and_then_by_changes(etcd: EtcdClient, seen: Client, leader: StandInLeader) -> None:
    async with follow(seen, queue="true") as events:
        queue = (await events.next("changes"))["queue"]
        assert (queue["isWhole"], [row["trialId"] for row in queue["rows"]]) == (True, ["7.1"])
        await etcd.commit([Delete(keys.allocation("7.1.1"))])
        queue = (await events.next("changes"))["queue"]
        assert (queue["isWhole"], queue["rows"], queue["gone"]) == (False, [], ["7.1"])


async def deliver(client: Client, first: int, last: int) -> None:
    records = [
        ingest_pb2.IngestRecord(
            sequence=number,
            at=1000.0 + number,
            metrics=ingest_pb2.MetricsPoint(group="training", batches_completed=number, metrics={"loss": 1 / number}),
        )
        for number in range(first, last + 1)
    ]
    requests = [ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=records)]
    stored = client.ingest.Ingest(iter(requests), metadata=client.runner_metadata("7.1.1"))
    assert [answer.stored_sequence async for answer in stored] == [last]


async def batches(events: Events, number: int) -> list[int]:
    found: list[int] = []
    while len(found) < number:
        found += [row["point"]["batchesCompleted"] for row in (await events.next("changes"))["metrics"]]
    return found


async def test_reports_come_after_the_cursor_each_once(seen: Client) -> None:
    await deliver(seen, 1, 3)
    async with follow(seen, metrics="7.1") as events:
        begin_id = events.last_id
        await deliver(seen, 4, 5)
        assert await batches(events, 2) == [4, 5]
        await deliver(seen, 6, 6)
        assert await batches(events, 1) == [6]
    await deliver(seen, 7, 9)
    async with follow(seen, events.last_id, metrics="7.1") as events:
        assert await batches(events, 3) == [7, 8, 9]
    # One that is further behind than what the gateway keeps reads by itself.
    async with follow(seen, begin_id, metrics="7.1") as events:
        assert await batches(events, 6) == [4, 5, 6, 7, 8, 9]


async def test_who_has_missed_too_much_is_told_to_read_anew(
    etcd: EtcdClient, seen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_feed, "MAX_BEHIND", 2)
    monkeypatch.setattr(stream, "MAX_ROWS", 2)
    async with follow(seen, metrics="7.1", experiments="true") as events:
        begin_id = events.last_id
    await deliver(seen, 1, 5)
    async with follow(seen, begin_id, metrics="7.1", experiments="true") as events:
        assert "read the pages anew" in (await events.next("reset"))["reason"]
        await deliver(seen, 6, 6)
        assert await batches(events, 1) == [6]
    # A revision from before the gateway's start.
    async with follow(seen, "1", experiments="true") as events:
        await events.next("reset")
    async with follow(seen, experiments="true", experimentFields="name") as events:
        begin_id = events.last_id
        await etcd.commit([put(replace(EXPERIMENT, id=number)) for number in range(10, 15)])
        await events.next("reset")
        await etcd.commit([put(replace(EXPERIMENT, id=10, name="again"))])
        changes = await events.next("changes")
        assert changes["experiments"]["rows"] == [{"id": 10, "name": "again"}]


async def test_after_a_reset_the_queue_comes_whole(
    etcd: EtcdClient, seen: Client, leader: StandInLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_ROWS", 2)
    async with follow(seen, queue="true", experiments="true", experimentFields="name") as events:
        assert (await events.next("changes"))["queue"]["isWhole"]
        # One event would tell of both, of which the client may drop no part.
        others = [put(replace(EXPERIMENT, id=number)) for number in (8, 9)]
        await etcd.commit([Delete(keys.allocation("7.1.1")), *others])
        await events.next("reset")
        queue = (await events.next("changes"))["queue"]
        assert (queue["isWhole"], queue["rows"]) == (True, [])


async def test_a_part_that_cannot_be_read_says_so_and_the_others_come(
    etcd: EtcdClient, seen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> Any:
        raise unavailable("history.unreadable", "the history cannot be read now: it is away")

    await deliver(seen, 1, 2)
    wanted = {"experiments": "true", "experimentFields": "name", "metrics": "7.1"}
    async with follow(seen, **wanted) as events:
        cursor = events.last_id
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "metrics_of", fail)
        stack = AsyncExitStack()
        events = await stack.enter_async_context(follow(seen, cursor, **wanted))
        assert (await events.next("problem"))["code"] == "history.unreadable"
        await etcd.commit([put(replace(EXPERIMENT, name="meanwhile"))])
        assert (await events.next("changes"))["experiments"]["rows"] == [{"id": 7, "name": "meanwhile"}]
        await deliver(seen, 3, 4)
    async with stack:
        assert await batches(events, 2) == [3, 4]
        assert (await events.next("problem"))["detail"] == ""
    # A stream that begins meanwhile has no place among the reports, so its pages are read anew.
    monkeypatch.setattr(stream, "LOOK_AGAIN_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "newest_metrics_id", fail)
        stack = AsyncExitStack()
        events = await stack.enter_async_context(follow(seen, **wanted))
        assert "it is away" in (await events.next("problem"))["detail"]
    async with stack:
        await events.next("reset")
        assert (await events.next("problem"))["detail"] == ""
        await deliver(seen, 5, 5)
        assert await batches(events, 1) == [5]


async def test_a_stream_goes_on_while_the_leader_changes(etcd: EtcdClient, seen: Client, leader: StandInLeader) -> None:
    request = Request("7.2", 7, "default", 2, submitted_at=5.0)
    await etcd.commit([put(replace(TRIAL, id="7.2", number=2)), Put(keys.request("7.2"), wire.encode(request))])

    async def reason_of(events: Events) -> str | None:
        """Returns the reason of the next change of the trial that waits."""
        while True:
            for row in (await events.next("changes")).get("queue", {"rows": []})["rows"]:
                if row["trialId"] == "7.2":
                    reason: dict[str, str] | None = row["reason"]
                    return reason["message"] if reason else None

    async with follow(seen, queue="true", experiments="true", experimentFields="name") as events:
        assert await reason_of(events) == "needs 2 slots; 1 is free"
        await leader.stop()
        assert await reason_of(events) is None
        await etcd.commit([put(replace(EXPERIMENT, name="leaderless"))])
        assert (await events.next("changes"))["experiments"]["rows"] == [{"id": 7, "name": "leaderless"}]
        second = StandInLeader(etcd, CLUSTER_TOKEN)
        await second.start()
        try:
            assert await reason_of(events) == "needs 2 slots; 1 is free"
        finally:
            await second.stop()


async def test_a_cursor_holds_over_a_compaction_and_not_at_a_gateway_that_began_later(
    etcd: EtcdClient, etcd_settings: EtcdSettings, seen: Client, tmp_path: Path
) -> None:
    wanted = {"experiments": "true", "experimentFields": "name"}
    async with follow(seen, **wanted) as events:
        cursor = events.last_id
    await etcd.commit([put(replace(EXPERIMENT, name="meanwhile"))])
    await etcd.commit([put(replace(EXPERIMENT, id=8))])
    await etcd.compact(await etcd.find_revision())
    # A gateway needs no history of etcd for what it has seen itself.
    async with follow(seen, cursor, **wanted) as events:
        rows = (await events.next("changes"))["experiments"]["rows"]
        assert sorted(row["name"] for row in rows) == ["digits", "meanwhile"]
    (tmp_path / "later").mkdir()
    async with run_gateway(settings_in(tmp_path / "later", etcd_settings)) as addresses:
        later = Client(addresses.grpc, addresses.http)
        async with follow(later, cursor, **wanted) as events:
            assert "read the pages anew" in (await events.next("reset"))["reason"]
            await etcd.commit([put(replace(EXPERIMENT, name="afterwards"))])
            assert (await events.next("changes"))["experiments"]["rows"] == [{"id": 7, "name": "afterwards"}]
        await later.close()


async def test_a_client_that_reads_nothing_is_cut_and_delays_no_other(
    etcd: EtcdClient, seen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "SEND_SECONDS", 3.0)
    monkeypatch.setattr(stream, "MAX_OF_USER", 2)
    host, _, port = seen.http_address.partition(":")
    # The kernel's buffers of a connection grow up to about 10 MB by themselves; these stay small.
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    slow.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(slow, (host, int(port)))
    asked = f"GET {STREAM}?experiments=true&experimentFields=name HTTP/1.1"
    head = f"{asked}\r\nHost: {seen.http_address}\r\nAuthorization: Bearer {seen.token}\r\n\r\n"
    await loop.sock_sendall(slow, head.encode())
    sent = 0
    async with follow(seen, experiments="true", experimentFields="name") as events:
        for number in range(40):
            name = f"{number} {'x' * 4500}"
            await etcd.commit([put(replace(EXPERIMENT, id=id_, name=name)) for id_ in range(10, 110)])
            rows = (await events.next("changes"))["experiments"]["rows"]
            assert {row["name"] for row in rows} == {name}
            sent += len(rows) * len(name)

        async def is_free() -> bool:
            async with seen.http.stream("GET", STREAM) as answer:
                return answer.status_code == 200

        await until_async(is_free, "the end of the stream that nothing reads")
    received = 0
    with slow, suppress(ConnectionResetError):
        while piece := await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 10):
            received += len(piece)
    assert 0 < received < sent / 2


async def test_rows_are_written_once_for_all_clients(
    etcd: EtcdClient, seen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    get = SharedTexts.get

    def count(self: SharedTexts, key: Any, make: Any) -> str:
        def make_counted() -> str:
            written.append(key)
            text: str = make()
            return text

        return get(self, key, make_counted)

    monkeypatch.setattr(SharedTexts, "get", count)

    async def take_one() -> None:
        async with follow(seen, experiments="true", experimentFields="name") as events:
            ready.release()
            assert (await events.next("changes"))["experiments"]["rows"] == [{"id": 7, "name": "renamed"}]

    ready = asyncio.Semaphore(0)
    clients = [asyncio.create_task(take_one()) for _ in range(10)]
    for _ in clients:
        await ready.acquire()
    await etcd.commit([put(replace(EXPERIMENT, name="renamed"))])
    await asyncio.gather(*clients)
    assert len([key for key in written if isinstance(key, tuple) and key[0] == "experiments"]) == 1


async def test_rows_of_trials_come_when_their_experiment_changes(etcd: EtcdClient, seen: Client) -> None:
    wanted = {"trials": "true", "trialFields": "state,experimentName", "trialFilter": "archived = false"}
    waiting = Trial("7.2", 7, 2, state=State.QUEUED)
    await etcd.commit([put(waiting), put(replace(EXPERIMENT, id=8)), put(Trial("8.1", 8, 1))])

    async def is_there() -> bool:
        return (await seen.http.get("/api/v1/trials/8.1")).status_code == 200

    await until_async(is_there, "the gateway seeing trial 8.1")
    async with follow(seen, **wanted) as events, follow(seen, experimentId=8, **wanted) as others:
        await etcd.commit([put(replace(EXPERIMENT, state=State.PAUSED))])
        rows = (await events.next("changes"))["trials"]["rows"]
        assert {(row["id"], row["state"]) for row in rows} == {("7.1", "RUNNING"), ("7.2", "PAUSED")}
        await etcd.commit([put(replace(EXPERIMENT, archived=True))])
        assert sorted((await events.next("changes"))["trials"]["gone"]) == ["7.1", "7.2"]
        # A row that was written for one client is not sent to another with an older name of the experiment.
        first_id = events.last_id
        await etcd.commit([put(replace(EXPERIMENT, name="one")), put(TRIAL)])
        assert (await events.next("changes"))["trials"]["rows"][0]["experimentName"] == "one"
        await etcd.commit([put(replace(EXPERIMENT, name="two"))])
        assert {row["experimentName"] for row in (await events.next("changes"))["trials"]["rows"]} == {"two"}
        async with follow(seen, first_id, **wanted) as late:
            assert {row["experimentName"] for row in (await late.next("changes"))["trials"]["rows"]} == {"two"}
        await etcd.commit([put(replace(EXPERIMENT, id=8, name="other"))])
        assert [row["id"] for row in (await others.next("changes"))["trials"]["rows"]] == ["8.1"]


async def test_a_cursor_of_another_cluster_begins_anew(
    etcd: EtcdClient, seen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CATCH_UP_SECONDS", 0.1)
    await deliver(seen, 1, 2)
    for cursor in (str(2**62), f"2.{2**62}"):
        async with follow(seen, cursor, experiments="true", experimentFields="name", metrics="7.1") as events:
            assert "read the pages anew" in (await events.next("reset"))["reason"]
            name = f"after {cursor}"
            await etcd.commit([put(replace(EXPERIMENT, name=name))])
            assert (await events.next("changes"))["experiments"]["rows"] == [{"id": 7, "name": name}]
    await deliver(seen, 3, 3)
    async with follow(seen, "2.2", metrics="7.1") as events:
        assert await batches(events, 1) == [3]


async def test_the_number_of_streams_is_bounded(seen: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_OF_USER", 2)
    for most in (1000, 1):
        monkeypatch.setattr(stream, "MAX_STREAMS", most)
        async with AsyncExitStack() as stack:
            for _ in range(min(most, 2)):
                await stack.enter_async_context(follow(seen))
            refused = await seen.http.get(STREAM)
            assert (refused.status_code, refused.json()["code"]) == (503, "stream.too_many")
            assert len(refused.json()["detail"].splitlines()) == 1

        # Streams that have ended do not count.
        async def is_free() -> bool:
            async with seen.http.stream("GET", STREAM) as answer:
                return answer.status_code == 200

        await until_async(is_free, "a place for another stream")


async def test_an_event_has_a_bounded_number_of_values(
    etcd: EtcdClient, seen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_VALUES", 9)
    async with follow(seen, experiments="true", experimentFields="name,state") as events:
        await etcd.commit([put(replace(EXPERIMENT, id=number)) for number in (10, 11, 12)])
        assert len((await events.next("changes"))["experiments"]["rows"]) == 3
        await etcd.commit([put(replace(EXPERIMENT, id=number)) for number in (10, 11, 12, 13)])
        await events.next("reset")


async def test_a_heartbeat_comes_while_nothing_changes(seen: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "HEARTBEAT_SECONDS", 0.2)
    async with asyncio.timeout(10), seen.http.stream("GET", STREAM) as answer:
        async for line in answer.aiter_lines():
            if line.startswith(": ping"):
                break
        else:
            raise AssertionError("the stream ended")


async def test_what_is_refused(seen: Client) -> None:
    for params, headers, code in (
        ({"experiments": "true", "experimentFilter": "nam = 1"}, {}, "table.field"),
        ({"trials": "true", "trialFields": "nam"}, {}, "table.field"),
        ({"cursor": "x"}, {}, "stream.cursor"),
        ({}, {"Last-Event-ID": "9" * 30}, "stream.cursor"),
        ({"metrics": "9.9"}, {}, "trial.not_found"),
        ({"metrics": [f"7.{number}" for number in range(101)]}, {}, "stream.trials"),
    ):
        answer = await seen.http.get(STREAM, params=params, headers=headers)
        assert answer.json()["code"] == code, params
    nobody = await seen.http.get(STREAM, headers={"Authorization": "Bearer nobody"})
    assert nobody.status_code == 401
