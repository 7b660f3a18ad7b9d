"""Ranks exchange objects, among all and among those of a machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gangline.core import DistributedContext
from gangline.core.transport import StoreTransport
from gangline.errors import GanglineError
from tests.support.gang import result_of, start_gang
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


def _outputs_of_two(directory: Path, work: Callable[..., str], *arguments: Any) -> list[str]:
    """Returns what work(*arguments, rank) tells of two processes, which have no process group."""
    folders = [directory / str(rank) for rank in range(2)]
    workers = [start_gang(1, folder, work, *arguments, rank)[0] for rank, folder in enumerate(folders)]
    for worker in workers:
        worker.join(100)
        worker.kill()
    return [result_of(folder, 0) for folder in folders]


def _as_determined_documents(port: int, rank: int) -> str:
    context = DistributedContext(
        rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1,
        chief_ip="127.0.0.1", pub_port=port - 7, pull_port=12, port_offset=7, force_tcp=True,
    )  # fmt: skip
    told = f"{context.allgather(rank + 5)} {context.broadcast(rank)} {context.allgather_local(rank)}"
    context.close()
    return told


def test_launcher_of_a_script_s_own_names_the_chief(tmp_path: Path) -> None:
    """As Determined's documentation starts its workers; the port is this test's, to stay out of others' way."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert _outputs_of_two(tmp_path, _as_determined_documents, port) == ["[5, 6] 0 [0, 1]"] * 2


def _two_contexts(port: int, rank: int) -> str:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"):
        del os.environ[name]
    place = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place, TORCHELASTIC_USE_AGENT_STORE="True")
    lines = []
    for number in range(2):
        context = DistributedContext.from_environment()
        lines.append(f"{context.allgather((number, context.rank))} {context.allgather_local((number, 'local'))}\n")
    return "".join(lines)


def test_contexts_one_after_the_other_do_not_read_each_other_s_rounds(tmp_path: Path) -> None:
    """As scripts that a shell runs in turn; the second one finds the store as the first has left it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    output = "[(0, 0), (0, 1)] [(0, 'local'), (0, 'local')]\n[(1, 0), (1, 1)] [(1, 'local'), (1, 'local')]\n"
    assert _outputs_of_two(tmp_path, _two_contexts, store.port) == [output, output]


def test_context_of_several_ranks_needs_a_transport() -> None:
    with pytest.raises(GanglineError, match="needs a transport"):
        DistributedContext(rank=0, size=2)


def test_process_group_comes_first() -> None:
    with pytest.raises(GanglineError, match="init_process_group"):
        DistributedContext.from_torch_distributed()
