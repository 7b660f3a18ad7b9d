"""Keeps the CLI's last submits in a small file that only its owner can read, and changes it under a lock.

Several shells may submit at once, also from machines that share a home folder. The file holds digests and ids, but no
configuration, code or token. A file that cannot be read counts as empty.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from gangline.cli.creation.repetition import MachineTime, SubmitEntry, begun, created, failed, find_earlier, living
from gangline.login import home, write_private


class SubmitMemory:
    """The last submits of this user. Every method raises OSError when the folder cannot be written."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = (folder or home()) / "submits.json"

    def find(self, digest: str, cluster: str) -> SubmitEntry | None:
        """Returns an earlier submit of the same content that is not too old. cluster: empty for any."""
        return find_earlier(living(self._load(), read_clock()), digest, cluster)

    def begin(self, digest: str, cluster: str, request_id: str, *, allowed: int | None = 0) -> SubmitEntry:
        """Records a submit before it is sent, and returns the recorded entry.

        An earlier submit of the same content with an unknown outcome is taken over with its request id. An earlier one
        that has created an experiment is returned unchanged, and nothing is recorded, unless `allowed` names that
        experiment. allowed: None looks for no earlier submit.
        """
        clock = read_clock()
        entry = SubmitEntry(digest, cluster, request_id, clock.wall, clock.boot, clock.boot_id)
        with self._locked() as entries:
            kept = living(entries, clock)
            earlier = None if allowed is None else find_earlier(kept, digest, cluster)
            if earlier is not None and earlier.experiment_id not in (0, allowed):
                return earlier
            if earlier is not None and not earlier.experiment_id:
                entry = replace(earlier, num_commands=earlier.num_commands + 1)
            self._save(begun(kept, entry))
        return entry

    def created(self, request_id: str, experiment_id: int) -> None:
        clock = read_clock()
        with self._locked() as entries:
            self._save(created(living(entries, clock), request_id, experiment_id, clock))

    def failed(self, request_id: str) -> None:
        """Records that the command that sent it has certainly created nothing."""
        with self._locked() as entries:
            self._save(failed(living(entries, read_clock()), request_id))

    @contextmanager
    def _locked(self) -> Iterator[list[SubmitEntry]]:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The lock is on a file of its own, because each save replaces the other file.
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._load()
        finally:
            os.close(descriptor)

    def _load(self) -> list[SubmitEntry]:
        try:
            return [SubmitEntry(**fields) for fields in json.loads(self._path.read_text("utf-8"))]
        except (OSError, ValueError, TypeError):
            return []

    def _save(self, entries: list[SubmitEntry]) -> None:
        write_private(self._path, json.dumps([asdict(entry) for entry in entries], indent=1) + "\n")


def read_clock() -> MachineTime:
    """Reads the clock by which entries age."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        # Without a boot clock each process counts as a boot of its own, so ages come from the wall clock.
        boot_id, boot = f"none-{os.getpid()}", 0.0
    return MachineTime(time.time(), boot, boot_id)
