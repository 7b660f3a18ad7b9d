"""Code archives of users: received, judged, stored under their sha256, and read again by their owners.

A user may submit an archive that the same user has sent, or that an experiment of the user has. The sha256 alone gives
no right to it: views show it to everybody, and a trial can read its code. Who has sent an archive is a mark in the
storage, because any gateway may get the submit. Equal archives of several users are stored once.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from gangline.domain.experiment import Experiment
from gangline.domain.limits import MB
from gangline.errors import GanglineError, invalid, not_found
from services.common import keys
from services.common.archive import MAX_ARCHIVE_BYTES, too_large
from services.common.archive_judge import judge_archive
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import check_change
from services.gateway.usecase.shared.stored_code import StoredCode, check_sha256


class Code:
    def __init__(self, caller: Caller, mirror: Watched, stored: StoredCode) -> None:
        self._caller = caller
        self._mirror = mirror
        self._stored = stored

    async def upload(self, code_sha256: str, chunks: AsyncIterator[bytes]) -> str:
        """Stores the archive, unless it is stored already and intact. Then nothing more is read of a user who may use
        it; another one has to send all of it. Raises GanglineError `code.*`."""
        check_sha256(code_sha256)
        # Archives are stored by content, so an equal one is not stored again.
        is_stored = await self._stored.is_intact(code_sha256)
        if is_stored and await self._may_use(code_sha256):
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
                await self._stored.put(archive, code_sha256)
            mark = Path(folder) / "mark"
            mark.touch()
            await self._stored.put_right(self._caller.name, code_sha256, mark)
        return code_sha256

    async def check_stored(self, code_sha256: str, parent: Experiment | None = None) -> int:
        """Returns how many experiments had been deleted when the code was found in the storage. parent: the experiment
        that is forked. Raises GanglineError `code.not_uploaded` if it is not stored, or not for this user, and
        `auth.not_owner` for the code of another user's experiment that is forked."""
        check_sha256(code_sha256)
        if not await self._may_use(code_sha256):
            if parent is not None and parent.code_sha256 == code_sha256:
                check_change(self._mirror, self._caller, parent, f"use the code of experiment {parent.id}")
            raise _not_uploaded(code_sha256)
        num_deleted = await self._stored.find(code_sha256)
        if num_deleted is None:
            raise _not_uploaded(code_sha256)
        return num_deleted

    async def _may_use(self, code_sha256: str) -> bool:
        """Administrators read all code."""
        return self._caller.is_admin or await self._stored.has_right(self._caller.name, code_sha256)

    async def read(self, experiment_id: int, version: int = 0) -> AsyncIterator[bytes]:
        """Yields the code of a user's own experiment, a gzipped tar. version: counts from 1, the code with which the
        experiment was created; 0 for the present code. Raises GanglineError `experiment.not_found`, `auth.not_owner`,
        `code.no_version`."""
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        if experiment is None:
            raise not_found("experiment.not_found", f"there is no experiment {experiment_id}")
        check_change(self._mirror, self._caller, experiment, f"read the code of experiment {experiment_id}")
        versions = experiment.code_sha256s
        if not 0 <= version <= len(versions):
            text = f"experiment {experiment_id} has no version {version} of its code; it has 1 to {len(versions)}"
            raise not_found("code.no_version", text)
        async for chunk in self._stored.chunks(versions[version - 1]):
            yield chunk


def _not_uploaded(code_sha256: str) -> GanglineError:
    """Makes the error. It is the same for an archive of another user, so it tells nothing of what is stored."""
    return not_found("code.not_uploaded", f"you have uploaded no code with sha256 {code_sha256}; upload it first")


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
