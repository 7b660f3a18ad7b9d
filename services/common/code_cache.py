"""The cache of code archives on an agent's disk: its files, locks, limits and counters.

| in <state-dir>/code | written by | holds                                                                |
|---------------------|------------|----------------------------------------------------------------------|
| <sha256>.tar.gz     | runner     | an archive that was fetched and judged; only replaced as a whole     |
| .<sha256>.draft     | runner     | a download, by the holder of the exclusive lock; worthless later     |
| <sha256>.lock       | runner     | flock'ed shared while a runner unpacks, exclusive while one fetches  |
| limits.json         | agent      | the size and age from the agent's settings                           |
| fetched.json        | runner     | downloads and their bytes since the folder was made                  |

An entry is packed, and its name is the checksum of all of its bytes. A reader computes this checksum of the same bytes
that it unpacks, so it never believes a damaged or altered entry. Each attempt unpacks its own files, which share
nothing with the entry. The kernel releases the lock of a killed process, so a waiting runner then fetches by itself.
Trial runners fetch, read and prune; the agent writes the limits, prunes and reads the counters.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from services.common.disk import write_atomic

ARCHIVE_SUFFIX = ".tar.gz"
DRAFT_SUFFIX = ".draft"
LOCK_SUFFIX = ".lock"
# Age of a download of an earlier version, which took no lock, after which it belongs to a killed runner.
STALE_SECONDS = 3600.0
# Pause between two attempts to take a lock that another process holds. flock() could wait in the kernel instead, but
# then neither a stop of the trial nor a deadline would end the wait.
_LOCK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """The limits of the cache."""

    max_bytes: int = 2 << 30  # bytes of all archives together
    max_age_seconds: float = 30 * 86400.0  # time since an archive was last used


@dataclass(frozen=True, slots=True)
class FetchCount:
    """Downloads from gateways, finished or not, and the bytes that they received."""

    fetches: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    used_at: float
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CodeCache:
    """The cache below one agent's state directory."""

    folder: Path

    def archive_path(self, sha256: str) -> Path:
        return self.folder / f"{sha256}{ARCHIVE_SUFFIX}"

    def draft_path(self, sha256: str) -> Path:
        return self.folder / f".{sha256}{DRAFT_SUFFIX}"

    def lock_path(self, sha256: str) -> Path:
        return self.folder / f"{sha256}{LOCK_SUFFIX}"

    async def take(self, sha256: str, *, is_exclusive: bool, wait_seconds: float) -> int:
        """Returns a descriptor that holds the entry's lock. Raises TimeoutError, and OSError if the folder cannot be
        used."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with asyncio.timeout(wait_seconds):
            while True:
                lock = self._try_lock(sha256, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
                if lock is not None:
                    return lock
                await asyncio.sleep(_LOCK_SECONDS)

    def share(self, lock: int) -> None:
        """Turns an exclusive lock into a shared one. Another process may take the lock in between."""
        fcntl.flock(lock, fcntl.LOCK_SH)

    def touch(self, sha256: str) -> None:
        """Records the use of the entry, by which `prune` sorts. A disk that refuses this costs only the order."""
        with suppress(OSError):
            os.utime(self.archive_path(sha256))

    def prune(self, limits: CodeLimits, now: float) -> None:
        """Removes entries beyond the age, the least recently used ones until the limit holds, and left downloads.

        An entry in use stays, so the folder may exceed its limit by the entries in use. Tolerates other processes that
        prune at the same time.
        """
        entries = sorted(self._entries(), key=lambda entry: entry.used_at)
        num_bytes = sum(entry.num_bytes for entry in entries)
        for entry in entries:
            is_beyond = num_bytes > limits.max_bytes or now - entry.used_at > limits.max_age_seconds
            if is_beyond and self._remove(entry.sha256):
                num_bytes -= entry.num_bytes
        for path in self._list():
            if path.name.startswith("."):
                self._remove_draft(path, now)

    def drop(self) -> None:
        """Removes all entries that are not in use: on a full disk, room is more important than a fetch."""
        self.prune(CodeLimits(max_bytes=0), time.time())

    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self._entries())

    def write_limits(self, limits: CodeLimits) -> None:
        """Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self.folder / "limits.json", json.dumps(asdict(limits)), is_durable=False)

    def load_limits(self) -> CodeLimits:
        """Returns the limits of the agent; the defaults if the file is missing or unreadable."""
        try:
            return CodeLimits(**json.loads((self.folder / "limits.json").read_text()))
        except (OSError, ValueError, TypeError):
            return CodeLimits()

    def count_fetch(self, num_bytes: int) -> None:
        """Adds one download to the counters."""
        with suppress(OSError), self._locked_counters():
            before = self.load_count()
            after = FetchCount(before.fetches + 1, before.num_bytes + num_bytes)
            write_atomic(self.folder / "fetched.json", json.dumps(asdict(after)), is_durable=False)

    def load_count(self) -> FetchCount:
        """Returns the counters; zeros if the file is missing or unreadable."""
        try:
            return FetchCount(**json.loads((self.folder / "fetched.json").read_text()))
        except (OSError, ValueError, TypeError):
            return FetchCount()

    @contextmanager
    def _locked_counters(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "fetched.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, sha256: str, mode: int) -> int | None:
        """Returns a descriptor with the lock; None if another process holds it."""
        path = self.lock_path(sha256)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            # `_remove` deletes lock files. A lock on a deleted file would exclude no process that comes later.
            if _is_same_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _remove(self, sha256: str) -> bool:
        """Removes the entry unless a process uses it. Returns whether the entry is gone."""
        with suppress(OSError):
            lock = self._try_lock(sha256, fcntl.LOCK_EX)
            if lock is None:
                return False
            try:
                for path in (self.archive_path(sha256), self.draft_path(sha256), self.lock_path(sha256)):
                    path.unlink(missing_ok=True)
                return True
            finally:
                os.close(lock)
        return False

    def _remove_draft(self, path: Path, now: float) -> None:
        """Removes a download whose runner is gone. A download without a lock is one of an earlier version."""
        if not path.name.endswith(DRAFT_SUFFIX):
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink(missing_ok=True)
            return
        sha256 = path.name[1 : -len(DRAFT_SUFFIX)]
        with suppress(OSError):
            lock = self._try_lock(sha256, fcntl.LOCK_EX)
            if lock is not None:
                path.unlink(missing_ok=True)
                os.close(lock)

    def _entries(self) -> Iterator[_Entry]:
        for path in self._list():
            if path.name.endswith(ARCHIVE_SUFFIX) and not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield _Entry(status.st_mtime, status.st_size, path.name.removesuffix(ARCHIVE_SUFFIX))

    def _list(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except OSError:
            return []


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
