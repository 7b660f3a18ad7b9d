"""Judges a code archive: a gzipped tar whose files stay inside the folder and are not too large.

It reads a local file and writes nothing; the code use case stores what passes here. Blocking, so called in a thread.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gangline.errors import GanglineError, invalid
from services.common.tar import tarfile

MB = 1 << 20
MAX_UNPACKED_MB = 95
# Headers and padding come on top of the files, and a stream of nothing else must end as well.
MAX_STREAM_BYTES = 2 * MAX_UNPACKED_MB * MB
MAX_ARCHIVE_BYTES = (MAX_UNPACKED_MB + 5) * MB
# Only for judging paths: nothing is unpacked there.
ANYWHERE = "/nonexistent"


def check_archive(path: Path) -> None:
    """Raises GanglineError `code.corrupt`, `code.unsafe_path` or `code.too_big`."""
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as unzipped:
            stream = _Bounded(unzipped)
            _check_members(stream)
            # What follows the last member is read as well, because gzip's checksum comes at the very end.
            while stream.read(MB):
                pass
    except (OSError, EOFError, zlib.error, tarfile.ReadError) as failure:
        raise invalid(
            "code.corrupt", f"the code archive is damaged or no gzipped tar ({failure}); pack and upload it again"
        ) from failure


class _Bounded:
    """A readable that ends with an error instead of unpacking without end."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._left = MAX_STREAM_BYTES

    def read(self, size: int) -> bytes:
        chunk = self._source.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise too_large("more")
        return chunk


def _check_members(stream: _Bounded) -> None:
    num_bytes = 0
    with tarfile.open(fileobj=_as_file(stream), mode="r|") as archive:
        for member in archive:
            _check_member(member)
            num_bytes += member.size
            if num_bytes > MAX_UNPACKED_MB * MB:
                raise too_large(f"{num_bytes / MB:.0f} MB and more")


def _check_member(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise _unsafe(member)
    try:
        tarfile.data_filter(member, ANYWHERE)
    except tarfile.FilterError as failure:
        raise _unsafe(member) from failure


def _unsafe(member: tarfile.TarInfo) -> GanglineError:
    return invalid(
        "code.unsafe_path",
        f"the code archive holds {member.name!r}, which does not stay inside the code folder; leave it out",
    )


def too_large(found: str) -> GanglineError:
    return invalid(
        "code.too_big",
        f"the code folder has {found}, at most {MAX_UNPACKED_MB} MB are allowed; keep data and checkpoints out of it, "
        "or list them in .ganglineignore",
    )


def _as_file(stream: _Bounded) -> BinaryIO:
    """tarfile in stream mode only ever calls read."""
    return stream  # type: ignore[return-value]  # a duck of one method, by tarfile's documentation
