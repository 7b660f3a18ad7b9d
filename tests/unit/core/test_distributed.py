"""Ranks exchange objects, among all and among those of a machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from gangline.core import DistributedContext
from gangline.core.transport import StoreTransport
from gangline.errors import GanglineError
from tests.support.source import ROOT
from tests.support.world import in_ranks


def test_exchange_among_all_ranks() -> None:
    def work(context: DistributedContext) -> tuple[Any, ...]:
        name = f"rank {context.rank}"
        return (
            context.gather(name),
            context.allgather(name),
            context.broadcast(name),
            context.maximum([context.rank, -context.rank]),
            context.maximum_later([context.rank])(),
            context.total_later([0.5, context.rank])(),
        )

    names = ["rank 0", "rank 1", "rank 2"]
    assert in_ranks(3, work) == [
        (names, names, "rank 0", [2, 0], [2], [1.5, 3.0]),
        (None, names, "rank 0", [2, 0], [2], [1.5, 3.0]),
        (None, names, "rank 0", [2, 0], [2], [1.5, 3.0]),
    ]


def test_exchange_within_a_machine() -> None:
    def work(context: DistributedContext) -> tuple[Any, ...]:
        return (
            context.gather_local(context.rank),
            context.allgather_local(context.rank),
            context.broadcast_local(context.rank),
        )

    assert in_ranks(4, work, local_size=2) == [
        ([0, 1], [0, 1], 0),
        (None, [0, 1], 0),
        ([2, 3], [2, 3], 2),
        (None, [2, 3], 2),
    ]


def test_many_rounds_leave_nothing_behind() -> None:
    def work(context: DistributedContext) -> int:
        for number in range(50):
            assert context.allgather((context.rank, number)) == [(0, number), (1, number)]
        return int(context._transport._store.num_keys())  # type: ignore[attr-defined]  # what the store still holds

    assert max(in_ranks(2, work)) <= 6


def test_alone_every_exchange_is_with_oneself() -> None:
    context = DistributedContext()
    assert context.gather(1) == context.allgather(1) == context.allgather_local(1) == [1]
    assert context.broadcast("x") == context.broadcast_local("x") == "x"
    assert context.maximum([3, 4]) == context.total_later([3, 4])() == [3, 4]
    assert context.is_chief


def test_a_context_of_the_chief_alone_does_not_put_the_ranks_out_of_step() -> None:
    def work(context: DistributedContext) -> list[int]:
        transport: Any = context._transport
        # As another context of this rank, with which nothing is exchanged.
        if context.is_chief:
            StoreTransport(transport._store, 0, 2)
        first = context.allgather(context.rank)
        again = StoreTransport(transport._store, context.rank, 2, 20.0)
        return [*first, *again.allgather(10 + context.rank)]

    assert in_ranks(2, work) == [[0, 1, 10, 11]] * 2


def test_launcher_of_a_script_s_own_names_the_chief() -> None:
    """As Determined's documentation starts its workers; the port is this test's, to stay out of others' way."""
    program = (
        "import sys\n"
        "from gangline.core import DistributedContext\n"
        "rank, port = int(sys.argv[1]), int(sys.argv[2])\n"
        "context = DistributedContext(rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1,\n"
        "                             chief_ip='127.0.0.1', pub_port=port - 7, pull_port=12,\n"
        "                             port_offset=7, force_tcp=True)\n"
        "print(context.allgather(rank + 5), context.broadcast(rank), context.allgather_local(rank))\n"
        "context.allgather(None)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [[sys.executable, "-c", program, str(rank), str(port)] for rank in range(2)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for command in commands]
    assert [worker.communicate(timeout=100)[0] for worker in workers] == ["[5, 6] 0 [0, 1]\n"] * 2


def test_contexts_one_after_the_other_do_not_read_each_other_s_rounds() -> None:
    """As scripts that a shell runs in turn; the second one finds the store as the first has left it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

    program = (
        "from gangline.core import DistributedContext\n"
        "for number in range(2):\n"
        "    context = DistributedContext.from_environment()\n"
        "    print(context.allgather((number, context.rank)), context.allgather_local((number, 'local')))\n"
    )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    environment = {**os.environ, **place, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    output = "[(0, 0), (0, 1)] [(0, 'local'), (0, 'local')]\n[(1, 0), (1, 1)] [(1, 'local'), (1, 'local')]\n"
    assert [rank.communicate(timeout=100)[0] for rank in ranks] == [output, output]


def test_context_of_several_ranks_needs_a_transport() -> None:
    with pytest.raises(GanglineError, match="needs a transport"):
        DistributedContext(rank=0, size=2)


def test_process_group_comes_first() -> None:
    with pytest.raises(GanglineError, match="init_process_group"):
        DistributedContext.from_torch_distributed()
