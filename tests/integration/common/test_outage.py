"""The etcd client during an outage of etcd, and afterwards: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gangline.errors import GanglineError
from services.common.etcd import EtcdClient, EtcdSettings, Listing, Put, WatchBatch
from services.common.etcd.session import EtcdSession
from services.common.etcd.watch import EtcdWatch
from tests.support.etcd import EtcdServer
from tests.support.wait import until, until_async, within

ROOT = "/gangline/v1/test/"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """One that the test may kill."""
    server = EtcdServer(tmp_path / "etcd")
    yield server
    server.stop()


@pytest_asyncio.fixture
async def client(server: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdSettings(endpoints=(server.address,), try_seconds=0.5)) as client:
        yield client


async def test_watch_goes_on_after_etcd_was_killed_and_started_again(server: EtcdServer, client: EtcdClient) -> None:
    first = (await client.commit([Put(ROOT + "0", b"")])).revision
    seen: list[WatchBatch] = []
    watching = asyncio.create_task(_collect(client, first, seen))
    await until(lambda: len(seen) == 1, "the first batch")
    server.kill()
    await asyncio.to_thread(server.restart)
    revisions = [first] + [(await client.commit([Put(f"{ROOT}{number}", b"")])).revision for number in range(1, 6)]

    await until(lambda: len(seen) == 6, "every batch")
    assert [batch.revision for batch in seen] == revisions
    await _end(watching)


async def test_calls_wait_for_etcd_to_come_back(server: EtcdServer, client: EtcdClient) -> None:
    server.kill()
    committing = asyncio.create_task(client.commit([Put(ROOT + "patient", b"")]))
    await asyncio.to_thread(server.restart)
    assert (await within(10, committing)).is_committed


async def test_a_lease_outlives_an_outage(server: EtcdServer, client: EtcdClient) -> None:
    async with client.keep_lease(3, beat_seconds=0.2) as lease:
        await client.commit([Put(ROOT + "leased", b"", lease.id)])
        server.pause()
        await until(lambda: not lease.is_fresh, "staleness: no beat was answered for a TTL")
        assert not lease.lost.is_set()
        server.kill()
        await asyncio.to_thread(server.restart)
        await until(lambda: lease.is_fresh, "an answered beat")
        assert await client.get(ROOT + "leased") is not None


async def test_a_lease_that_ended_in_a_pause_of_its_holder_is_lost(server: EtcdServer, client: EtcdClient) -> None:
    """The holder beats too seldom, as one does that was stopped; its next beat tells it."""
    async with client.keep_lease(1, beat_seconds=2.5) as lease:
        await client.commit([Put(ROOT + "leased", b"", lease.id)])
        await within(5, lease.lost.wait())
        assert not lease.is_fresh
        assert await client.get(ROOT + "leased") is None


async def test_list_watch_lists_again_after_a_compaction(client: EtcdClient) -> None:
    """Its reader pauses after the listing; what happens meanwhile is compacted away."""
    await client.commit([Put(ROOT + "old", b"1")])
    async with contextlib.aclosing(client.list_watch(ROOT)) as changes:
        assert isinstance(await within(5, anext(changes)), Listing)
        await client.commit([Put(ROOT + "old", b"2")])
        last = (await client.commit([Put(ROOT + "new", b"3")])).revision
        await client.compact(last)

        listing = await within(5, anext(changes))
        assert isinstance(listing, Listing)
        assert {item.key: item.value for item in listing.items} == {ROOT + "old": b"2", ROOT + "new": b"3"}
        revision = (await client.commit([Put(ROOT + "newer", b"4")])).revision
        batch = await within(5, anext(changes))
        assert isinstance(batch, WatchBatch)
        assert batch.revision == revision


async def test_list_watch_of_a_reader_shows_all_after_an_outage_with_compaction(
    server: EtcdServer, client: EtcdClient
) -> None:
    state: dict[str, bytes] = {}
    mirroring = asyncio.create_task(_mirror(client, state))
    await client.commit([Put(ROOT + "a", b"1")])
    await until(lambda: state == {ROOT + "a": b"1"}, "the first change")
    server.kill()
    await asyncio.to_thread(server.restart)
    async with EtcdClient(server.settings) as other:
        for number in range(20):
            last = (await other.commit([Put(ROOT + "a", b"%d" % number)])).revision
        await other.compact(last)
        await other.commit([Put(ROOT + "b", b"2")])
    await until(lambda: state == {ROOT + "a": b"19", ROOT + "b": b"2"}, "the state after the outage")
    await _end(mirroring)


async def test_an_idle_watch_keeps_up_with_compactions(
    server: EtcdServer, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks how far etcd has come, so it resumes after what was compacted while nothing happened to its own keys."""
    monkeypatch.setattr("services.common.etcd.watch.PROGRESS_SECONDS", 0.05)
    first = (await client.commit([Put(ROOT + "a", b"1")])).revision
    session = EtcdSession(EtcdSettings(endpoints=(server.address,), try_seconds=0.5))
    watch = EtcdWatch(session, ROOT, first, can_ask_progress=True)
    batches = watch.batches()
    assert (await within(5, anext(batches))).revision == first
    waiting = asyncio.create_task(_next(batches))
    for _ in range(5):
        last = (await client.commit([Put("/gangline/v1/elsewhere", b"")])).revision
    await until(lambda: watch.next_revision == last + 1, "progress past the other keys")
    await client.compact(last)
    server.kill()
    await asyncio.to_thread(server.restart)
    revision = (await client.commit([Put(ROOT + "a", b"2")])).revision
    assert (await within(5, waiting)).revision == revision
    await batches.aclose()
    await session.rotation.close()


async def test_an_outage_past_the_deadline_is_named(server: EtcdServer) -> None:
    settings = EtcdSettings(endpoints=(server.address,), try_seconds=0.2, deadline_seconds=0.8)
    async with EtcdClient(settings) as client:
        server.pause()
        with pytest.raises(GanglineError) as caught:
            await client.get(ROOT + "x")
        server.resume()
        assert caught.value.code == "etcd.unreachable"

        async def is_back() -> bool:
            with contextlib.suppress(GanglineError):
                await client.get(ROOT + "x")
                return True
            return False

        await until_async(is_back, "an answer after the outage")


async def _next(batches: AsyncIterator[WatchBatch]) -> WatchBatch:
    return await anext(batches)


async def _collect(client: EtcdClient, revision: int, seen: list[WatchBatch]) -> None:
    async for batch in client.watch(ROOT, revision):
        seen.append(batch)


async def _mirror(client: EtcdClient, state: dict[str, bytes]) -> None:
    async for change in client.list_watch(ROOT):
        if isinstance(change, Listing):
            state.clear()
            state.update({item.key: item.value for item in change.items})
            continue
        for event in change.events:
            if event.value is None:
                state.pop(event.key, None)
            else:
                state[event.key] = event.value


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
