"""Reads the scalars back out of TensorBoard's event files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def read_scalars(directory: Path) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, over all event files below the folder."""
    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(directory.rglob("*tfevents*")):
        for event in _events(path.read_bytes()):
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars


def _events(content: bytes) -> Iterator[Event]:
    """Each record: its length in 8 bytes, a checksum of 4, the record, a checksum of 4."""
    while content:
        (length,) = struct.unpack_from("<Q", content)
        yield Event.FromString(content[12 : 12 + length])
        content = content[12 + length + 4 :]
