"""Keeps records on disk until the gateway has them: append-only segment files, each record numbered and checked.

A segment is named after its first record's number; `segment.py` has its format. Acknowledged records are deleted by
whole segments. The spool is bounded: beyond the bound the oldest segment is deleted, and the lost records are counted
and reported.
Records that cannot be read back (damaged, cut off, in a missing file) are skipped. A line for the trial's log is read
in their place, with the number of the last one of them. So the gateway stores it once and acknowledges it like the
records that it replaces.
The spool makes no network calls. One process uses it at a time; `recorder.py` writes, `record_stream.py` reads and
acknowledges.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from gangline.v1 import ingest_pb2, types_pb2
from services.trial_runner.delivery.segment import encode, read_at, scan

# Bound on one runner's records on disk.
MAX_BYTES = 256 << 20
# Size at which a new segment begins. Records are deleted by whole segments, so it is a small part of the bound.
SEGMENT_BYTES = 1 << 20
_SUFFIX = ".seg"
# Unit of reading for a file in which some block cannot be read.
_BLOCK_BYTES = 4096

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Segment:
    """One file of the spool."""

    path: Path
    first: int
    last: int
    size: int
    # False if the end of another process's last file cannot be read. `last` is then the lowest number that its last
    # record can have.
    is_last_known: bool = True


@dataclass(frozen=True, slots=True)
class Damage:
    """The records `first` to `last`, which cannot be read."""

    first: int
    last: int
    num_bytes: int  # size of their place, as far as it is left
    is_least: bool = False  # whether more records may have followed them

    @property
    def num_records(self) -> int:
        return self.last - self.first + 1


class Spool:
    """The bounded queue of one runner's records.

    num_dropped: records that were lost because the spool was full or the disk refused them; num_refused: the latter
    only.
    num_damaged: records that could not be read back, as far as reading has progressed.

    make_folder: called before each new segment, so that nothing is on disk before there is a record.
    agent_id: used in the log lines that replace damaged records.
    on_damage: called with the number of lost records, once for each damage.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        make_folder: Callable[[], None] | None = None,
        *,
        agent_id: str = "",
        on_damage: Callable[[int], None] | None = None,
    ) -> None:
        self._directory = directory
        self._make_folder = make_folder or (lambda: directory.mkdir(mode=0o700, parents=True, exist_ok=True))
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._fd = -1
        # The number of the last record read, and the byte of its segment after it. It saves the usual reader a scan; a
        # wrong cursor only costs time, because the record there is checked.
        self._cursor = (0, 0)
        self._agent_id = agent_id
        self._on_damage = on_damage
        # The last record of each damage by its first. Records that are sent again are read again, and each damage
        # counts once.
        self._damaged: dict[int, int] = {}
        self.num_dropped = 0
        self.num_refused = 0
        self.num_damaged = 0
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
        """Numbers the records and stores them. Returns how many records were dropped.

        A full spool drops its oldest segments. If the disk refuses a write, the new records are dropped.
        """
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
            frames += encode(record)
        try:
            segment = self._writable_segment()
            self._write(segment, frames)
        except OSError:
            self.num_dropped += len(records)
            self.num_refused += len(records)
            return
        self.last_sequence += len(records)
        segment.last = self.last_sequence

    def _writable_segment(self) -> _Segment:
        if self._fd >= 0 and self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        first = self.last_sequence + 1
        self._make_folder()
        path = self._directory / f"{first:016d}{_SUFFIX}"
        # A file with this name is the rest of a write that failed, whose records count as dropped.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._close_file()
        self._fd = fd
        self._segments.append(_Segment(path, first, first - 1, 0))
        return self._segments[-1]

    def _write(self, segment: _Segment, frames: bytes | bytearray) -> None:
        written = 0
        # The real size, and not the sum of what was written: foreign bytes may lie behind the last record. With the
        # sum, the reader would miss the end of each record after them.
        end = os.fstat(self._fd).st_size
        try:
            while written < len(frames):
                written += os.write(self._fd, memoryview(frames)[written:])
        except OSError:
            try:
                os.ftruncate(self._fd, end)
            except OSError:
                self._leave(segment)
            raise
        segment.size = os.fstat(self._fd).st_size

    def _leave(self, segment: _Segment) -> None:
        """Gives up the open file: bytes after its end would be taken for records, so the next ones go into a new
        file."""
        self._close_file()
        if not segment.size:
            self._segments.remove(segment)

    def _drop_oldest(self) -> None:
        oldest = self._segments.pop(0)
        oldest.path.unlink(missing_ok=True)
        lost = oldest.last - max(self.acknowledged, oldest.first - 1)
        self.num_dropped += max(0, lost)
        self.acknowledged = max(self.acknowledged, oldest.last)

    def read(self, after: int, max_records: int = 500, max_bytes: int = 256 << 10) -> list[ingest_pb2.IngestRecord]:
        """Returns the next records above number `after`; empty if there are none. Returns at least one record, whatever
        its size."""
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
        """Yields each record with the byte at which reading continues after it."""
        for segment in self._segments:
            if segment.last > after:
                yield from self._records_of(segment, max(after, segment.first - 1))

    def _records_of(self, segment: _Segment, after: int) -> Iterator[tuple[ingest_pb2.IngestRecord, int]]:
        """Yields every number above `after`: its record, or the line that replaces damaged ones."""
        sequence, start = self._cursor
        # The usual reader continues in the same segment, where it stopped.
        start = start if sequence == after and segment.first <= sequence else 0
        content = _read_bytes(segment.path, start, segment.size)
        next_record = read_at(content, 0) if start else None
        if start and (next_record is None or next_record.record.sequence != after + 1):
            # The record is damaged, or has moved because the file was cut off, so the whole file is scanned.
            start, content = 0, _read_bytes(segment.path, 0, segment.size)
        end = start
        for placed in scan(content, after if start else segment.first - 1, segment.last):
            if placed.record.sequence <= after:
                end = placed.end
                continue
            if placed.record.sequence > after + 1:
                damage = Damage(after + 1, placed.record.sequence - 1, start + placed.start - end)
                yield self._stand_in(damage, placed.record.at), start + placed.start
            yield placed.record, start + placed.end
            after, end = placed.record.sequence, start + placed.end
        if after < segment.last:
            damage = Damage(after + 1, segment.last, segment.size - end, is_least=not segment.is_last_known)
            yield self._stand_in(damage, time.time()), segment.size

    def _stand_in(self, damage: Damage, at: float) -> ingest_pb2.IngestRecord:
        text = describe_damage(damage, self._agent_id)
        new = damage.last - self._damaged.get(damage.first, damage.first - 1)
        if new > 0:
            self._damaged[damage.first] = damage.last
            self.num_damaged += new
            log.error("records of the spool are damaged", folder=str(self._directory), problem=text)
            if self._on_damage is not None:
                self._on_damage(new)
        line = ingest_pb2.LogLine(
            agent_id=self._agent_id, stream="runner", text=text, level=types_pb2.LOG_LEVEL_WARNING
        )
        return ingest_pb2.IngestRecord(sequence=damage.last, at=at, log=line)

    def acknowledge(self, sequence: int) -> None:
        """Notes that the gateway has everything up to this number, and deletes segments. A smaller number than before
        changes nothing."""
        self.acknowledged = max(self.acknowledged, min(sequence, self.last_sequence))
        while self._segments and self._segments[0].last <= self.acknowledged:
            segment = self._segments.pop(0)
            segment.path.unlink(missing_ok=True)
            if not self._segments:
                self._close_file()

    def close(self) -> None:
        """Closes the open file; all files stay on disk."""
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _chunks(
    records: Sequence[ingest_pb2.IngestRecord], size: int = 1000
) -> Iterable[Sequence[ingest_pb2.IngestRecord]]:
    return (records[start : start + size] for start in range(0, len(records), size))


def describe_damage(damage: Damage, agent_id: str) -> str:
    """Returns one sentence for the trial's log."""
    least = "at least " if damage.is_least else ""
    records = "1 record" if damage.num_records == 1 else f"{damage.num_records} records"
    numbers = f"{damage.first} to {damage.last}" if damage.num_records > 1 else f"{damage.first}"
    where = f"agent {agent_id}" if agent_id else "its agent"
    return (
        f"{least}{records} of this trial's log and metrics (numbers {numbers} of its spool, {damage.num_bytes} bytes) "
        f"are lost: they were damaged on the disk of {where} before a gateway had them"
    )


def _load_segments(directory: Path) -> list[_Segment]:
    """Reads the segments of a process that has ended. The name of a file gives the last number of the file before
    it."""
    paths = sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.stem.isdecimal())
    segments: list[_Segment] = []
    for path, follower in itertools.zip_longest(paths, paths[1:]):
        first, size = int(path.stem), path.stat().st_size
        if follower is not None:
            segments.append(_Segment(path, first, int(follower.stem) - 1, size))
            continue
        last, end = _find_last(path, first, size)
        if end < size:
            segments.append(_Segment(path, first, last + 1, size, is_last_known=False))
        elif size:
            segments.append(_Segment(path, first, last, size))
        else:
            path.unlink()
    return segments


def _find_last(path: Path, first: int, size: int) -> tuple[int, int]:
    """Returns the number of the last whole record and the byte at which it ends. Without any record, the number is the
    one before `first`."""
    last, end = first - 1, 0
    for placed in scan(_read_bytes(path, 0, size), first - 1, None):
        last, end = placed.record.sequence, placed.end
    return last, end


def _read_bytes(path: Path, start: int, stop: int) -> bytes:
    """Returns the bytes of a file; empty if the file is gone. A block that the disk cannot read is returned as zeros.
    Raises OSError for other errors."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        with suppress(_UnreadableError):
            return _read_range(fd, start, stop)
        blocks = range(start, stop, _BLOCK_BYTES)
        return b"".join(_read_block(fd, block, min(block + _BLOCK_BYTES, stop)) for block in blocks)
    finally:
        os.close(fd)


def _read_block(fd: int, start: int, stop: int) -> bytes:
    try:
        return _read_range(fd, start, stop)
    except _UnreadableError:
        return bytes(stop - start)


def _read_range(fd: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop:
        try:
            part = os.pread(fd, stop - start, start)
        except OSError as error:
            if error.errno == errno.EIO:
                raise _UnreadableError from error
            raise
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


class _UnreadableError(Exception):
    """Raised for bytes that the disk cannot read (EIO)."""
