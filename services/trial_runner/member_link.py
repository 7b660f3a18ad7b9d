"""The port on which a member of a gang answers the others: probes of the network, and links to node rank 0.

Owns the greeting in which both ends prove that they hold the allocation's token without sending it, and the frames
(4 bytes of length, then JSON). `probe.py` and `gang.py` build on it. The port is open on every interface, because the
probes decide which one the gang takes; it answers nothing but the greeting, and is closed once the gang is linked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from gangline.launch import channel

GREETING_SECONDS = 5.0
MAX_FRAME_BYTES = 1 << 20
# Of one who has proved nothing yet.
MAX_GREETING_BYTES = 1024
_WANTS = ("probe", "link")
# A host that lost its power is noticed after about this long; a process that died at once.
DEAD_PEER_SECONDS = 15


class GreetingRefused(Exception):
    """Who answered is not the member that was looked for."""


class Wire:
    """Frames of JSON over a TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        _watch_peer(writer.get_extra_info("socket"))

    def send(self, message: dict[str, Any]) -> None:
        """Never waits; a lost peer is for the receiving side to notice."""
        with suppress(ConnectionError, RuntimeError):
            self._writer.write(channel.pack(message))

    async def flush(self, deadline_seconds: float = 1.0) -> None:
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.drain(), deadline_seconds)

    async def receive(self, max_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any] | None:
        """None at the end of the connection, however it came, and for a longer frame."""
        try:
            (length,) = channel.LENGTH.unpack(await self._reader.readexactly(channel.LENGTH.size))
            if length > max_bytes:
                return None
            return channel.parse(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, ValueError):
            return None

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self._writer.close()


def _watch_peer(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_SECONDS * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class MemberServer:
    """on_link: given each link of another member (its node rank, its wire); keeps the connection while it runs."""

    def __init__(self, token: str, node_rank: int, on_link: Callable[[int, Wire], Awaitable[None]]) -> None:
        self._token = token
        self._node_rank = node_rank
        self._on_link = on_link
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """The port, the same on every interface."""
        if socket.has_dualstack_ipv6():
            sock = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            sock = socket.create_server(("", 0))
        self._server = await asyncio.start_server(self._serve, sock=sock, backlog=1024)
        return int(sock.getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                want, peer = await self._greet(wire)
            if want == "link":
                await self._on_link(peer, wire)
        except (TimeoutError, GreetingRefused):
            pass
        finally:
            wire.close()

    async def _greet(self, wire: Wire) -> tuple[str, int]:
        hello = await wire.receive(MAX_GREETING_BYTES) or {}
        want, peer, nonce = hello.get("want"), hello.get("node_rank"), hello.get("nonce")
        # Other words could be made to look like the proof of another greeting.
        if type(peer) is not int or not isinstance(nonce, str) or want not in _WANTS:
            raise GreetingRefused("no greeting")
        challenge = secrets.token_hex(16)
        proof = _prove(self._token, f"answer {want} {nonce} {peer} {self._node_rank}")
        wire.send({"node_rank": self._node_rank, "proof": proof, "nonce": challenge})
        answer = await wire.receive(MAX_GREETING_BYTES) or {}
        if not _is_proof(answer.get("proof"), self._token, f"{want} {challenge} {peer} {self._node_rank}"):
            raise GreetingRefused("wrong token")
        wire.send({"welcome": True})
        return want, peer


async def connect(
    token: str, want: str, node_rank: int, peer: int, *, address: tuple[str, int], own_address: str
) -> Wire:
    """A proven connection to the member with node rank `peer`; want: "probe" or "link".

    own_address: the local address to leave from, so that exactly this interface is used. Raises OSError, or
    GreetingRefused when somebody else answers. The caller sets the deadline.
    """
    reader, writer = await asyncio.open_connection(*address, local_addr=(own_address, 0))
    wire = Wire(reader, writer)
    try:
        nonce = secrets.token_hex(16)
        wire.send({"want": want, "node_rank": node_rank, "nonce": nonce})
        answer = await wire.receive() or {}
        if not _is_proof(answer.get("proof"), token, f"answer {want} {nonce} {node_rank} {peer}"):
            raise GreetingRefused("another process answers on that port")
        wire.send({"proof": _prove(token, f"{want} {answer.get('nonce')} {node_rank} {peer}")})
        if (await wire.receive() or {}).get("welcome") is not True:
            raise GreetingRefused("it hung up")
    except BaseException:
        wire.close()
        raise
    return wire


def _prove(token: str, text: str) -> str:
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def _is_proof(proof: object, token: str, text: str) -> bool:
    return isinstance(proof, str) and hmac.compare_digest(proof, _prove(token, text))
