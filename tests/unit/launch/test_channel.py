"""Frames with descriptors over a unix socket."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import pytest

from gangline import frame
from gangline.launch import channel


def test_a_message_arrives_with_exactly_its_descriptors() -> None:
    left, right = socket.socketpair()
    first, second = os.pipe()
    with left, right:
        channel.send(left, {"number": 1}, [first, second])
        channel.send(left, {"number": 2})
        channel.send(left, {"number": 3}, [first])
        received = [channel.receive(right) for _ in range(3)]
    assert [message["number"] for message, _ in filter(None, received)] == [1, 2, 3]
    assert [len(fds) for _, fds in filter(None, received)] == [2, 0, 1]
    for _, fds in filter(None, received):
        for fd in fds:
            assert not os.get_inheritable(fd)
            os.close(fd)
    os.close(first)
    os.close(second)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_message_bigger_than_the_socket_takes_at_once(is_blocking: bool) -> None:
    left, right = socket.socketpair()
    text = "x" * (4 << 20)
    messages: list[object] = []
    with left, right:
        reader = threading.Thread(target=lambda: messages.append(channel.receive(right)))
        reader.start()
        left.setblocking(is_blocking)
        channel.send(left, {"text": text})
        reader.join(10)
    assert messages == [({"text": text}, [])]


def test_the_end_of_the_stream_is_none_and_a_broken_frame_an_error() -> None:
    left, right = socket.socketpair()
    with right:
        with left:
            left.sendall(channel.pack({"a": 1})[:-2])
        with pytest.raises(channel.ChannelError):
            channel.receive(right)
        assert channel.receive(right) is None


def test_a_frame_over_the_limit_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall((frame.MAX_BODY_BYTES + 1).to_bytes(frame.HEADER_BYTES, "big"))
        with pytest.raises(channel.ChannelError, match="over the limit"):
            channel.receive(right)


async def test_a_message_is_read_from_an_asyncio_stream() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(channel.pack({"a": 1}) + frame.pack(b"[1]") + frame.pack(b"no json") + channel.pack({"b": 2}))
    assert await channel.read(reader) == {"a": 1}
    with pytest.raises(channel.ChannelError, match="expected an object, got list"):
        await channel.read(reader)
    with pytest.raises(ValueError, match="Expecting value"):
        await channel.read(reader)
    with pytest.raises(frame.OversizedFrameError):
        await channel.read(reader, 4)
