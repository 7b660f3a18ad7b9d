"""The names of uvicorn that the gateway's HTTP server overrides or reads, some of which are private. A new uvicorn that
calls them otherwise fails here by name, before notebooks cannot be opened."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import h11
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from services.gateway.http.serving.server import _Connection, _Server

REQUEST = b"GET /proxy/t HTTP/1.1\r\nhost: gateway\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


class _Recorder(H11Protocol):
    """Overrides what `_Connection` overrides, and writes down each call."""

    def __init__(self, calls: list[Any]) -> None:
        super().__init__(uvicorn.Config(Mock(), log_config=None), ServerState(), {})
        self.calls = calls

    def _should_upgrade(self) -> bool:
        self.calls.append(("_should_upgrade", self.scope["path"], self._get_upgrade()))
        return True

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.calls.append(("handle_websocket_upgrade", event.method, event.target))


async def test_an_upgrade_is_asked_for_and_handed_over() -> None:
    calls: list[Any] = []
    connection = _Recorder(calls)
    connection.connection_made(Mock(spec=asyncio.Transport))
    connection.data_received(REQUEST)
    assert calls == [("_should_upgrade", "/proxy/t", b"websocket"), ("handle_websocket_upgrade", b"GET", b"/proxy/t")]
    assert (b"host", b"gateway") in connection.headers
    assert connection.conn.trailing_data == (b"", False)
    assert connection in connection.connections


@pytest.mark.parametrize(
    ("own", "base"),
    [(_Connection, H11Protocol), (_Server, uvicorn.Server)],
)
def test_each_overridden_name_exists_in_uvicorn(own: type, base: type) -> None:
    new = {
        "_table", "_upgrades", "_watch", "_check_body", "_stop_body", "_rest",
        "is_busy", "was_admitted", "_deadline", "_body_deadline", "_num_body_bytes", "_was_paused",
    }  # fmt: skip
    overridden = {name for name in vars(own) if not name.startswith("__")} - new
    assert overridden
    assert [name for name in overridden if not hasattr(base, name)] == []
