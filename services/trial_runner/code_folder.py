"""The user's code: fetched from a gateway once for each machine, checked, and unpacked for each allocation.

Owns the cache of judged archives under <state>/code, which drops the least recently used ones.
services/common/archive.py has the rules for unpacking; the gateway has already refused archives that break them. Each
allocation gets its own files, so two trials of one experiment cannot write into each other's folder.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import grpc

from gangline.errors import GanglineError, invalid, unavailable
from gangline.protocol.rpc import error_of, token_metadata
from gangline.v1 import ingest_pb2, ingest_pb2_grpc
from services.common.archive import BadArchive, checked_members, open_archive, tarfile
from services.common.archive_judge import judge_archive
from services.trial_runner.delivery.channel_route import ChannelRoute

# Bound on the archives that a machine keeps. The trials of a search share one, and a dropped one is fetched again.
CACHE_BYTES = 2 << 30
# Age of an untouched download after which it belongs to a runner that was killed.
STALE_SECONDS = 3600.0
# Time for which a failed download is retried.
ATTEMPTS_SECONDS = 60.0
# Deadline of one download.
CALL_SECONDS = 120.0
# Archives up to this size are read and unpacked at once, before a thread for it would have started. Threads also make a
# fork of a warm process slower.
SMALL_BYTES = 64 << 10
# Errors of a file system that an archive causes on any machine, by two members that collide or by a name.
_CAUSED_BY_ARCHIVE = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL}
# 2^32 - 1 seconds: the latest time that every Linux file system can store.
_LATEST_MTIME = 0xFFFFFFFF
T = TypeVar("T")
# Codes after which a retry with another gateway may succeed.
_RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


async def prepare_code(sha256: str, cache: Path, target: Path, route: ChannelRoute, token: str) -> Path:
    """Unpacks the code into `target`, and returns this folder. Raises GanglineError `code.*`."""
    archive = cache / f"{sha256}.tar.gz"
    if not await _off_loop(archive, _is_intact, archive, sha256):
        await _fetch(sha256, archive, route, token)
        await asyncio.to_thread(prune, cache, archive, CACHE_BYTES, time.time())
    await _off_loop(archive, unpack, archive, target)
    return target


async def _off_loop(archive: Path, work: Callable[..., T], *arguments: object) -> T:
    """Runs the work in a thread if the archive is big enough to delay the event loop."""
    try:
        is_small = archive.stat().st_size <= SMALL_BYTES  # noqa: ASYNC240 - one look at a local disk
    except FileNotFoundError:
        is_small = True
    return work(*arguments) if is_small else await asyncio.to_thread(work, *arguments)


def prune(cache: Path, used: Path, max_bytes: int, now: float) -> None:
    """Deletes the least recently used archives until at most max_bytes are left, and downloads that were given up.

    used: an archive that is always kept. Another runner may prune at the same time.
    """
    left = max_bytes
    with suppress(FileNotFoundError):
        left -= used.stat().st_size
    for found_at, size, path in sorted(_cached(cache), reverse=True):
        if path == used:
            continue
        if path.name.startswith("."):
            is_needless = now - found_at > STALE_SECONDS
        else:
            left -= size
            is_needless = left < 0
        if is_needless:
            path.unlink(missing_ok=True)


def _cached(cache: Path) -> Iterator[tuple[float, int, Path]]:
    """Yields each file's time of last use, its size and its path."""
    for path in cache.iterdir():
        with suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


async def _fetch(sha256: str, archive: Path, route: ChannelRoute, token: str) -> None:
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = archive.with_name(f".{sha256}.{os.getpid()}")
    deadline = asyncio.get_running_loop().time() + ATTEMPTS_SECONDS
    try:
        while True:
            try:
                received_sha256 = await _download(sha256, draft, route, token)
                break
            except grpc.aio.AioRpcError as error:
                if error.code() not in _RETRIED or asyncio.get_running_loop().time() > deadline:
                    raise error_of(error, route.name) from error
                await route.failed()
        if received_sha256 != sha256:
            raise _corrupt(sha256, f"its bytes have sha256 {received_sha256[:12]}...")
        try:
            # Judged once for each machine. An archive that passes is unpacked in this process from then on.
            await judge_archive(draft)
        except BadArchive as error:
            raise _refused(archive, error) from error
        # Another runner may have been faster; both files hold the same.
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)


async def _download(sha256: str, draft: Path, route: ChannelRoute, token: str) -> str:
    digest = hashlib.sha256()
    stub = ingest_pb2_grpc.IngestServiceStub(route.channel())
    request = ingest_pb2.FetchCodeRequest(code_sha256=sha256)
    with draft.open("wb") as file:
        async for response in stub.FetchCode(request, timeout=CALL_SECONDS, metadata=token_metadata(token)):
            digest.update(response.chunk)
            file.write(response.chunk)
    return digest.hexdigest()


def _is_intact(archive: Path, sha256: str) -> bool:
    try:
        with archive.open("rb") as file:
            # The time of last use, by which `prune` sorts.
            os.utime(archive)
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def unpack(archive: Path, target: Path) -> None:
    """Unpacks into a fresh folder, whole or not at all.

    Raises GanglineError `code.corrupt` or `code.unsafe`, which another attempt would meet as well, or `code.disk`.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        with open_archive(archive) as tar:
            tar.extractall(draft, members=checked_members(tar), filter=_filter)
        shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)
    except BadArchive as error:
        raise _refused(archive, error) from error
    except OSError as error:
        if error.errno in _CAUSED_BY_ARCHIVE:
            raise _unsafe(str(error)) from error
        raise unavailable("code.disk", f"cannot unpack the code into {target}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _filter(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Applies tarfile's own filter, which removes owners and modes, and resets times that no file can have."""
    filtered = tarfile.data_filter(member, path)
    return filtered if 0 <= filtered.mtime <= _LATEST_MTIME else filtered.replace(mtime=0, deep=False)


def _refused(archive: Path, error: BadArchive) -> GanglineError:
    """Returns the same error in words for a trial that was to start with this archive."""
    if error.code == "code.corrupt":
        return _corrupt(archive.name.partition(".")[0], error.why)
    return _unsafe(error.why)


def _unsafe(why: str) -> GanglineError:
    return invalid("code.unsafe", f"the code archive is not unpacked: {why}; submit the experiment again")


def _corrupt(sha256: str, why: str) -> GanglineError:
    return invalid("code.corrupt", f"the code archive {sha256[:12]} is corrupt: {why}; submit the experiment again")
