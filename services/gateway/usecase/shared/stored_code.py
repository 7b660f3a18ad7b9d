"""Code archives in the storage, and what the gateway remembers of them: which are stored, and who may submit them."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from gangline.errors import invalid, not_found
from services.gateway.mirror.mirror import Watched
from services.gateway.storage.storage import Storage, code_mark, code_path
from services.gateway.usecase.shared.following import in_thread

SHA256 = re.compile(r"[0-9a-f]{64}")
# For so long a submit relies on what an earlier one has found, unless an experiment has been deleted since.
STORED_SECONDS = 1.0
_MOST_REMEMBERED = 1000


class StoredCode:
    def __init__(self, mirror: Watched, storage: Storage) -> None:
        self._mirror = mirror
        self._storage = storage
        # When each archive was last seen in the storage, and how many experiments had been deleted then, by its sha256.
        # Emptied when an experiment is deleted, because its archive may go with it.
        self._seen: dict[str, tuple[float, int]] = {}
        self._deletions: tuple[object, ...] = ()
        # Users and archives that they may submit. A right never ends, because the user has had the content.
        self._rights: set[tuple[str, str]] = set()

    async def put(self, archive: Path, code_sha256: str) -> None:
        await asyncio.to_thread(self._storage.put, archive, code_path(code_sha256))

    async def put_right(self, name: str, code_sha256: str, mark: Path) -> None:
        """Stores that the user has sent this archive. mark: an empty file."""
        await asyncio.to_thread(self._storage.put, mark, code_mark(code_sha256, name))
        self._note_right(name, code_sha256)

    async def has_right(self, name: str, code_sha256: str) -> bool:
        """Returns whether the user has sent this archive, or owns an experiment with it."""
        if (name, code_sha256) in self._rights:
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

    async def find(self, code_sha256: str) -> int | None:
        """Returns how many experiments had been deleted when the archive was found in the storage. Returns None if it
        is not there."""
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
            return None
        if len(self._seen) >= _MOST_REMEMBERED:
            self._seen.clear()
        self._seen[code_sha256] = now, num_deleted
        return num_deleted

    async def is_intact(self, code_sha256: str) -> bool:
        """Reads the stored archive whole. Otherwise a damaged one would stay for ever, however often its owner submits
        it again."""
        return await asyncio.to_thread(self._is_intact, code_sha256)

    def _is_intact(self, code_sha256: str) -> bool:
        digest = hashlib.sha256()
        try:
            for chunk in self._storage.chunks(code_path(code_sha256)):
                digest.update(chunk)
        except FileNotFoundError:
            return False
        return digest.hexdigest() == code_sha256

    async def chunks(self, code_sha256: str) -> AsyncIterator[bytes]:
        """Yields an archive. Raises GanglineError `code.missing`."""
        try:
            async for chunk in in_thread(lambda: self._storage.chunks(code_path(code_sha256))):
                yield chunk
        except FileNotFoundError:
            raise not_found(
                "code.missing", f"the code {code_sha256} is not in the storage {self._storage.url} any more"
            ) from None


def check_sha256(text: str) -> None:
    """Raises GanglineError `code.bad_sha256`."""
    if not SHA256.fullmatch(text):
        raise invalid("code.bad_sha256", f"{text!r} is no sha256; it has 64 digits from 0 to f")
