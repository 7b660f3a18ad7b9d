"""Offers a shell or a notebook of this runner to the gateways, and carries connections between them and its socket.

Every gateway is dialled from here, so no gateway has to reach an agent. For each gateway there is one task that waits
for orders and dials again after a loss. The socket belongs to the user's program: another socket that it puts in its
place is refused, unless it listens as the same account.
"""

from __future__ import annotations

import asyncio
import pwd
import random
import socket
import struct
from collections.abc import AsyncIterable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import structlog

from gangline import unix_socket
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.protocol.rpc import CHANNEL_OPTIONS, raise_if_cancelled, token_metadata
from gangline.v1 import ingest_pb2, ingest_pb2_grpc
from services.common.access.user_rights import rights_of
from services.common.concurrency import cancel, first_of
from services.common.disk import write_atomic
from services.common.rank_rules import RankUser

# Between two attempts to connect to the socket before it listens for the first time.
LISTEN_SECONDS = 0.1
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 3.0
# Bytes of one message of a tunnel.
CHUNK_BYTES = 64 << 10

log = structlog.get_logger(__name__)


class TaskProxy:
    """socket_path: where the task listens. key_path: the file for the key of a shell's owner, in a folder in which the
    task's account makes no files. uid: of that account. user: the same, where it is another one than the runner's."""

    def __init__(
        self,
        allocation_id: str,
        token: str,
        socket_path: Path,
        key_path: Path,
        uid: int,
        *,
        user: RankUser | None = None,
        dialer: Dialer = PLAIN,
    ) -> None:
        self._allocation_id = allocation_id
        self._metadata = token_metadata(token)
        self._socket_path = socket_path
        self._key_path = key_path
        self._uid = uid
        self._user = user
        self._dialer = dialer
        # Nobody but the task's own processes finds the name of an account for an owner.
        self._account = user.name if user is not None else _name_of(uid)
        self._offers: dict[str, asyncio.Task[None]] = {}
        self._is_listening = asyncio.Event()
        self._watching = asyncio.create_task(self._await_socket())

    def learn(self, addresses: Sequence[str]) -> None:
        """Takes the gateways that are alive: offers the task to new ones, and drops those that have gone."""
        for address in set(self._offers) - set(addresses):
            self._offers.pop(address).cancel()
        for address in addresses:
            if address not in self._offers:
                self._offers[address] = asyncio.create_task(self._offer(address))

    async def close(self) -> None:
        await cancel(self._watching, *self._offers.values())

    async def _await_socket(self) -> None:
        while True:
            try:
                (await self._connect()).close()
            except OSError:
                await asyncio.sleep(LISTEN_SECONDS)
            else:
                self._is_listening.set()
                return

    async def _offer(self, address: str) -> None:
        await self._is_listening.wait()
        failures = 0
        carrying: set[asyncio.Task[None]] = set()
        while True:
            channel = self._dialer.open_async(address, CHANNEL_OPTIONS)
            try:
                stub = ingest_pb2_grpc.IngestServiceStub(channel)
                request = ingest_pb2.OfferTunnelsRequest(allocation_id=self._allocation_id, user=self._account)
                async for order in stub.OfferTunnels(request, metadata=self._metadata):
                    failures = 0
                    if order.authorized_key:
                        self._save_key(order.authorized_key)
                    if order.tunnel_id:
                        task = asyncio.create_task(self._carry(stub, order.tunnel_id))
                        carrying.add(task)
                        task.add_done_callback(carrying.discard)
            except grpc.RpcError as error:
                raise_if_cancelled()
                log.info("cannot offer the task at a gateway", gateway=address, reason=str(error))
            finally:
                await cancel(*carrying)
                await channel.close()
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 10))
            failures += 1
            await asyncio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311 - guards nothing

    def _save_key(self, line: str) -> None:
        """Writes the owner's key where the shell's server reads it. Everyone on this machine may read it."""
        with suppress(OSError):
            write_atomic(self._key_path, line + "\n", mode=0o644, is_durable=False)

    async def _carry(self, stub: ingest_pb2_grpc.IngestServiceAsyncStub, tunnel_id: str) -> None:
        """Carries one connection until one side ends it."""
        call = stub.Tunnel(metadata=self._metadata)
        try:
            connection = await self._connect()
        except OSError as error:
            with suppress(grpc.RpcError):
                problem = error.strerror or str(error)
                await call.write(ingest_pb2.TunnelRequest(tunnel_id=tunnel_id, problem=f"its socket: {problem}"))
                await call.done_writing()
            return
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            await call.write(ingest_pb2.TunnelRequest(tunnel_id=tunnel_id))
            await first_of(_send(reader, call), _receive(call, writer))
        except (grpc.RpcError, OSError):
            raise_if_cancelled()
        finally:
            call.cancel()
            writer.close()

    async def _connect(self) -> socket.socket:
        """Raises OSError, also for a socket of another account."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A connection to a unix socket is made at once, or refused.
            connection.setblocking(False)
            # The task may put a link in the socket's place.
            with rights_of(self._user):
                unix_socket.connect(connection, str(self._socket_path))
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != self._uid:
                raise PermissionError(0, f"it belongs to another account (uid {uid})")
        except OSError:
            connection.close()
            raise
        return connection


async def _send(reader: asyncio.StreamReader, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
    while data := await reader.read(CHUNK_BYTES):
        await call.write(ingest_pb2.TunnelRequest(data=data))
    await call.done_writing()
    # The gateway ends the call once it has read everything.
    await call.code()


async def _receive(call: AsyncIterable[ingest_pb2.TunnelResponse], writer: asyncio.StreamWriter) -> None:
    async for message in call:
        writer.write(message.data)
        await writer.drain()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
