"""The list of a server's connections: other sockets of the process are asked once, and forgotten when they close."""

from __future__ import annotations

import errno
import socket

import pytest

from services.common.connection import stranger_watch
from services.common.connection.stranger_watch import StrangerWatch
from tests.support.virtual_time import VirtualTime


def test_other_sockets_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = stranger_watch._peer_of

    def noted(fd: int, inode: int, port: int) -> tuple[str, str] | None:
        asked.append(inode)
        return ask(fd, inode, port)

    monkeypatch.setattr(stranger_watch, "_peer_of", noted)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        watch = StrangerWatch(4)
        watch.scan(port)
        assert len(asked) == len({*asked}) >= 1
        asked.clear()
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0] as accepted:
            watch.scan(port)
            # The accepted connection and its other end, which is here too.
            assert len(asked) == 2
            assert [connection.fd for connection in watch._connections.values()] == [accepted.fileno()]
            watch.scan(port)
            assert len(asked) == 2
        watch.scan(port)
        assert not watch._connections
        known = {*stranger_watch._sockets()}
        assert watch._others <= known


def test_socket_that_cannot_be_asked_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the machine has no more open files, which is when strangers matter most."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        watch = StrangerWatch(4)
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            with monkeypatch.context() as patch:
                patch.setattr(stranger_watch, "_held", _refuse)
                watch.scan(port)
            assert not watch._connections
            watch.scan(port)
            assert len(watch._connections) == 1


def _refuse(_fd: int, _inode: int) -> socket.socket:
    raise OSError(errno.ENFILE, "too many open files in system")


@pytest.mark.parametrize(
    ("counts", "num_scans"),
    [([7] * 10, 2), ([7, 8, 9, 8], 4), ([0] * 4, 4)],
    ids=["the same number: each fifth scan", "another number each time", "a kernel that does not tell"],
)
async def test_a_scan_is_left_out_while_the_number_of_open_files_stays(
    counts: list[int], num_scans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[int] = []
    coming = iter(counts)

    def count() -> int:
        for number in coming:
            return number
        raise LookupError("no more counts")

    def scan(port: int) -> int:
        scans.append(port)
        return 0

    monkeypatch.setattr(stranger_watch, "SCAN_SECONDS", 0.001)
    monkeypatch.setattr(stranger_watch, "_count_open_files", count)
    watch = StrangerWatch(4)
    monkeypatch.setattr(watch, "scan", scan)
    with pytest.raises(LookupError, match="no more counts"):
        await watch.run(1)
    assert len(scans) == num_scans


@pytest.mark.parametrize("began_at", [100.2, 100.9])
def test_scans_are_due_at_the_same_times_in_all_processes_and_more_often_after_one_that_closed(
    began_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned_at: list[float] = []
    clock, watch = VirtualTime(began_at), StrangerWatch(4)

    def scan(_port: int) -> int:
        scanned_at.append(clock.now)
        return int(len(scanned_at) == 2)

    monkeypatch.setattr(stranger_watch, "_count_open_files", lambda: 0)
    monkeypatch.setattr(watch, "scan", scan)
    clock.run(watch.run(1), 104.5 - began_at)
    assert scanned_at == pytest.approx([101.0, 102.0, 102.1, 103.0, 104.0])
