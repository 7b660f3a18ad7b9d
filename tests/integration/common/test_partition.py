"""A member that lost its peers while the client still reaches it: grpc finds nothing wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local.etcd import EtcdProcess, launch_etcd, wait_for_address
from gangline.local.etcd_program import find_etcd_binary
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support.island import Island, can_make_islands
from tests.support.traffic import Traffic, count_rotations

pytestmark = pytest.mark.skipif(not can_make_islands(), reason="takes root and iproute2")

CLIENT_PORT, PEER_PORT = 2379, 2380


@pytest.fixture
def islands() -> Iterator[tuple[Island, Island]]:
    """The first can lose the second; this machine reaches both."""
    made: list[Island] = []
    try:
        made += [Island(), Island()]
        yield made[0], made[1]
    finally:
        for island in made:
            island.remove()


@pytest.fixture
def endpoints(islands: tuple[Island, Island], tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Three members, the first alone on its island."""
    lonely, social = islands
    first, others = lonely.join(social)
    peers = [f"http://{first}:{PEER_PORT}", f"http://{others}:{PEER_PORT}", f"http://{others}:{PEER_PORT + 10}"]
    clients = [
        f"{lonely.host_address}:{CLIENT_PORT}",
        f"{social.host_address}:{CLIENT_PORT}",
        f"{social.host_address}:{CLIENT_PORT + 10}",
    ]
    running: list[EtcdProcess] = []
    try:
        # Each program is written once: the kernel refuses to write a file that it is about to run.
        alone, together = (island.program(find_etcd_binary(), tmp_path) for island in islands)
        for number, binary in enumerate((alone, together, together)):
            arguments = _arguments(number, peers, clients[number])
            directory = tmp_path / f"m{number}"
            running.append(launch_etcd(binary, arguments, directory, is_tied=True, is_alone=False))
        for number, member in enumerate(running):
            wait_for_address(member.process, tmp_path / f"m{number}" / "etcd.log")
        yield tuple(clients)
    finally:
        for member in running:
            member.kill()


def _arguments(number: int, peers: list[str], client: str) -> list[str]:
    initial = ",".join(f"m{index}={peer}" for index, peer in enumerate(peers))
    return [
        *("--name", f"m{number}", "--initial-cluster", initial),
        *("--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"),
        *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
    ]


async def test_calls_and_streams_leave_a_member_without_a_quorum(
    islands: tuple[Island, Island], endpoints: tuple[str, ...]
) -> None:
    settings = EtcdSettings(endpoints=endpoints, deadline_seconds=20, allow_unsafe_version=True)
    async with EtcdClient(settings) as client, Traffic(client).flowing() as traffic:
        num_rotations = count_rotations()
        islands[0].pull_cable()
        await traffic.has_moved_on()
        assert count_rotations() > num_rotations, "the client was not at the member that lost its peers"
    print(f"partition: longest gap between writes {traffic.max_gap_seconds:.2f} s")
    traffic.check()
