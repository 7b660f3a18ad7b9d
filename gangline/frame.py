"""The frames on Gangline's stream sockets: 4 bytes of length in big-endian order, then the body.

Owns the format and the limit of a body. It does not know the content of a body. Called by gangline.core.runner_wire,
gangline.launch.channel and trial runners. Standard library only, because warm processes load this module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import StreamReader

_LENGTH = struct.Struct(">I")
# The size of the length in front of each body.
HEADER_BYTES = _LENGTH.size
# A longer body is refused before it is read, so that a damaged or hostile length cannot exhaust the memory.
MAX_BODY_BYTES = 16 << 20


class OversizedFrameError(ValueError):
    """The length of a frame is over the reader's limit."""


def pack(body: bytes) -> bytes:
    """Returns the frame of this body."""
    return _LENGTH.pack(len(body)) + body


def parse_length(header: bytes, max_bytes: int = MAX_BODY_BYTES) -> int:
    """Returns the length of the body after this header. Raises OversizedFrameError for a body over max_bytes."""
    (length,) = _LENGTH.unpack(header)
    if length > max_bytes:
        raise OversizedFrameError(f"a frame of {length} bytes is over the limit of {max_bytes}")
    return int(length)


async def read(reader: StreamReader, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Returns the body of the next frame. Raises OversizedFrameError, and asyncio.IncompleteReadError at the end of the
    stream."""
    return await reader.readexactly(parse_length(await reader.readexactly(HEADER_BYTES), max_bytes))


def take_bodies(received: bytearray) -> Iterator[bytes]:
    """Removes the complete frames from `received` and yields their bodies; an incomplete frame stays.

    A body has no limit here: this is for a rank, which trusts its own trial runner.
    """
    while len(received) >= HEADER_BYTES:
        (length,) = _LENGTH.unpack_from(received)
        end = HEADER_BYTES + length
        if len(received) < end:
            return
        body = bytes(received[HEADER_BYTES:end])
        del received[:end]
        yield body
