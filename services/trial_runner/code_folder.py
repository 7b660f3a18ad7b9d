"""The user's code: fetched from a gateway once for each machine, checked, and unpacked for each allocation.

services/common/code_cache.py owns the cached archives. services/common/archive.py has the rules for unpacking; the
gateway has already refused archives that break them. Each allocation gets its own files, so two trials of one
experiment cannot write into each other's folder. The preparation of a start calls `prepare_code`.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import structlog

from gangline.errors import GanglineError, invalid, unavailable
from gangline.protocol.rpc import error_of, is_answer, token_metadata
from gangline.v1 import ingest_pb2, ingest_pb2_grpc
from services.common.archive import BadArchive, checked_members, open_archive, tarfile
from services.common.archive_judge import judge_archive
from services.common.code_cache import CodeCache
from services.trial_runner.delivery.channel_route import ChannelRoute
from services.trial_runner.start_error import NO_GATEWAY_CODE

# Time for which a start waits for a gateway. It is shorter than the other members of a gang wait for this one's store.
# The scheduler starts the attempt again once a gateway is registered.
ATTEMPTS_SECONDS = 30.0
# Deadline of one download.
CALL_SECONDS = 120.0
# Limit for the wait for another runner's download. That runner may be stopped and then never ends.
WAIT_SECONDS = ATTEMPTS_SECONDS + CALL_SECONDS
# Reads of an entry that is damaged, or removed between its download and its use, before the disk counts as faulty.
MAX_READS = 3
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

log = structlog.get_logger(__name__)


class Damaged(Exception):
    """The bytes of a cached archive do not have the checksum that is its name."""


@dataclass(frozen=True, slots=True)
class CodeSource:
    """Where an archive comes from."""

    sha256: str
    cache: CodeCache
    route: ChannelRoute  # the way to the gateways
    token: str  # token of the allocation
    note: Callable[[str], None]  # writes a line into the trial's log


async def prepare_code(source: CodeSource, target: Path) -> Path:
    """Unpacks the code into `target`, and returns this folder. Raises GanglineError `code.*`, and OSError.

    Where the cache cannot be used, the attempt fetches the archive for itself. Where no gateway answers for
    ATTEMPTS_SECONDS, the error is `code.no_gateway`.
    """
    # It counts from here: a runner that has waited for another one's download asks once more itself.
    deadline = asyncio.get_running_loop().time() + ATTEMPTS_SECONDS
    try:
        if await _unpack_cached(source, target, deadline):
            return target
    except (OSError, TimeoutError) as error:
        log.warning("the cache of code cannot be used; fetching for this attempt alone", error=str(error))
    draft = target.with_name(f".{target.name}.tar.gz")
    try:
        await _fetch(source, draft, draft, deadline)
        await _off_loop(draft, unpack, draft, target)
    finally:
        _discard(draft)
    return target


async def _unpack_cached(source: CodeSource, target: Path, deadline: float) -> bool:
    """Unpacks the cached archive, which the first of several runners fetches. Returns False if every read found it
    damaged or missing."""
    sha256, cache = source.sha256, source.cache
    archive = cache.archive_path(sha256)
    for _ in range(MAX_READS):
        lock = await cache.take(sha256, is_exclusive=False, wait_seconds=WAIT_SECONDS)
        try:
            await _off_loop(archive, unpack, archive, target, sha256)
            cache.touch(sha256)
            return True
        except FileNotFoundError:
            is_damaged = False
        except Damaged:
            log.warning("a cached code archive is damaged; fetching it again", sha256=sha256)
            is_damaged = True
        finally:
            os.close(lock)
        lock = await cache.take(sha256, is_exclusive=True, wait_seconds=WAIT_SECONDS)
        try:
            await _renew(source, deadline, is_damaged=is_damaged)
            cache.share(lock)
            await asyncio.to_thread(cache.prune, cache.load_limits(), time.time())
            await _off_loop(archive, unpack, archive, target, sha256)
            return True
        except (Damaged, FileNotFoundError):
            continue
        finally:
            os.close(lock)
    return False


async def _renew(source: CodeSource, deadline: float, *, is_damaged: bool) -> None:
    """Fetches the archive, unless another runner has done so while this one waited for the lock."""
    archive = source.cache.archive_path(source.sha256)
    if await _off_loop(archive, _is_usable, archive, source.sha256 if is_damaged else ""):
        return
    _discard(archive)
    await _fetch(source, source.cache.draft_path(source.sha256), archive, deadline)


def _is_usable(archive: Path, sha256: str) -> bool:
    """Returns whether the entry exists, and has this checksum if one is given."""
    return archive.exists() and not (sha256 and _is_damaged(archive, sha256))


def _is_damaged(archive: Path, sha256: str) -> bool:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != sha256


async def _off_loop(archive: Path, work: Callable[..., T], *arguments: object) -> T:
    """Runs the work in a thread if the archive is big enough to delay the event loop."""
    try:
        is_small = archive.stat().st_size <= SMALL_BYTES  # noqa: ASYNC240 - one look at a local disk
    except FileNotFoundError:
        is_small = True
    return work(*arguments) if is_small else await asyncio.to_thread(work, *arguments)


async def _fetch(source: CodeSource, draft: Path, archive: Path, deadline: float) -> None:
    """Downloads into the draft, judges it and renames it to the archive. Leaves no draft if that fails."""
    try:
        received_sha256 = await _download_from_any(source, draft, deadline)
        if received_sha256 != source.sha256:
            raise _corrupt(source.sha256, f"its bytes have sha256 {received_sha256[:12]}...")
        try:
            # Judged once for each machine. An archive that passes is unpacked in this process from then on.
            await judge_archive(draft)
        except BadArchive as error:
            raise _refused(source.cache.archive_path(source.sha256), error) from error
        _publish(draft, archive)
    except BaseException:
        _discard(draft)
        raise


async def _download_from_any(source: CodeSource, draft: Path, deadline: float) -> str:
    """Downloads from the first gateway that answers. Raises GanglineError `code.no_gateway` at the deadline, and the
    refusal of a gateway at once."""
    now = asyncio.get_running_loop().time
    is_noted = False
    while True:
        problem = "none is registered"
        if source.route.address:
            try:
                return await _download(source, draft)
            except grpc.aio.AioRpcError as failure:
                error = error_of(failure, source.route.name)
                # Another program may listen where a gateway was, so an error that is no gateway's is no answer.
                if is_answer(failure) and failure.code() not in _RETRIED:
                    raise error from failure
                problem = error.message
        if now() >= deadline:
            raise unavailable(NO_GATEWAY_CODE, f"waits for a gateway, to fetch its code: {problem}")
        if not is_noted:
            source.note(f"waits for a gateway, to fetch the code: {problem}")
            is_noted = True
        if source.route.address:
            await source.route.failed()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await source.route.wait_address()


def _publish(draft: Path, archive: Path) -> None:
    # The code of a trial runs as the same user, and may reach this folder by mistake.
    draft.chmod(0o400)
    draft.replace(archive)


def _discard(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _download(source: CodeSource, draft: Path) -> str:
    """Returns the checksum of the received bytes."""
    digest, num_bytes = hashlib.sha256(), 0
    stub = ingest_pb2_grpc.IngestServiceStub(source.route.channel())
    request = ingest_pb2.FetchCodeRequest(code_sha256=source.sha256)
    try:
        with draft.open("wb") as file:
            async for response in stub.FetchCode(request, timeout=CALL_SECONDS, metadata=token_metadata(source.token)):
                digest.update(response.chunk)
                num_bytes += len(response.chunk)
                file.write(response.chunk)
    finally:
        source.cache.count_fetch(num_bytes)
    return digest.hexdigest()


def unpack(archive: Path, target: Path, sha256: str = "") -> None:
    """Unpacks into a fresh folder, whole or not at all.

    sha256: the checksum that the unpacked bytes must have; empty for no check. Raises Damaged if they have another one.
    Raises GanglineError `code.corrupt` or `code.unsafe`, which another attempt would meet as well, or `code.disk`.
    Raises FileNotFoundError if there is no archive.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    digest = hashlib.sha256()
    try:
        with open_archive(archive, digest) as tar:
            draft.mkdir(mode=0o700)
            tar.extractall(draft, members=checked_members(tar), filter=_filter)
        if sha256 and digest.hexdigest() != sha256:
            raise Damaged(archive)
        shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)
    except BadArchive as error:
        if sha256 and _is_damaged(archive, sha256):
            raise Damaged(archive) from error
        raise _refused(archive, error) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        if sha256 and _is_damaged(archive, sha256):
            raise Damaged(archive) from error
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
