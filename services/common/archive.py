"""Reads code archives: gzipped tars of plain files and folders, and of nothing else.

Owns the rules for members and the limits of their headers, so that reading takes time and memory in proportion to the
archive. The code blocks. Gateways run it in a process of its own (`archive_judge`); trial runners unpack with it.
As a program, `python -m services.common.archive FILE`, it limits itself, judges the file and prints a verdict as JSON.

Uses the backport of tarfile's extraction filters where Python is older than 3.11.4, as on Debian 12.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Protocol, cast

from gangline.domain.limits import MAX_FILES, MAX_MB, MAX_PART_BYTES, MAX_PATH_BYTES, MB
from gangline.errors import GanglineError

# Replaced before any class of it is derived or compared: the backport's archives make members of the backport's class.
if not TYPE_CHECKING and not hasattr(tarfile, "data_filter"):
    from backports import tarfile

__all__ = ["tarfile"]

# Headers and padding add to the files, and a stream of nothing else must end as well.
MAX_STREAM_BYTES = 2 * MAX_MB * MB
MAX_ARCHIVE_BYTES = (MAX_MB + 5) * MB
# Limit for a header that carries a long name or pax records. tarfile reads it whole, and its pattern for pax records
# takes time that grows with the square of a header's length (CVE-2024-6232).
MAX_HEADER_BYTES = 16 << 10
# Limits that the program sets for itself. The largest archive that is accepted takes 3 s and 60 MB.
CPU_SECONDS = 15
ADDRESS_SPACE_BYTES = 1 << 30

_HEADERS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}
_PLAIN = {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE}
_LINKS = {tarfile.LNKTYPE, tarfile.SYMTYPE}
_UNREADABLE = (
    EOFError, zlib.error, tarfile.TarError, ValueError, ArithmeticError, RecursionError, AttributeError, LookupError,
)  # fmt: skip


class BadArchive(GanglineError):
    """Refuses an archive. why: without the advice, which differs for the user who packs the archive and for the runner
    of a trial."""

    def __init__(self, code: str, why: str, advice: str) -> None:
        super().__init__(code, f"{why}; {advice}")
        self.why = why
        self.args = (code, why, advice)


def judge(path: Path) -> None:
    """Reads the archive to its end and keeps nothing. Raises GanglineError `code.*`."""
    with open_archive(path) as archive:
        for _ in checked_members(archive):
            pass


@contextmanager
def open_archive(path: Path, digest: Digest | None = None) -> Iterator[tarfile.TarFile]:
    """Opens an archive that is read once, from front to back. Raises GanglineError `code.corrupt`, `code.too_big` or
    `code.unsafe_path`. OSError passes through where the disk is the cause.

    digest: is updated with the bytes of the file as they are read, all of them where no error is raised.
    """
    try:
        with path.open("rb") as raw:
            source = cast("BinaryIO", _Observed(raw, digest)) if digest else raw
            stream = _Bounded(gzip.GzipFile(fileobj=source))
            # In stream mode tarfile calls only read.
            with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|", tarinfo=_Member) as archive:
                yield archive
            # The rest after the last member is read as well, because gzip's checksum is at the very end.
            while stream.read(MB):
                pass
    except OSError as failure:
        if failure.errno is not None:
            raise
        raise corrupt(str(failure)) from failure
    except _UNREADABLE as failure:
        raise corrupt(str(failure) or type(failure).__name__) from failure


def checked_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields each member as soon as it has passed the rules. Raises GanglineError."""
    num_bytes = num_files = 0
    files: set[str] = set()
    folders: set[str] = set()
    for member in archive:
        # tarfile collects members, which helps only a reader that seeks back; clearing the list bounds the memory.
        archive.members = []  # type: ignore[attr-defined]  # the stubs lack it
        path = _check_path(member)
        if member.size < 0:
            raise corrupt(f"{member.name!r} has the size {member.size}")
        num_files, num_bytes = num_files + 1, num_bytes + member.size
        if num_files > MAX_FILES:
            raise too_large(f"more than {MAX_FILES} files", f"at most {MAX_FILES}")
        if num_bytes > MAX_MB * MB:
            raise too_large(f"{num_bytes / MB:.0f} MB and more")
        parents = [str(parent) for parent in path.parents]
        folders.update(parents)
        (folders if member.isdir() else files).add(str(path))
        if (str(path) in files and str(path) in folders) or not files.isdisjoint(parents):
            raise _unsafe(member, "is there as a file and as a folder")
        yield member


class _Member(tarfile.TarInfo):
    """Refuses a member by its header, before tarfile reads the data that the header announces."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0:
            raise corrupt(f"{self.name!r} has the size {self.size}")
        if self.type in _HEADERS:
            if self.size > MAX_HEADER_BYTES:
                raise corrupt(f"a header has {self.size} bytes, at most {MAX_HEADER_BYTES} are allowed")
        elif self.type in _LINKS:
            raise _unsafe(self, "is a link", "pack what it points to (tar -h --hard-dereference)")
        elif self.type not in _PLAIN:
            raise _unsafe(self, "is neither a file nor a folder")
        elif self.size > MAX_MB * MB:
            raise too_large(f"{self.size / MB:.0f} MB and more")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # tarfile's own place for overriding
        return member

    def _refuse_sparse(self, *_: Any) -> NoReturn:
        raise _unsafe(self, "is a sparse file", "pack it without --sparse")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class Digest(Protocol):
    """A checksum in progress, as hashlib makes it."""

    def update(self, data: bytes, /) -> None: ...


class _Observed:
    """Reads a file for gzip, and passes its bytes to a checksum. So the checksum is that of the unpacked bytes,
    whatever another process writes into the file meanwhile."""

    def __init__(self, source: BinaryIO, digest: Digest) -> None:
        self._source = source
        self._digest = digest

    def read(self, size: int = -1) -> bytes:
        chunk = self._source.read(size)
        self._digest.update(chunk)
        return chunk


class _Bounded:
    """Reads a stream, and raises an error instead of unpacking without end."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._left = MAX_STREAM_BYTES

    def read(self, size: int) -> bytes:
        chunk = self._source.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise too_large("more")
        return chunk


def _check_path(member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise _unsafe(member, "does not stay inside the code folder")
    if not path.parts and not member.isdir():
        raise _unsafe(member, "has no name")
    if "\x00" in member.name:
        raise _unsafe(member, "has the character NUL in its name")
    if len(member.name) > MAX_PATH_BYTES or len(_bytes(member.name)) > MAX_PATH_BYTES:
        raise _unsafe(member, f"has a path of more than {MAX_PATH_BYTES} bytes")
    if any(len(_bytes(part)) > MAX_PART_BYTES for part in path.parts):
        raise _unsafe(member, f"has a name of more than {MAX_PART_BYTES} bytes")
    return path


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _unsafe(member: tarfile.TarInfo, why: str, advice: str = "leave it out") -> BadArchive:
    shown = member.name if len(member.name) <= MAX_PART_BYTES else f"{member.name[:MAX_PART_BYTES]}..."
    return BadArchive("code.unsafe_path", f"the code archive holds {shown!r}, which {why}", advice)


def too_large(content: str, allowed: str = f"at most {MAX_MB} MB") -> BadArchive:
    return BadArchive(
        "code.too_big",
        f"the code folder has {content}, {allowed} are allowed",
        "keep data and checkpoints out of it, or list them in .ganglineignore",
    )


def too_slow(seconds: str) -> BadArchive:
    why = f"reading the code archive takes more than {seconds}, which no folder within the limits does"
    return BadArchive("code.too_big", why, "pack it again")


def corrupt(why: str) -> BadArchive:
    text = f"the code archive is damaged or no gzipped tar ({why})"
    return BadArchive("code.corrupt", text, "pack and upload it again")


def _main() -> None:
    """Judges the file named on the command line. SIGXCPU ends the process when it takes too long."""
    # At the hard limit the kernel would send SIGKILL, which others send as well.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    # A core file of a hostile archive's reader would only fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    refusal: BadArchive | None = None
    try:
        judge(Path(sys.argv[1]))
    except BadArchive as error:
        refusal = error
    except MemoryError:
        refusal = too_large("contents that take too much memory to read")
    print(json.dumps(refusal.args if refusal is not None else []))


if __name__ == "__main__":
    _main()
