"""Get, list, commit and watch on a real etcd, and what the client says when there is none."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.common.etcd import (
    Compacted,
    Delete,
    EtcdClient,
    EtcdSettings,
    Event,
    Guard,
    Listing,
    Put,
    WatchBatch,
)
from services.common.etcd.client import PAGE_KEYS
from tests.support.wait import within

ROOT = "/gangline/v1/test/"


async def test_commit_is_refused_when_a_guard_does_not_hold(etcd: EtcdClient) -> None:
    key = ROOT + "guarded"
    created = await etcd.commit([Put(key, b"one")], [Guard(key, 0)])
    again = await etcd.commit([Put(key, b"two")], [Guard(key, 0)])

    assert created.is_committed
    assert not again.is_committed
    assert [(item.key, item.value, item.create_revision) for item in again.found] == [(key, b"one", created.revision)]
    stored = await etcd.get(key)
    assert stored is not None
    assert stored.value == b"one"


async def test_commit_compares_the_mod_revision_too(etcd: EtcdClient) -> None:
    key = ROOT + "modified"
    created = (await etcd.commit([Put(key, b"one")])).revision
    await etcd.commit([Put(key, b"two")])
    assert not (await etcd.commit([Put(key, b"three")], [Guard(key, created, created)])).is_committed
    assert (await etcd.commit([Put(key, b"three")], [Guard(key, created)])).is_committed


async def test_commit_is_all_or_nothing(etcd: EtcdClient) -> None:
    await etcd.commit([Put(ROOT + "old", b"x")])
    result = await etcd.commit([Put(ROOT + "new", b"y"), Delete(ROOT + "old")], [Guard(ROOT + "absent", 7)])
    assert not result.is_committed
    assert [item.key for item in (await etcd.list(ROOT)).items] == [ROOT + "old"]


async def test_list_reads_all_pages_at_one_revision(etcd: EtcdClient) -> None:
    num_keys = 2 * PAGE_KEYS + 3
    names = [f"{ROOT}many/{number:05d}" for number in range(num_keys)]
    for start in range(0, num_keys, 128):
        await etcd.commit([Put(name, b"v") for name in names[start : start + 128]])
    await etcd.commit([Put(ROOT + "manz", b"next prefix")])
    listing = await etcd.list(ROOT + "many/")
    assert [item.key for item in listing.items] == names


async def test_watch_gives_one_batch_for_each_revision(etcd: EtcdClient) -> None:
    first = await etcd.commit([Put(ROOT + "a", b"1"), Put(ROOT + "b", b"2"), Put("/gangline/v1/other", b"unseen")])
    second = await etcd.commit([Delete(ROOT + "a"), Put(ROOT + "b", b"3")])

    batches = await _take(etcd, first.revision, 2)

    assert batches[0].revision == first.revision
    assert {(event.key, event.value) for event in batches[0].events} == {(ROOT + "a", b"1"), (ROOT + "b", b"2")}
    assert batches[1].revision == second.revision
    assert set(batches[1].events) == {
        Event(ROOT + "a", None, second.revision, 0),
        Event(ROOT + "b", b"3", second.revision, first.revision),
    }


async def test_watch_joins_what_etcd_cuts_into_fragments(etcd: EtcdClient) -> None:
    """etcd fragments an answer above its request limit of 1.5 MiB; one revision still comes as one batch."""
    revisions = [
        (await etcd.commit([Put(f"{ROOT}big/{number}", bytes(60_000)) for number in range(8)])).revision
        for _ in range(6)
    ]
    batches = await _take(etcd, revisions[0], len(revisions))
    assert [batch.revision for batch in batches] == revisions
    assert [len(batch.events) for batch in batches] == [8] * len(revisions)


async def test_watch_from_a_compacted_revision_raises(etcd: EtcdClient) -> None:
    first = (await etcd.commit([Put(ROOT + "c", b"1")])).revision
    last = (await etcd.commit([Put(ROOT + "c", b"2")])).revision
    await etcd.compact(last)
    with pytest.raises(Compacted) as caught:
        await _take(etcd, first, 1)
    assert caught.value.revision == last


async def test_list_watch_gives_the_state_then_the_changes(etcd: EtcdClient) -> None:
    await etcd.commit([Put(ROOT + "before", b"1")])
    async with contextlib.aclosing(etcd.list_watch(ROOT)) as changes:
        listing = await within(5, anext(changes))
        assert isinstance(listing, Listing)
        assert [item.key for item in listing.items] == [ROOT + "before"]
        revision = (await etcd.commit([Put(ROOT + "after", b"2")])).revision
        assert await within(5, anext(changes)) == WatchBatch(
            revision, (Event(ROOT + "after", b"2", revision, revision),)
        )


async def test_no_etcd_is_one_clear_error_within_the_deadline() -> None:
    settings = EtcdSettings(endpoints=("127.0.0.1:1", "127.0.0.1:2"), deadline_seconds=1.0)
    started = time.monotonic()
    with pytest.raises(GanglineError) as caught:
        await EtcdClient(settings).__aenter__()
    assert time.monotonic() - started < 3.0
    assert (caught.value.code, caught.value.kind) == ("etcd.unreachable", ErrorKind.UNAVAILABLE)
    assert "no etcd answered within 1 s at 127.0.0.1:1, 127.0.0.1:2; start etcd or correct" in caught.value.message


async def test_put_under_a_lease_that_ended_names_the_lease(etcd: EtcdClient) -> None:
    with pytest.raises(GanglineError) as caught:
        await etcd.commit([Put(ROOT + "orphan", b"", lease=4711)])
    assert caught.value.code == "etcd.lease_not_found"


async def _take(client: EtcdClient, revision: int, count: int) -> list[WatchBatch]:
    batches: list[WatchBatch] = []
    async with asyncio.timeout(10), contextlib.aclosing(client.watch(ROOT, revision)) as watch:
        async for batch in watch:
            batches.append(batch)
            if len(batches) == count:
                break
    return batches
