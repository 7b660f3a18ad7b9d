"""The list of a server's connections: other sockets of the process are asked once, and forgotten when they close."""

from __future__ import annotations

import errno
import socket

import pytest

from services.common.connection import stranger_watch
from services.common.connection.stranger_watch import StrangerWatch


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
