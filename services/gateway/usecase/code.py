"""Code archives: received from users, judged, stored under their sha256, and delivered to trial runners.

A user may submit an archive that the same user has sent, or that an experiment of the user has. The sha256 alone gives
no right to it: views show it to everybody, and a trial can read its code. Who has sent an archive is a mark in the
storage, because any gateway may get the submit. Equal archives of several users are stored once.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from gangline.domain.experiment import Experiment
from gangline.domain.id import parse_allocation_id
from gangline.domain.limits import MB
from gangline.errors import ErrorKind, GanglineError, invalid, not_found
from services.common import keys
from services.common.archive import MAX_ARCHIVE_BYTES, too_large
from services.common.archive_judge import judge_archive
from services.common.server import Principal
from services.gateway.mirror.attempt_fence import why_over
from services.gateway.mirror.auth import check_owner, check_user
from services.gateway.mirror.mirror import Watched
from services.gateway.storage.storage import Storage, code_mark, code_path
from services.gateway.usecase.following import in_thread

SHA256 = re.compile(r"[0-9a-f]{64}")
# How far a runner may be ahead of the mirror.
MIRROR_SECONDS = 5.0
# For so long a submit relies on what an earlier one has found, unless an experiment has been deleted since.
STORED_SECONDS = 1.0
_MOST_REMEMBERED = 1000


class Code:
    def __init__(self, mirror: Watched, storage: Storage) -> None:
        self._mirror = mirror
        self._storage = storage
        # When each archive was last seen in the storage, and how many experiments had been deleted then, by its sha256.
        # Emptied when an experiment is deleted, because its archive may go with it.
        self._seen: dict[str, tuple[float, int]] = {}
        self._deletions: tuple[object, ...] = ()
        # Users and archives that they may submit. A right never ends, because the user has had the content.
        self._rights: set[tuple[str, str]] = set()

    async def upload(self, principal: Principal, code_sha256: str, chunks: AsyncIterator[bytes]) -> str:
        """Stores the archive, unless it is stored already and intact. Then nothing more is read of a user who may use
        it; another one has to send all of it. Raises GanglineError `code.*`."""
        check_user(principal)
        _check_sha256(code_sha256)
        # Archives are stored by content, so an equal one is not stored again.
        is_stored = await asyncio.to_thread(_is_intact, self._storage, code_sha256)
        if is_stored and await self._may_use(principal, code_sha256):
            return code_sha256
        with tempfile.TemporaryDirectory(prefix="gangline-code-") as folder:
            archive = Path(folder) / "code.tar.gz"
            received_sha256 = await _receive(chunks, archive)
            if received_sha256 != code_sha256:
                raise invalid(
                    "code.wrong_sha256",
                    f"the uploaded archive has sha256 {received_sha256}, announced was {code_sha256}; upload it again",
                )
            await judge_archive(archive)
            if not is_stored:
                await asyncio.to_thread(self._storage.put, archive, code_path(code_sha256))
            mark = Path(folder) / "mark"
            mark.touch()
            await asyncio.to_thread(self._storage.put, mark, code_mark(code_sha256, principal.name))
        self._note_right(principal.name, code_sha256)
        return code_sha256

    async def check_stored(self, principal: Principal, code_sha256: str, parent: Experiment | None = None) -> int:
        """Returns how many experiments had been deleted when the code was found in the storage. parent: the experiment
        that is forked. Raises GanglineError `code.not_uploaded` if it is not stored, or not for this user, and
        `auth.not_owner` for the code of another user's experiment that is forked."""
        _check_sha256(code_sha256)
        if not await self._may_use(principal, code_sha256):
            if parent is not None and parent.code_sha256 == code_sha256:
                check_owner(principal, parent.owner, f"use the code of experiment {parent.id}")
            raise _not_uploaded(code_sha256)
        now, state = asyncio.get_running_loop().time(), self._mirror.state
        num_deleted = state.num_deleted_experiments
        deletions = (id(state), num_deleted, *state.deleting)
        if deletions != self._deletions:
            self._seen.clear()
            self._deletions = deletions
        seen_at, num_deleted_then = self._seen.get(code_sha256, (float("-inf"), 0))
        if now - seen_at < STORED_SECONDS:
            return num_deleted_then
        if not await asyncio.to_thread(self._storage.has, code_path(code_sha256)):
            raise _not_uploaded(code_sha256)
        if len(self._seen) >= _MOST_REMEMBERED:
            self._seen.clear()
        self._seen[code_sha256] = now, num_deleted
        return num_deleted

    async def _may_use(self, principal: Principal, code_sha256: str) -> bool:
        """Whether the user has sent this archive, or owns an experiment with it. Administrators read all code."""
        name = principal.name
        if principal.is_admin or (name, code_sha256) in self._rights:
            return True
        experiments = self._mirror.state.experiments.all()
        is_own = any(code_sha256 in each.code_sha256s and each.owner == name for each in experiments)
        if not is_own and not await asyncio.to_thread(self._storage.has, code_mark(code_sha256, name)):
            return False
        self._note_right(name, code_sha256)
        return True

    def _note_right(self, name: str, code_sha256: str) -> None:
        if len(self._rights) >= _MOST_REMEMBERED:
            self._rights.clear()
        self._rights.add((name, code_sha256))

    async def fetch(self, principal: Principal, code_sha256: str) -> AsyncIterator[bytes]:
        """Yields the code of a trial runner's own experiment."""
        _check_sha256(code_sha256)
        await self._check_own(principal, code_sha256)
        async for chunk in self._chunks(code_sha256):
            yield chunk

    async def _chunks(self, code_sha256: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in in_thread(lambda: self._storage.chunks(code_path(code_sha256))):
                yield chunk
        except FileNotFoundError:
            raise not_found(
                "code.missing", f"the code {code_sha256} is not in the storage {self._storage.url} any more"
            ) from None

    async def read(self, principal: Principal, experiment_id: int, version: int = 0) -> AsyncIterator[bytes]:
        """Yields the code of a user's own experiment, a gzipped tar. version: counts from 1, the code with which the
        experiment was created; 0 for the present code. Raises GanglineError `experiment.not_found`, `auth.not_owner`,
        `code.no_version`."""
        check_user(principal)
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        if experiment is None:
            raise not_found("experiment.not_found", f"there is no experiment {experiment_id}")
        check_owner(principal, experiment.owner, f"read the code of experiment {experiment_id}")
        versions = experiment.code_sha256s
        if not 0 <= version <= len(versions):
            text = f"experiment {experiment_id} has no version {version} of its code; it has 1 to {len(versions)}"
            raise not_found("code.no_version", text)
        async for chunk in self._chunks(versions[version - 1]):
            yield chunk

    async def _check_own(self, principal: Principal, code_sha256: str) -> None:
        if principal.kind == "cluster":
            return
        if principal.kind == "allocation" and await self._has_code(principal.name, code_sha256):
            reason = why_over(self._mirror.state, principal.name)
            if reason:
                raise GanglineError("auth.attempt_over", f"no code is handed out: {reason}", ErrorKind.FORBIDDEN)
            return
        raise GanglineError(
            "auth.forbidden",
            f"{principal.kind} {principal.name} may not fetch the code {code_sha256}; runners fetch their trial's only",
            ErrorKind.FORBIDDEN,
        )

    async def _has_code(self, allocation_id: str, code_sha256: str) -> bool:
        """Returns whether the allocation's experiment has this code. Waits for the mirror, because a runner that
        started within milliseconds may ask before its experiment, or its new code, is mirrored."""
        trial_id, _ = parse_allocation_id(allocation_id)
        experiment_id = int(trial_id.partition(".")[0])
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MIRROR_SECONDS
        with self._mirror.changes.listen(experiment_id) as changed:
            while True:
                changed.clear()
                experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
                if experiment is not None and experiment.code_sha256 == code_sha256:
                    return True
                if not await changed.wait(max(0.0, deadline - loop.time())):
                    return False


def _is_intact(storage: Storage, code_sha256: str) -> bool:
    """Reads the stored archive whole. Otherwise a damaged one would stay for ever, however often its owner submits it
    again."""
    digest = hashlib.sha256()
    try:
        for chunk in storage.chunks(code_path(code_sha256)):
            digest.update(chunk)
    except FileNotFoundError:
        return False
    return digest.hexdigest() == code_sha256


def _not_uploaded(code_sha256: str) -> GanglineError:
    """Makes the error. It is the same for an archive of another user, so it tells nothing of what is stored."""
    return not_found("code.not_uploaded", f"you have uploaded no code with sha256 {code_sha256}; upload it first")


def _check_sha256(text: str) -> None:
    if not SHA256.fullmatch(text):
        raise invalid("code.bad_sha256", f"{text!r} is no sha256; it has 64 digits from 0 to f")


async def _receive(chunks: AsyncIterator[bytes], target: Path) -> str:
    """Writes the chunks to a file and returns their sha256. Stops early when the file becomes too large."""
    digest, num_bytes = hashlib.sha256(), 0
    with target.open("wb") as writing:
        async for chunk in chunks:
            num_bytes += len(chunk)
            if num_bytes > MAX_ARCHIVE_BYTES:
                raise too_large(f"{num_bytes / MB:.0f} MB and more even when packed")
            digest.update(chunk)
            await asyncio.to_thread(writing.write, chunk)
    return digest.hexdigest()
