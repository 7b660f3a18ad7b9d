"""The stream of records: when its requests are due, and its end in every order in which its answers and its writes
complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gangline.v1 import ingest_pb2, ingest_pb2_grpc
from services.common.concurrency import cancel
from services.trial_runner.delivery.channel_route import ChannelRoute
from services.trial_runner.delivery.record_stream import RecordStream
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.spool import Spool
from tests.support.virtual_time import VirtualTime
from tests.support.wait import within


class _Call:
    """In the place of a stub, of its method and of the open stream."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self._written = asyncio.Event()
        self._answers: asyncio.Queue[ingest_pb2.IngestResponse] = asyncio.Queue()
        self._newest = 0

    def Ingest(self, **_: Any) -> _Call:  # noqa: N802 - the method's name in the proto
        return self

    async def write(self, request: ingest_pb2.IngestRequest) -> None:
        self._newest = request.records[-1].sequence
        self.has_begun.set()
        await self._written.wait()

    async def __aiter__(self) -> AsyncIterator[ingest_pb2.IngestResponse]:
        while True:
            yield await self._answers.get()

    def add_done_callback(self, callback: Any) -> None:
        pass

    def cancel(self) -> None:
        pass

    def answer(self) -> None:
        self._answers.put_nowait(ingest_pb2.IngestResponse(spool_id="7.1.1/0", stored_sequence=self._newest))

    def complete_write(self) -> None:
        self._written.set()


@pytest.mark.parametrize("turns", range(12))
async def test_it_ends_though_its_last_write_completes_as_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """turns: of the event loop, from the answer to the end of the write that it answers."""
    call = _Call()
    monkeypatch.setattr(ingest_pb2_grpc, "IngestServiceStub", lambda _: call)
    stream, recorder = _stream(tmp_path)
    running = asyncio.create_task(stream.run(lambda: "token"))
    recorder.note("the last line")
    await within(60, call.has_begun.wait())
    draining = asyncio.create_task(stream.drain(60))
    await asyncio.sleep(0)
    call.answer()
    ending = asyncio.create_task(_end(draining, running))
    for _ in range(turns):
        await asyncio.sleep(0)
    call.complete_write()
    await within(60, ending)
    assert running.cancelled()


def _stream(folder: Path) -> tuple[RecordStream, Recorder]:
    spool = Spool(folder, make_folder=lambda: None, agent_id="a1", on_damage=lambda _: None)
    recorder = Recorder(spool, "a1")
    route = ChannelRoute("gateway", ["127.0.0.1:1"])
    return RecordStream(spool, recorder.has_news, route, spool_id="7.1.1/0", trial_id="7.1"), recorder


async def _end(draining: asyncio.Task[bool], running: asyncio.Task[None]) -> None:
    assert await draining
    await cancel(running)


@pytest.mark.parametrize("began_at", [100.3, 100.8])
def test_requests_after_the_first_are_due_at_the_same_times_in_all_processes_until_it_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began_at: float
) -> None:
    """A record each tenth of a second, from the beginning until the drain at 103.25."""
    clock, written_at = VirtualTime(began_at), list[float]()

    class Call(_Call):
        async def write(self, request: ingest_pb2.IngestRequest) -> None:
            written_at.append(clock.now)
            await super().write(request)
            self.answer()

    async def deliver() -> None:
        call = Call()
        call.complete_write()
        monkeypatch.setattr(ingest_pb2_grpc, "IngestServiceStub", lambda _: call)
        monkeypatch.setattr(ChannelRoute, "channel", lambda _: None)
        stream, recorder = _stream(tmp_path)
        running = asyncio.create_task(stream.run(lambda: "token"))
        while clock.now < 103.2:
            recorder.note("a line")
            await asyncio.sleep(0.1)
        recorder.note("the last line")
        assert await stream.drain(0.05)
        await cancel(running)

    clock.run(deliver(), 10.0)
    assert written_at[:-1] == pytest.approx([began_at, 101.0, 102.0, 103.0])
    assert 103.2 <= written_at[-1] < 103.4
