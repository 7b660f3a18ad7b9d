"""A stranger on the gang's network or machine: the store refuses it at other addresses, what it plants is not run, and
the gang's port closes."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from gangline.launch import channel
from gangline.launch.child import descendants
from services.trial_runner.gang import member_link
from services.trial_runner.gang.member_link import MemberServer, Wire
from tests.integration.trial_runner.conftest import World
from tests.support.account import listening_addresses
from tests.support.wait import until

LOOPBACK = "127.0.0.1"
# Of this machine as well: whoever listens on all interfaces answers there.
OTHER_LOOPBACK = "127.0.0.2"

TELL_STORE = "import os, time\nprint('store', os.environ['MASTER_PORT'], flush=True)\n"

EXCHANGE = (
    TELL_STORE
    + """
from gangline.core import DistributedContext
context = DistributedContext.from_environment()
if context.rank == 0:
    print('got', context.allgather('hello'), flush=True)
else:
    time.sleep(600)
"""
)

WAIT = (
    TELL_STORE
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""
)


async def store_port(world: World) -> int:
    await world.gateway.wait_line("store ")
    return next(int(line.split()[1]) for line in world.gateway.lines("stdout") if line.startswith("store "))


def can_connect(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_the_store_answers_at_the_gangs_address_alone(world: World) -> None:
    runners = await world.start(WAIT, (1, 1))
    await world.wait_pids(2)
    port = await store_port(world)
    assert can_connect(LOOPBACK, port)
    assert not can_connect(OTHER_LOOPBACK, port)
    pids = [pid for runner in runners for pid in [runner.nursery_pid(), *descendants(runner.nursery_pid())]]
    addresses = listening_addresses(pids)
    assert {f"{LOOPBACK}:{port}"} in addresses.values()
    hosts = {address.rpartition(":")[0] for own in addresses.values() for address in own}
    assert hosts == {LOOPBACK}, addresses


async def test_runners_of_a_linked_gang_listen_no_more_but_for_their_metrics(world: World) -> None:
    runners = await world.start(WAIT, (1, 1))
    await world.wait_pids(2)
    await until(
        lambda: all(world.scheduler.reports_of("running", rank) for rank in (0, 1)), "both reports of running ranks"
    )
    metrics = {world.scheduler.reports_of("running", rank)[0].metrics_address for rank in (0, 1)}
    addresses = listening_addresses([runner.pid for runner in runners])
    assert {address for own in addresses.values() for address in own} == metrics
    assert {address.rpartition(":")[0] for address in metrics} == {LOOPBACK}


class Bomb:
    """Its pickle makes a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


async def test_a_pickle_planted_in_the_store_is_not_run(world: World, tmp_path: Path) -> None:
    """The stranger is faster than rank 1: it writes what rank 0 waits for."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

    bomb = tmp_path / "exploded"
    pickle.loads(pickle.dumps(Bomb(tmp_path / "works")))
    assert (tmp_path / "works").is_dir()
    await world.start(EXCHANGE, (2,))
    port = await store_port(world)
    stranger: Any = PrefixStore("gangline/world/1", TCPStore(LOOPBACK, port, wait_for_workers=False))
    stranger.set("1/1/1", pickle.dumps(Bomb(bomb)))
    (report,) = await world.wait()
    assert not bomb.exists()
    assert world.gateway.lines("stdout").count("got") == 0
    assert (report.kind, report.rank) == (ExitKind.UNAVAILABLE, 0)
    assert report.message.startswith("the data that came for a rank's object is not a rank's (")


async def test_what_cannot_travel_ends_the_trial_with_one_line(world: World) -> None:
    script = (
        "from gangline.core import DistributedContext\n"
        "context = DistributedContext.from_environment()\n"
        "print(context.allgather((context.rank, {'a': [1.5, None]}, b'x')), flush=True)\n"
        # The rank that fails first ends the other one, which is to have printed by then.
        "context.allgather(None)\n"
        "context.allgather(open('train.py'))\n"
    )
    await world.start(script, (2,))
    (report,) = await world.wait()
    row = "(0, {'a': [1.5, None]}, b'x'), (1, {'a': [1.5, None]}, b'x')"
    assert world.gateway.lines("stdout").count(f"[{row}]") == 2
    assert report.kind is ExitKind.CONFIGURATION_ERROR
    assert "ranks cannot exchange a _io.TextIOWrapper; they exchange numbers, strings, " in report.message


async def _ignore(_peer: int, _wire: Wire) -> None:
    return


@pytest.mark.parametrize(
    "hello",
    [
        b"GET /metrics HTTP/1.1\r\n\r\n",
        channel.pack({"want": "probe", "node_rank": 1, "nonce": "a" * 4096}),
        channel.pack({"want": "run", "node_rank": 1, "nonce": "a"}),
        channel.pack({"want": "link", "node_rank": True, "nonce": "a"}),
    ],
    ids=["http", "too long", "another word", "no number"],
)
async def test_the_gangs_port_answers_nothing_but_a_greeting(hello: bytes) -> None:
    server = MemberServer("token", 0, _ignore)
    port = await server.start()
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(hello)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), member_link.GREETING_SECONDS + 5) == b""
    writer.close()
    server.close()
