"""PURE: the records in the bytes of a spool segment, even of a damaged one.

Owns the format: (length, crc32, IngestRecord) one after another, with rising sequence numbers. A damaged record is
skipped: the scan continues at the next byte where a whole record with a higher number begins. Called by `spool.py`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from gangline.v1 import ingest_pb2

_HEADER = struct.Struct(">II")
# The first byte of each payload: field 1, a varint. Protobuf writes fields by number, and no record has number 0.
_SEQUENCE_TAG = b"\x08"
# The longest varint of protobuf, for 64 bits.
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """A whole record, and its place: the bytes from start up to end."""

    record: ingest_pb2.IngestRecord
    start: int
    end: int


def encode(record: ingest_pb2.IngestRecord) -> bytes:
    payload = record.SerializeToString()
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def scan(content: bytes, after: int, last: int | None) -> Iterator[PlacedRecord]:
    """Yields the whole records in order, and skips bytes that belong to none.

    after, last: the bounds of their sequence numbers, exclusive and inclusive. last is None if it is not known.
    """
    position = 0
    while (placed := _next_record(content, position, after, last)) is not None:
        yield placed
        position, after = placed.end, placed.record.sequence


def read_at(content: bytes, start: int) -> PlacedRecord | None:
    """Returns the record that begins at this byte; None if no whole record begins there."""
    if start + _HEADER.size >= len(content):
        return None
    length, checksum = _HEADER.unpack_from(content, start)
    end = start + _HEADER.size + length
    if end > len(content):
        return None
    payload = content[start + _HEADER.size : end]
    if zlib.crc32(payload) != checksum:
        return None
    try:
        return PlacedRecord(ingest_pb2.IngestRecord.FromString(payload), start, end)
    except DecodeError:
        return None


def _next_record(content: bytes, position: int, after: int, last: int | None) -> PlacedRecord | None:
    """Tests each byte that may be the first of a payload. The sequence number is compared before the checksum, whose
    cost is proportional to the length."""
    tag_at = position + _HEADER.size
    while (tag_at := content.find(_SEQUENCE_TAG, tag_at)) >= 0:
        if _is_between(_read_varint(content, tag_at + 1), after, last):
            placed = read_at(content, tag_at - _HEADER.size)
            if placed is not None and _is_between(placed.record.sequence, after, last):
                return placed
        tag_at += 1
    return None


def _is_between(sequence: int | None, after: int, last: int | None) -> bool:
    return sequence is not None and sequence > after and (last is None or sequence <= last)


def _read_varint(content: bytes, start: int) -> int | None:
    value = 0
    for shift, byte in enumerate(content[start : start + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value
    return None
