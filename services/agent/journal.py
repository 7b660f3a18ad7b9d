"""The agent's journal on disk: <state-dir> with one folder per allocation and the newest epoch that was obeyed.

Owns the state directory (one agent at a time, by flock), the epoch file, what becomes of unreadable files (moved
aside, never deleted, one log line each) and the removal of forgotten folders. What a record may become is record.py,
what a find means is recovery.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from gangline.domain.id import parse_allocation_id
from gangline.errors import GanglineError, conflict, invalid
from gangline.v1 import runner_pb2
from services.agent import process
from services.agent.folder import CORRUPT, AllocationFolder
from services.agent.record import Phase, Record
from services.agent.recovery import Found
from services.common.disk import move_aside, sync_folder, write_atomic

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Survey:
    """One folder and what was found in it. record is rebuilt from the spec where it was unreadable; None without."""

    folder: AllocationFolder
    found: Found
    record: Record | None


class Journal:
    """Made by `open_journal`. All calls block on the disk for a few milliseconds."""

    def __init__(self, state_directory: Path, num_kept: int) -> None:
        self._allocations = state_directory / "allocations"
        self._ended = state_directory / "ended"
        self._epoch_path = state_directory / "epoch"
        self._num_kept = num_kept
        self._allocations.mkdir(mode=0o700, exist_ok=True)
        self._ended.mkdir(mode=0o700, exist_ok=True)
        self._highest_epoch = self._load_epoch()

    @property
    def highest_epoch(self) -> int:
        return self._highest_epoch

    def raise_epoch(self, epoch: int) -> None:
        """Remembers a newer epoch before anything is done under it; an older one changes nothing.

        A disk that takes no write does not keep the agent from its leader: then it is remembered until the agent ends.
        """
        if epoch <= self._highest_epoch:
            return
        self._highest_epoch = epoch
        try:
            write_atomic(self._epoch_path, f"{epoch}\n")
        except OSError as error:
            log.error("cannot write the newest leader's epoch; going on without", error=str(error))

    def folder(self, allocation_id: str) -> AllocationFolder:
        """Raises GanglineError `id.allocation` for an id that could lead out of the state directory."""
        parse_allocation_id(allocation_id)
        return AllocationFolder(self._allocations / allocation_id)

    def survey(self) -> tuple[Survey, ...]:
        """Everything the journal holds, oldest first, with unreadable files moved aside. Call it once, at the start."""
        surveys = [self._survey(folder) for folder in self._list()]
        for each in surveys:
            if each.record is not None:
                self.raise_epoch(each.record.epoch)
        return tuple(sorted(surveys, key=lambda each: each.record.accepted_at if each.record else 0.0))

    def forget(self, folder: AllocationFolder) -> None:
        """Takes the folder out of the journal and keeps the newest few, without their token, for whoever debugs."""
        with suppress(FileNotFoundError):
            folder.spec_path.unlink()
        # Of a runner that was killed; it may hold whole checkpoints.
        shutil.rmtree(folder.ranks_path, ignore_errors=True)
        if self._num_kept == 0:
            folder.remove()
            return
        target = self._ended / folder.allocation_id
        shutil.rmtree(target, ignore_errors=True)
        folder.path.rename(target)
        os.utime(target)
        sync_folder(self._allocations)
        self._prune()

    def _prune(self) -> None:
        kept = sorted(self._ended.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[self._num_kept :]:
            shutil.rmtree(path, ignore_errors=True)

    def _list(self) -> Iterator[AllocationFolder]:
        for path in sorted(self._allocations.iterdir()):
            try:
                yield self.folder(path.name)
            except GanglineError:
                log.warning("not an allocation's folder; left as it is", path=str(path))

    def _survey(self, folder: AllocationFolder) -> Survey:
        record, record_problem = _load(folder, folder.record_path, folder.load_record)
        spec, spec_problem = _load(folder, folder.spec_path, folder.load_spec)
        is_alive = folder.is_locked() or (
            record is not None and record.process is not None and process.is_alive(record.process)
        )
        found = Found(
            record=record,
            has_spec=spec is not None,
            is_alive=is_alive,
            has_exit=folder.exit_path.exists(),
            problem=record_problem or spec_problem,
        )
        return Survey(folder, found, record or _rebuild(folder, spec))

    def _load_epoch(self) -> int:
        try:
            return int(self._epoch_path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            target = move_aside(self._epoch_path, CORRUPT)
            log.error(
                "the file with the newest leader's epoch was unreadable; going on with the newest of the journal",
                moved_to=str(target),
            )
            return 0


@contextmanager
def open_journal(state_directory: Path, num_kept: int) -> Iterator[Journal]:
    """The journal, exclusively. Raises GanglineError `agent.state_dir_in_use` or `agent.state_dir`."""
    lock_path = state_directory / "agent.lock"
    try:
        state_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise invalid(
            "agent.state_dir", f"cannot use the state directory {state_directory}: {error}; choose another --state-dir"
        ) from error
    try:
        _take(descriptor, state_directory)
        yield Journal(state_directory, num_kept)
    finally:
        os.close(descriptor)


def _take(descriptor: int, state_directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise conflict(
            "agent.state_dir_in_use",
            f"another agent (pid {holder}) uses the state directory {state_directory}; "
            "stop it or give this one its own --state-dir",
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _load(folder: AllocationFolder, path: Path, load: Callable[[], T | None]) -> tuple[T | None, str]:
    """What is in the file, or None and the problem. An unreadable file is moved aside; a file that was moved aside at
    an earlier start and never written again counts as unreadable still, not as absent."""
    try:
        content = load()
        aside = "" if content is not None else folder.find_aside(path)
        return content, f"{path} was unreadable and is now {aside}" if aside else ""
    except ValueError as error:
        problem = f"{path} was unreadable ({error}) and is now {folder.move_aside(path).name}"
        log.error(
            "a file of the journal is moved aside; going on with what is left",
            allocation_id=folder.allocation_id,
            problem=problem,
        )
        return None, problem


def _rebuild(folder: AllocationFolder, spec: runner_pb2.RunnerSpec | None) -> Record | None:
    """A record from the spec alone, for one that was unreadable: which slots it holds, and since when."""
    if spec is None:
        return None
    return Record(
        allocation_id=folder.allocation_id,
        epoch=spec.allocation.epoch,
        slot_ids=tuple(spec.allocation.members[spec.node_rank].slot_ids),
        accepted_at=folder.spec_path.stat().st_mtime,
        phase=Phase.RUNNING,
    )
