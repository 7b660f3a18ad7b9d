"""The list of a server's connections: other sockets of the process are asked once, and forgotten when they close."""

from __future__ import annotations

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
