"""A body comes out of its frame as it went in, however the stream cuts it; a length over the limit is refused."""

from __future__ import annotations

import asyncio

import pytest

from gangline import frame

_BODIES = [b"", b"x", b"y" * 300, b"\0\0\0\1"]


def _reader(content: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return reader


def test_the_length_is_four_bytes_in_big_endian_order() -> None:
    assert frame.pack(b"z" * 258) == b"\0\0\1\2" + b"z" * 258
    assert frame.parse_length(b"\0\0\1\2") == 258


@pytest.mark.parametrize("step", [1, 3, 4, 5, 10_000])
def test_bodies_are_taken_from_any_pieces(step: int) -> None:
    stream = b"".join(map(frame.pack, _BODIES))
    received = bytearray()
    taken: list[bytes] = []
    for start in range(0, len(stream), step):
        received += stream[start : start + step]
        taken += frame.take_bodies(received)
    assert taken == _BODIES
    assert received == b""


def test_an_incomplete_frame_stays() -> None:
    received = bytearray(frame.pack(b"whole") + frame.pack(b"half")[:-1])
    assert list(frame.take_bodies(received)) == [b"whole"]
    assert received == frame.pack(b"half")[:-1]


async def test_bodies_are_read_one_by_one_until_the_stream_ends() -> None:
    reader = _reader(b"".join(map(frame.pack, _BODIES)) + frame.pack(b"cut off")[:-1])
    assert [await frame.read(reader) for _ in _BODIES] == _BODIES
    with pytest.raises(asyncio.IncompleteReadError):
        await frame.read(reader)


async def test_a_body_may_be_as_long_as_the_limit_and_no_longer() -> None:
    reader = _reader(frame.pack(b"12345") + frame.pack(b"123456"))
    assert await frame.read(reader, 5) == b"12345"
    with pytest.raises(frame.OversizedFrameError, match="a frame of 6 bytes is over the limit of 5"):
        await frame.read(reader, 5)


def test_the_limit_holds_where_a_caller_names_none() -> None:
    assert frame.parse_length(b"\1\0\0\0") == frame.MAX_BODY_BYTES
    with pytest.raises(frame.OversizedFrameError):
        frame.parse_length(b"\1\0\0\1")
