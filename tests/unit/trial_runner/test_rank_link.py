"""Several processes speak for one rank: its own, and workers that it has started."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from gangline.v1 import rank_pb2
from services.trial_runner.ranks.rank_link import RankLinkServer
from tests.support.wait import until


class _Process:
    """One connection of a rank."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, server: RankLinkServer, rank: int) -> _Process:
        process = cls(*await asyncio.open_unix_connection(server.path))
        payload = rank_pb2.RankMessage(hello=rank_pb2.RankHello(rank=rank)).SerializeToString()
        process._writer.write(struct.pack(">I", len(payload)) + payload)
        await process._writer.drain()
        return process

    async def read(self) -> rank_pb2.RunnerMessage:
        (length,) = struct.unpack(">I", await asyncio.wait_for(self._reader.readexactly(4), 10))
        return rank_pb2.RunnerMessage.FromString(await self._reader.readexactly(length))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def test_all_that_speak_for_a_rank_are_asked_to_stop(tmp_path: Path) -> None:
    server = RankLinkServer(tmp_path / "ranks")
    await server.start(lambda _rank, _message: None)
    try:
        launcher, helper, worker = [await _Process.connect(server, 0) for _ in range(3)]
        other = await _Process.connect(server, 1)
        await until(lambda: len(server._writers) == 4, "four connections", 10)
        await helper.close()
        await until(lambda: len(server._writers) == 3, "one less", 10)
        assert server.connected == {0, 1}
        server.trace(3)
        assert [(await process.read()).trace.batches for process in (launcher, worker)] == [3, 3]
        server.preempt("a pause", 5.0)
        late = await _Process.connect(server, 1)
        for process in (launcher, worker, other, late):
            assert (await process.read()).preempt.reason == "a pause"
    finally:
        await server.close()


async def test_a_worker_may_name_its_rank_after_it_has_connected(tmp_path: Path) -> None:
    heard: list[tuple[int, float]] = []
    server = RankLinkServer(tmp_path / "ranks")
    await server.start(lambda rank, message: heard.append((rank, message.first_step.at)))
    try:
        worker = await _Process.connect(server, 2)
        for message in (
            rank_pb2.RankMessage(first_step=rank_pb2.RankFirstStep(at=1)),
            rank_pb2.RankMessage(hello=rank_pb2.RankHello(rank=3)),
            rank_pb2.RankMessage(first_step=rank_pb2.RankFirstStep(at=2)),
        ):
            payload = message.SerializeToString()
            worker._writer.write(struct.pack(">I", len(payload)) + payload)
        await until(lambda: len(heard) == 2, "two messages", 10)
        assert heard == [(2, 1), (3, 2)]
        assert server.connected == {3}
    finally:
        await server.close()
