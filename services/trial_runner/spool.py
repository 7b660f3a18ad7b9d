"""Records on disk until the gateway has them: append-only segment files, each record numbered and checked.

A segment is named after its first record's number and holds (length, crc32, IngestRecord) one after another. What is
acknowledged is deleted by whole segments. The spool is bounded: beyond that the oldest segment goes, and the count of
what was lost is kept and told. Broken bytes at the end of a segment (a crash in the middle of a write) are cut off.
It knows nothing of the network. One process at a time; `recorder.py` writes, `ingest.py` reads and acknowledges.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from gangline.v1 import ingest_pb2

MAX_BYTES = 256 << 20
SEGMENT_BYTES = 1 << 20
_HEADER = struct.Struct(">II")
_SUFFIX = ".seg"


@dataclass(slots=True)
class _Segment:
    path: Path
    first: int
    last: int
    size: int


class Spool:
    """num_dropped: records that were lost because the spool was full or the disk refused them.

    make_folder: called before each new segment, so that nothing is on disk before there is a record.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        make_folder: Callable[[], None] | None = None,
    ) -> None:
        self._directory = directory
        self._make_folder = make_folder or (lambda: directory.mkdir(mode=0o700, parents=True, exist_ok=True))
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._cursor = (0, 0)
        self.num_dropped = 0
        self._segments = _load_segments(directory) if directory.is_dir() else []
        self.last_sequence = self._segments[-1].last if self._segments else 0
        self.acknowledged = self._segments[0].first - 1 if self._segments else 0

    @property
    def num_waiting(self) -> int:
        """Records that the gateway has not acknowledged."""
        return self.last_sequence - self.acknowledged

    @property
    def num_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def append(self, records: Sequence[ingest_pb2.IngestRecord]) -> int:
        """Numbers and stores them; how many older ones had to go for it. A disk that refuses loses the new ones."""
        dropped_before = self.num_dropped
        for chunk in _chunks(records):
            self._append_chunk(chunk)
        while self.num_bytes > self._max_bytes and len(self._segments) > 1:
            self._drop_oldest()
        return self.num_dropped - dropped_before

    def _append_chunk(self, records: Sequence[ingest_pb2.IngestRecord]) -> None:
        frames = bytearray()
        for sequence, record in enumerate(records, self.last_sequence + 1):
            record.sequence = sequence
            payload = record.SerializeToString()
            frames += _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            segment = self._writable_segment()
            self._write(segment, frames)
        except OSError:
            self.num_dropped += len(records)
            return
        self.last_sequence += len(records)
        segment.last = self.last_sequence

    def _writable_segment(self) -> _Segment:
        if self._fd >= 0 and self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        first = self.last_sequence + 1
        self._make_folder()
        path = self._directory / f"{first:016d}{_SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._close_file()
        self._fd = fd
        self._segments.append(_Segment(path, first, first - 1, 0))
        return self._segments[-1]

    def _write(self, segment: _Segment, frames: bytes | bytearray) -> None:
        written = 0
        try:
            while written < len(frames):
                written += os.write(self._fd, memoryview(frames)[written:])
        except OSError:
            os.ftruncate(self._fd, segment.size)
            raise
        segment.size += len(frames)

    def _drop_oldest(self) -> None:
        oldest = self._segments.pop(0)
        oldest.path.unlink(missing_ok=True)
        lost = oldest.last - max(self.acknowledged, oldest.first - 1)
        self.num_dropped += max(0, lost)
        self.acknowledged = max(self.acknowledged, oldest.last)

    def read(self, after: int, max_records: int = 500, max_bytes: int = 256 << 10) -> list[ingest_pb2.IngestRecord]:
        """The next records above number `after`; empty when there are none. At least one, however big it is."""
        records: list[ingest_pb2.IngestRecord] = []
        size = 0
        for record, offset in self._records_after(after):
            records.append(record)
            size += record.ByteSize()
            self._cursor = (record.sequence, offset)
            if len(records) >= max_records or size >= max_bytes:
                break
        return records

    def _records_after(self, after: int) -> Iterator[tuple[ingest_pb2.IngestRecord, int]]:
        for segment in self._segments:
            if segment.last <= after:
                continue
            sequence, offset = self._cursor
            # The usual reader goes on where it stopped, in the same segment.
            start = offset if sequence == after and segment.first <= sequence else 0
            for record, end in _scan(segment.path, start, segment.size):
                if record.sequence > after:
                    yield record, end

    def acknowledge(self, sequence: int) -> None:
        """The gateway has everything up to this number. An older number than before changes nothing."""
        self.acknowledged = max(self.acknowledged, min(sequence, self.last_sequence))
        while self._segments and self._segments[0].last <= self.acknowledged:
            segment = self._segments.pop(0)
            segment.path.unlink(missing_ok=True)
            if not self._segments:
                self._close_file()

    def close(self) -> None:
        """The files stay."""
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _chunks(
    records: Sequence[ingest_pb2.IngestRecord], size: int = 1000
) -> Iterable[Sequence[ingest_pb2.IngestRecord]]:
    return (records[start : start + size] for start in range(0, len(records), size))


def _load_segments(directory: Path) -> list[_Segment]:
    segments = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        last, size = 0, 0
        first = int(path.stem)
        for record, end in _scan(path, 0, path.stat().st_size):
            last, size = record.sequence, end
        if not size:
            path.unlink()
            continue
        os.truncate(path, size)
        segments.append(_Segment(path, first, last, size))
    return segments


def _scan(path: Path, start: int, stop: int) -> Iterator[tuple[ingest_pb2.IngestRecord, int]]:
    """Each record from byte `start` with the byte at which it ends, up to the first that is broken."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(stop - start)
    except FileNotFoundError:
        return
    position = 0
    while position + _HEADER.size <= len(content):
        length, checksum = _HEADER.unpack_from(content, position)
        payload = content[position + _HEADER.size : position + _HEADER.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        try:
            record = ingest_pb2.IngestRecord.FromString(payload)
        except DecodeError:
            return
        position += _HEADER.size + length
        yield record, start + position
