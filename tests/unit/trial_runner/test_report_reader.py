"""What ranks report all the time: read seldom, in order, and all of it, also of a rank that is killed."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline import report_socket
from gangline.core.link import Link
from gangline.domain.history import MetricsPoint
from gangline.v1 import rank_pb2
from services.trial_runner.ranks import report_reader
from services.trial_runner.ranks.rank_link import RankLinkServer
from tests.support.wait import until

# No pause of this length ends within a test.
FAR_SECONDS = 1e6
_KILLED = """
import os, signal, sys
from gangline.core.link import Link
from gangline.domain.history import MetricsPoint
link = Link(sys.argv[1], 0)
for number in range(50):
    link.send_metrics(MetricsPoint("training", number, {"loss": 0.5}))
os.kill(os.getpid(), signal.SIGKILL)
"""


class Heard:
    """A runner's end. messages: the rank of each, its kind, and its batches where it has them."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[tuple[int, str, int]] = []
        self.raises = False
        self.server = RankLinkServer(folder / "ranks")
        self.links: list[Link] = []

    def link(self, rank: int = 0) -> Link:
        self.links.append(Link(self.server.path, rank, on_lost=lambda: None))
        return self.links[-1]

    def forget_reports(self) -> None:
        Path(report_socket.path_beside(self.server.path)).unlink()

    def on_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        kind = message.WhichOneof("message")
        if self.raises:
            self.raises = False
            raise ZeroDivisionError
        if kind is not None:
            self.messages.append((rank, kind, getattr(getattr(message, kind), "batches_completed", 0)))


@asynccontextmanager
async def hearing(folder: Path) -> AsyncIterator[Heard]:
    heard = Heard(folder)
    await heard.server.start(heard.on_message)
    try:
        yield heard
    finally:
        for link in heard.links:
            await asyncio.to_thread(link.close)
        await heard.server.close()


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause does not end within a test."""
    monkeypatch.setattr(report_reader, "PAUSE_SECONDS", FAR_SECONDS)


def report(link: Link, *numbers: int) -> None:
    for number in numbers:
        link.send_metrics(MetricsPoint("training", number, {"loss": 0.5}))


def points(*numbers: int, rank: int = 0) -> list[tuple[int, str, int]]:
    return [(rank, "metrics", number) for number in numbers]


@pytest.mark.usefixtures("long_pause")
async def test_reports_after_the_first_wait_for_the_pause_or_for_a_message(tmp_path: Path) -> None:
    async with hearing(tmp_path) as heard:
        link, other = heard.link(), heard.link(rank=1)
        report(link, 1)
        await until(lambda: heard.messages == points(1), "the first report", 10)
        report(link, 2, 3)
        # A message of another rank shows that the event loop has looked at all sockets.
        other.send_first_step()
        await until(lambda: len(heard.messages) > 1, "a message", 10)
        assert heard.messages == [*points(1), (1, "first_step", 0)]
        link.send_first_step()
        await until(lambda: len(heard.messages) > 4, "a message of the same rank", 10)
        assert heard.messages[2:] == [*points(2, 3), (0, "first_step", 0)]


async def test_reports_are_read_when_the_pause_is_over_and_at_once_after_a_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_reader, "PAUSE_SECONDS", 0.05)
    async with hearing(tmp_path) as heard:
        link = heard.link()
        report(link, 1)
        await until(lambda: len(heard.messages) == 1, "the first report", 10)
        report(link, 2)
        link.send_progress(3, 10, 1.0, 0.1)
        await until(lambda: len(heard.messages) == 3, "those within the pause", 10)
        reader = heard.server._reports
        assert reader is not None
        await until(lambda: reader._timer is None, "a silence", 10)
        monkeypatch.setattr(report_reader, "PAUSE_SECONDS", FAR_SECONDS)
        report(link, 4)
        await until(lambda: len(heard.messages) == 4, "the first report after it", 10)
        assert heard.messages == [*points(1, 2), (0, "progress", 3), *points(4)]


async def test_pauses_end_at_the_same_times_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the runner wakes up once for the reports and for the other work that is due then."""
    monkeypatch.setattr(report_reader, "PAUSE_SECONDS", 0.5)
    late_seconds: list[float] = []
    async with hearing(tmp_path) as heard:
        link = heard.link()
        await asyncio.sleep((0.25 - time.monotonic()) % 0.5)
        for number in range(4):
            report(link, number)
            await until(lambda: len(heard.messages) > len(late_seconds), "a report", 10)
            late_seconds.append(time.monotonic() % 0.5)
    # The first one is read at once, in the middle of a period.
    assert min(late_seconds[1:]) < 0.1, late_seconds


@pytest.mark.usefixtures("long_pause")
async def test_more_reports_than_the_kernel_holds_are_fetched_and_stay_in_order(tmp_path: Path) -> None:
    async with hearing(tmp_path) as heard:
        link = heard.link()
        # The event loop does not run meanwhile.
        report(link, *range(5000))
        assert link._wire is not None
        assert link._wire._has_stuck_reports
        assert not link.flush(0.05)
        link.send_finished()
        await until(lambda: len(heard.messages) > 5000, "all reports", 30)
        assert heard.messages == [*points(*range(5000)), (0, "finished", 4999)]
        assert await asyncio.to_thread(link.flush)


@pytest.mark.usefixtures("long_pause")
async def test_a_killed_rank_loses_no_report(tmp_path: Path) -> None:
    async with hearing(tmp_path) as heard:
        rank = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, heard.server.path)
        assert await rank.wait() == -signal.SIGKILL
        await heard.server.close()
        assert heard.messages == points(*range(50))


@pytest.mark.usefixtures("long_pause")
async def test_a_large_report_comes_after_smaller_ones_before_it(tmp_path: Path) -> None:
    async with hearing(tmp_path) as heard:
        link = heard.link()
        report(link, 1, 2)
        link.send_metrics(MetricsPoint("training", 3, {}, values_json='"' + "x" * report_socket.MOST_BYTES + '"'))
        await until(lambda: len(heard.messages) == 3, "all reports", 10)
        assert heard.messages == points(1, 2, 3)


@pytest.mark.usefixtures("long_pause")
async def test_a_worker_that_learns_its_rank_later_reports_as_this_rank(tmp_path: Path) -> None:
    async with hearing(tmp_path) as heard:
        link = heard.link(rank=2)
        report(link, 1)
        link.send_rank(3)
        report(link, 2)
        link.send_first_step()
        await until(lambda: len(heard.messages) == 3, "all messages", 10)
        assert heard.messages == [*points(1, rank=2), *points(2, rank=3), (3, "first_step", 0)]


async def test_validations_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_reader, "PAUSE_SECONDS", FAR_SECONDS)
    async with hearing(tmp_path) as heard:
        link = heard.link()
        report(link, 1)
        await until(lambda: len(heard.messages) == 1, "the first report", 10)
        report(link, 2)
        link.send_metrics(MetricsPoint("validation", 3, {"loss": 0.5}))
        await until(lambda: len(heard.messages) == 3, "the validation", 10)
        assert heard.messages == points(1, 2, 3)


@pytest.mark.parametrize("packet", [b"\xff\xff no message", b"x" * (report_socket.MOST_BYTES + 1)])
async def test_what_is_no_message_ends_that_connection_alone(tmp_path: Path, packet: bytes) -> None:
    async with hearing(tmp_path) as heard:
        hostile: Any = report_socket.make_socket()
        hostile.connect(report_socket.path_beside(heard.server.path))
        hostile.send(packet)
        link = heard.link()
        report(link, 1)
        await until(lambda: heard.messages == points(1), "the other's report", 10)
        await until(lambda: _is_ended(hostile), "the end of the connection", 10)
        hostile.close()


def _is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_a_runner_without_the_socket_gets_all_over_the_link(tmp_path: Path) -> None:
    """As one of an earlier version, with a newer library in the rank."""
    async with hearing(tmp_path) as heard:
        heard.forget_reports()
        link = heard.link()
        report(link, 1, 2)
        link.send_rank(3)
        report(link, 4)
        await until(lambda: len(heard.messages) == 3, "all reports", 10)
        assert heard.messages == [*points(1, 2), *points(4, rank=3)]


@pytest.mark.usefixtures("long_pause")
async def test_reports_go_over_the_link_where_the_runner_has_closed_their_socket(tmp_path: Path) -> None:
    async with hearing(tmp_path) as heard:
        link = heard.link()
        report(link, 1)
        await until(lambda: len(heard.messages) == 1, "the first report", 10)
        reader = heard.server._reports
        assert reader is not None
        reader._drop(reader._connections[0])
        report(link, 2, 3)
        link.send_first_step()
        await until(lambda: len(heard.messages) == 4, "all messages", 10)
        assert heard.messages == [*points(1, 2, 3), (0, "first_step", 0)]


async def test_without_free_descriptors_links_live_on_and_reports_arrive_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_reader, "_REST_SECONDS", 0.05)
    accept, num_refused = socket.socket.accept, 0

    def refuse(listener: socket.socket) -> Any:
        nonlocal num_refused
        if listener.type == socket.SOCK_SEQPACKET and num_refused < 3:
            num_refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    async with hearing(tmp_path) as heard:
        monkeypatch.setattr(socket.socket, "accept", refuse)
        link = heard.link()
        report(link, 1)
        link.send_first_step()
        await until(lambda: len(heard.messages) == 2, "both messages", 10)
        assert sorted(heard.messages) == [(0, "first_step", 0), *points(1)]
        assert num_refused == 3


async def test_a_report_that_fails_does_not_make_the_reader_deaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_reader, "PAUSE_SECONDS", 0.05)
    async with hearing(tmp_path) as heard:
        link = heard.link()
        heard.raises = True
        report(link, 1)
        await until(lambda: not heard.raises, "the failure", 10)
        report(link, 2)
        await until(lambda: heard.messages == points(2), "the next report", 10)
