"""The port on which a member of a gang answers the others: probes of the network, and links to node rank 0.

Owns the greeting, in which both ends prove that they hold the allocation's token without sending it. Owns the limits of
the frames of JSON as well. `network_probe.py` uses both. The port is open on every interface, because the probes
decide which one the gang uses. It answers nothing but the greeting, and is closed once the gang is linked.

With TLS a link changes to it after the greeting (`link_tls.py`). Each end insists on what its own agent has, so nobody
between them can talk them out of it.
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

import structlog

from gangline.launch import channel
from services.trial_runner.gang.link_tls import LinkTls, WrongMember

# Limit for a greeting, after which a silent connection is closed.
GREETING_SECONDS = 5.0
# Bound on a frame of a linked member.
MAX_FRAME_BYTES = 1 << 20
# Bound on a frame of a peer that has proved nothing yet.
MAX_GREETING_BYTES = 1024
_WANTS = ("probe", "link")
# A host that lost its power is noticed after about this time; a process that died is noticed at once.
DEAD_PEER_SECONDS = 15

log = structlog.get_logger(__name__)


class GreetingRefused(Exception):
    """The process that answered is not the expected member."""


class Wire:
    """Frames of JSON over a TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # Of plain text. A writer that is collected closes its connection, which is below the one of TLS.
        self._below: asyncio.StreamWriter | None = None
        _watch_peer(writer.get_extra_info("socket"))

    async def secure(self, tls: LinkTls, peer: int, *, is_server: bool) -> None:
        """Goes on by TLS. The client calls it when the server, which sends nothing meanwhile, has begun. Raises
        OSError, and GreetingRefused if another agent answers."""
        # A reader of its own: bytes that a stranger sent in plain text before must not count as part of the link.
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        loop, context = asyncio.get_running_loop(), tls.context(is_server=is_server)
        transport = await loop.start_tls(self._writer.transport, protocol, context, server_side=is_server)
        if transport is None:
            raise ConnectionResetError("it hung up")
        protocol.connection_made(transport)
        self._below, self._reader = self._writer, reader
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            tls.check(peer, transport.get_extra_info("ssl_object"))
        except WrongMember as error:
            raise GreetingRefused(str(error)) from error

    def send(self, message: dict[str, Any]) -> None:
        """Sends without waiting. The receiving side notices a lost peer."""
        # asyncio's TLS fails without a reason after a second close.
        if self._writer.is_closing():
            return
        with suppress(ConnectionError, RuntimeError):
            self._writer.write(channel.pack(message))

    async def flush(self, deadline_seconds: float = 1.0) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                await self._writer.drain()

    async def receive(self, max_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any] | None:
        """Returns the next message. Returns None at the end of the connection, whatever ended it, and for a longer
        frame."""
        try:
            return await channel.read(self._reader, max_bytes)
        except (asyncio.IncompleteReadError, OSError, ValueError):
            return None

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self._writer.close()


def _watch_peer(sock: socket.socket) -> None:
    # The keepalive probes an idle connection after 5 s, three times with pauses of 3 s: 14 s until the peer counts as
    # dead. The user timeout covers a connection with unacknowledged bytes, on which no probes are sent.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_SECONDS * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class MemberServer:
    """Accepts the connections of other members. on_link: called with each member's node rank and wire; the connection
    stays open while the call runs. tls: of the links; None for plain text."""

    def __init__(
        self,
        token: str,
        node_rank: int,
        on_link: Callable[[int, Wire], Awaitable[None]],
        tls: LinkTls | None = None,
    ) -> None:
        self._tls = tls
        self._token = token
        self._node_rank = node_rank
        self._on_link = on_link
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listens from now on. Returns the port, which is the same on every interface."""
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
        except (TimeoutError, OSError, GreetingRefused) as error:
            log.info("a connection of the gang was refused", reason=str(error) or "it said nothing")
        finally:
            wire.close()

    async def _greet(self, wire: Wire) -> tuple[str, int]:
        hello = await wire.receive(MAX_GREETING_BYTES) or {}
        want, peer, nonce = hello.get("want"), hello.get("node_rank"), hello.get("nonce")
        # Values of other types could be chosen so that they look like the proof of another greeting.
        if type(peer) is not int or not isinstance(nonce, str) or want not in _WANTS:
            raise GreetingRefused("no greeting")
        challenge = secrets.token_hex(16)
        proof = _prove(self._token, f"answer {want} {nonce} {peer} {self._node_rank}")
        wire.send({"node_rank": self._node_rank, "proof": proof, "nonce": challenge, "tls": self._tls is not None})
        answer = await wire.receive(MAX_GREETING_BYTES) or {}
        if not _is_proof(answer.get("proof"), self._token, f"{want} {challenge} {peer} {self._node_rank}"):
            raise GreetingRefused("wrong token")
        wire.send({"welcome": True})
        if want == "link" and self._tls is not None:
            await wire.secure(self._tls, peer, is_server=True)
            # The other end learns by it that its certificate was good.
            wire.send({"linked": True})
        return want, peer


async def connect(
    token: str,
    want: str,
    node_rank: int,
    peer: int,
    *,
    address: tuple[str, int],
    own_address: str,
    tls: LinkTls | None = None,
) -> Wire:
    """Returns a proven connection to the member with node rank `peer`; want: "probe" or "link".

    own_address: the local address of the connection, so that exactly this interface is used. tls: of a link; None for
    plain text. Raises OSError, or GreetingRefused if another process answers. The caller sets the deadline.
    """
    reader, writer = await asyncio.open_connection(*address, local_addr=(own_address, 0))
    wire = Wire(reader, writer)
    try:
        nonce = secrets.token_hex(16)
        wire.send({"want": want, "node_rank": node_rank, "nonce": nonce})
        answer = await wire.receive() or {}
        if not _is_proof(answer.get("proof"), token, f"answer {want} {nonce} {node_rank} {peer}"):
            raise GreetingRefused("another process answers on that port")
        if want == "link" and bool(answer.get("tls")) != (tls is not None):
            has = "its agent has no [tls], and this one has" if tls else "its agent has [tls], and this one has none"
            raise GreetingRefused(f"{has}; set it for all agents, and restart them")
        wire.send({"proof": _prove(token, f"{want} {answer.get('nonce')} {node_rank} {peer}")})
        if (await wire.receive() or {}).get("welcome") is not True:
            raise GreetingRefused("it hung up")
        if tls is not None:
            await wire.secure(tls, peer, is_server=False)
            if (await wire.receive(MAX_GREETING_BYTES) or {}).get("linked") is not True:
                raise GreetingRefused("it refused the certificate of this agent")
    except BaseException:
        wire.close()
        raise
    return wire


def _prove(token: str, text: str) -> str:
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def _is_proof(proof: object, token: str, text: str) -> bool:
    return isinstance(proof, str) and hmac.compare_digest(proof, _prove(token, text))
