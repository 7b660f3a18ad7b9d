"""The user's code: fetched from a gateway once for each machine, checked, and unpacked for each allocation.

Owns the cache of judged archives under <state>/code, which forgets what was not used for longest. By which rules an
archive is unpacked is in services/common/archive.py; the gateway has refused already what does not keep them. Each
allocation gets files of its own, so two trials of one experiment cannot write into each other's folder.
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
from gangline.rpc import error_of, token_metadata
from gangline.v1 import ingest_pb2, ingest_pb2_grpc
from services.common.archive import BadArchive, checked_members, open_archive
from services.common.archive_judge import judge_archive
from services.common.tar import tarfile
from services.trial_runner.route import Route

# What a machine keeps of archives; a search's trials share one, and what is gone is fetched again.
CACHE_BYTES = 2 << 30
# A download that was not touched for so long belongs to a runner that was killed.
STALE_SECONDS = 3600.0
ATTEMPTS_SECONDS = 60.0
CALL_SECONDS = 120.0
# Read and unpacked at once, before a thread for it would have started: threads make a fork of a warm process slower.
SMALL_BYTES = 64 << 10
# What two members or a name do to a file system, on any machine.
_CAUSED_BY_ARCHIVE = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL}
# 2^32 - 1: what every Linux file system keeps.
_LATEST_MTIME = 0xFFFFFFFF
T = TypeVar("T")
_RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


async def prepare_code(sha256: str, cache: Path, target: Path, route: Route, token: str) -> Path:
    """The folder `target` with the code in it. Raises GanglineError `code.*`."""
    archive = cache / f"{sha256}.tar.gz"
    if not await _off_loop(archive, _is_intact, archive, sha256):
        await _fetch(sha256, archive, route, token)
        await asyncio.to_thread(prune, cache, archive, CACHE_BYTES, time.time())
    await _off_loop(archive, unpack, archive, target)
    return target


async def _off_loop(archive: Path, work: Callable[..., T], *arguments: object) -> T:
    """Does the work beside the event loop where it takes a while."""
    try:
        is_small = archive.stat().st_size <= SMALL_BYTES  # noqa: ASYNC240 - one look at a local disk
    except FileNotFoundError:
        is_small = True
    return work(*arguments) if is_small else await asyncio.to_thread(work, *arguments)


def prune(cache: Path, used: Path, max_bytes: int, now: float) -> None:
    """Deletes the archives that were not used for longest until max_bytes are left, and downloads that were given up.

    used: stays in any case. Another runner may do the same at the same time.
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
    """When it was used, its size, where it is."""
    for path in cache.iterdir():
        with suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


async def _fetch(sha256: str, archive: Path, route: Route, token: str) -> None:
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = archive.with_name(f".{sha256}.{os.getpid()}")
    deadline = asyncio.get_running_loop().time() + ATTEMPTS_SECONDS
    try:
        while True:
            try:
                found = await _download(sha256, draft, route, token)
                break
            except grpc.aio.AioRpcError as error:
                if error.code() not in _RETRIED or asyncio.get_running_loop().time() > deadline:
                    raise error_of(error, route.name) from error
                await route.failed()
        if found != sha256:
            raise _corrupt(sha256, f"its bytes have sha256 {found[:12]}...")
        try:
            # Once for each machine. What passes here is unpacked in this process from then on.
            await judge_archive(draft)
        except BadArchive as error:
            raise _refused(archive, error) from error
        # Another runner may have been faster; both files hold the same.
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)


async def _download(sha256: str, draft: Path, route: Route, token: str) -> str:
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
            # Used now, so it is among the last to be forgotten.
            os.utime(archive)
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def unpack(archive: Path, target: Path) -> None:
    """Into a fresh folder, whole or not at all. Raises GanglineError `code.corrupt` or `code.unsafe`, which another
    attempt would meet as well, or `code.disk`."""
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
    """tarfile's own filter, which takes owners and modes away, without times that no file can have."""
    filtered = tarfile.data_filter(member, path)
    return filtered if 0 <= filtered.mtime <= _LATEST_MTIME else filtered.replace(mtime=0, deep=False)


def _refused(archive: Path, error: BadArchive) -> GanglineError:
    """The same in the words of a trial that was to start with this archive."""
    if error.code == "code.corrupt":
        return _corrupt(archive.name.partition(".")[0], error.why)
    return _unsafe(error.why)


def _unsafe(why: str) -> GanglineError:
    return invalid("code.unsafe", f"the code archive is not unpacked: {why}; submit the experiment again")


def _corrupt(sha256: str, why: str) -> GanglineError:
    return invalid("code.corrupt", f"the code archive {sha256[:12]} is corrupt: {why}; submit the experiment again")
