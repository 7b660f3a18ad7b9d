"""Sends frames of JSON with file descriptors over a unix stream socket.

The fork server, the nursery and their clients exchange messages through it. The descriptors of a message travel with
its length. So a receiver that reads exactly the length gets exactly the descriptors of that message. Standard library
only, because warm processes load this module.
"""

from __future__ import annotations

import array
import json
import select
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gangline import frame

if TYPE_CHECKING:
    from asyncio import StreamReader

# The kernel's limit on the descriptors in one message.
MAX_FDS = 253


class ChannelError(OSError):
    """The peer went away in the middle of a message, or sent bytes that are no frame."""


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Sends one message. Returns when the kernel has all of it, also on a non-blocking socket."""
    unsent = memoryview(pack(message))
    rights = _rights(fds)
    while unsent:
        try:
            sent = sock.sendmsg([unsent], rights)
        except BlockingIOError:
            select.select([], [sock], [])
            continue
        unsent, rights = unsent[sent:], []


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next message and its descriptors from a blocking socket, None at the end of the stream.

    The caller owns the descriptors; they are closed on exec.
    """
    header, fds = _receive_length(sock)
    if not header:
        return None
    try:
        length = frame.parse_length(header)
    except frame.OversizedFrameError as error:
        raise ChannelError(str(error)) from error
    return _parse(_receive_exactly(sock, length)), fds


async def read(reader: StreamReader, max_bytes: int = frame.MAX_BODY_BYTES) -> dict[str, Any]:
    """Returns the next message, without descriptors, from an asyncio stream.

    Raises what `frame.read` raises, ValueError for a body that is no JSON, and ChannelError for one that is no object.
    """
    return _parse(await frame.read(reader, max_bytes))


def pack(message: dict[str, Any]) -> bytes:
    """Returns the bytes of one frame."""
    return frame.pack(json.dumps(message).encode())


def _parse(body: bytes) -> dict[str, Any]:
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ChannelError(f"expected an object, got {type(message).__name__}")
    return message


def _rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    if not fds:
        return []
    if len(fds) > MAX_FDS:
        raise ChannelError(f"{len(fds)} descriptors are over the limit of {MAX_FDS} in one message")
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]


def _receive_length(sock: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    # Reads no more than the length, so that the descriptors of a further message stay in the socket.
    header, ancillary, _, _ = sock.recvmsg(frame.HEADER_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, message_type, payload in ancillary:
        if (level, message_type) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if header and len(header) < frame.HEADER_BYTES:
        header += _receive_exactly(sock, frame.HEADER_BYTES - len(header))
    return header, fds.tolist()


def _receive_exactly(sock: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = sock.recv(min(length - len(parts), 1 << 20))
        if not part:
            raise ChannelError("the peer went away in the middle of a message")
        parts += part
    return bytes(parts)
