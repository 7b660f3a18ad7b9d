"""The agent's journal on disk: <state-dir> with one folder per allocation and the newest epoch that was obeyed.

Owns the state directory (one agent at a time, by flock), the epoch file and the removal of forgotten folders. Owns the
handling of unreadable files too: they are moved aside, never deleted, with one log line each. journal_record.py decides
how a record may change, and recovery.py what a finding means.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from gangline.domain.id import parse_allocation_id
from gangline.errors import GanglineError, conflict, invalid
from gangline.v1 import runner_pb2
from services.agent.allocations import process_watch
from services.agent.allocations.folder import CORRUPT, AllocationFolder
from services.agent.allocations.journal_record import JournalRecord, Phase
from services.agent.allocations.recovery import Findings
from services.common.disk import move_aside, write_atomic
from services.common.disk_fault import is_disk_fault
from services.common.state_folder import StateFolder
from services.common.tree import remove_tree

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Survey:
    """One folder and the findings in it."""

    folder: AllocationFolder
    findings: Findings
    record: JournalRecord | None  # rebuilt from the spec if it was unreadable; None without a spec


class Journal:
    """The journal of one agent, made by `open_journal`. All calls block on the disk for a few milliseconds."""

    def __init__(self, state: StateFolder, num_kept: int) -> None:
        self._state = state
        self._allocations = state.allocations
        self._ended = state.ended
        self._epoch_path = state.path / "epoch"
        self._num_kept = num_kept
        for folder in (self._allocations, self._ended):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                log.error("cannot make a folder of the journal; going on without", error=str(error))
        self._highest_epoch = self._load_epoch()

    @property
    def highest_epoch(self) -> int:
        return self._highest_epoch

    def raise_epoch(self, epoch: int) -> None:
        """Records a newer epoch before any of its commands is carried out; an older one changes nothing.

        A disk that refuses the write does not separate the agent from its leader: the epoch is then known until the
        agent ends.
        """
        if epoch <= self._highest_epoch:
            return
        self._highest_epoch = epoch
        try:
            write_atomic(self._epoch_path, f"{epoch}\n", mode=0o600)
        except OSError as error:
            log.error("cannot write the newest leader's epoch; going on without", error=str(error))

    def note_gateways(self, addresses: Sequence[str]) -> None:
        """Writes down for the runners and the drainer where the gateways are."""
        try:
            self._state.write_gateways(addresses)
        except OSError as error:
            log.error("cannot write down where the gateways are; the runners know older addresses", error=str(error))

    def folder(self, allocation_id: str) -> AllocationFolder:
        """Returns the allocation's folder. Raises GanglineError `id.allocation` for an id that could lead out of the
        state directory."""
        parse_allocation_id(allocation_id)
        return AllocationFolder(self._allocations / allocation_id)

    def survey(self) -> tuple[Survey, ...]:
        """Returns everything that the journal holds, oldest first, with unreadable files moved aside. Called once, at
        the start."""
        surveys = [self._survey(folder) for folder in self._list()]
        for each in surveys:
            if each.record is not None:
                self.raise_epoch(each.record.epoch)
        return tuple(sorted(surveys, key=lambda each: each.record.accepted_at if each.record else 0.0))

    def forget(self, folder: AllocationFolder) -> None:
        """Takes the folder out of the journal and erases its token. Its other files stay until `tidy`. An agent may
        forget dozens a second, and removing their files takes longer than all its other work."""
        folder.remove_spares()
        with suppress(FileNotFoundError):
            # The file is emptied and not removed: when ext4 makes an inode, it passes over each inode that was freed
            # lately.
            os.truncate(folder.spec_path, 0)
        target = self._ended / folder.allocation_id
        if target.exists():
            remove_folders([target])
        # A power cut may undo this. Then the end is reported again, and the folder is forgotten again.
        folder.path.rename(target)
        os.utime(target)

    def tidy(self) -> None:
        """Removes the forgotten folders except for the newest few, which are kept for debugging. May run in a thread
        beside all other calls."""
        remove_folders(self.trim())

    def trim(self) -> list[Path]:
        """Removes from the newest forgotten folders what is not kept for debugging. Returns the other ones, oldest
        first, for remove_folders. May run in a thread beside all other calls."""
        return self._trim(self._num_kept)

    def drop_kept(self) -> None:
        """Removes all forgotten folders: on a full disk, room is more important than debugging."""
        remove_folders(self._trim(0))

    def _trim(self, num_kept: int) -> list[Path]:
        if not self._ended.is_dir():
            return []
        ended = sorted(self._ended.iterdir(), key=_changed_at, reverse=True)
        for path in ended[:num_kept]:
            folder = AllocationFolder(path)
            folder.spec_path.unlink(missing_ok=True)
            # A killed runner leaves this folder behind; it may hold whole checkpoints.
            remove_folders([folder.ranks_path])
        return ended[num_kept:][::-1]

    def _list(self) -> Iterator[AllocationFolder]:
        for path in sorted(self._allocations.iterdir()) if self._allocations.is_dir() else ():
            try:
                yield self.folder(path.name)
            except GanglineError:
                log.warning("not an allocation's folder; left as it is", path=str(path))

    def _survey(self, folder: AllocationFolder) -> Survey:
        record, record_problem = _load(folder, folder.record_path, folder.load_record)
        spec, spec_problem = _load(folder, folder.spec_path, folder.load_spec)
        # A process that has left its report and released its locks may run another command by now.
        is_alive = folder.is_locked() or (
            record is not None
            and record.process is not None
            and process_watch.is_alive(record.process)
            and not folder.has_exit
        )
        is_unsynced = record is not None and bool(record.boot_id)
        is_restarted = record is not None and is_unsynced and record.boot_id != process_watch.boot_id()
        restarted = "the machine was restarted since it was accepted" if is_restarted else ""
        findings = Findings(
            record=record,
            has_spec=spec is not None,
            is_alive=is_alive,
            has_exit=folder.has_exit,
            problem=record_problem or spec_problem or restarted,
            # A start that is not in the record has left the file that it locks, unless a power cut removed the file.
            was_tried=is_restarted or (is_unsynced and folder.alive_path.exists()),
        )
        return Survey(folder, findings, record or _rebuild(folder, spec))

    def _load_epoch(self) -> int:
        try:
            return int(self._epoch_path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            with suppress(OSError):
                move_aside(self._epoch_path, CORRUPT)
            log.error(
                "the file with the newest leader's epoch is unreadable; going on with the newest of the journal",
                path=str(self._epoch_path),
            )
            return 0


def remove_folders(paths: Iterable[Path]) -> None:
    """Removes them with all that they hold. What a disk refuses to remove stays."""
    for path in paths:
        with suppress(OSError, RecursionError):
            remove_tree(path)


def _changed_at(path: Path) -> float:
    """Returns the time of the last change; 0 if the path has been removed since."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def open_journal(state_directory: Path, num_kept: int) -> Iterator[Journal]:
    """Opens the journal exclusively. Raises GanglineError `agent.state_dir_in_use` or `agent.state_dir`."""
    try:
        state_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _open_lock(state_directory)
    except OSError as error:
        raise invalid(
            "agent.state_dir", f"cannot use the state directory {state_directory}: {error}; choose another --state-dir"
        ) from error
    try:
        _take(descriptor, state_directory)
        yield Journal(StateFolder(state_directory), num_kept)
    finally:
        os.close(descriptor)


def _open_lock(state_directory: Path) -> int:
    """Opens the file that is locked. On a full or read-only disk without this file, opens the folder instead.

    An agent that cannot write still has runners to watch, and reports the problem. Raises OSError.
    """
    path = StateFolder(state_directory).lock_path
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not is_disk_fault(error):
            raise
        return os.open(path if path.exists() else state_directory, os.O_RDONLY | os.O_CLOEXEC)


def _take(descriptor: int, state_directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _read_holder(descriptor)
        raise conflict(
            "agent.state_dir_in_use",
            f"another agent (pid {holder}) uses the state directory {state_directory}; "
            "stop it or give this one its own --state-dir",
        ) from error
    content = f"{os.getpid()}\n".encode()
    try:
        # A full disk accepts the write in this order, because the file keeps its block.
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    except OSError as error:
        log.error("cannot write who holds the state directory; going on without", error=str(error))


def _read_holder(descriptor: int) -> str:
    """Returns the pid in the file; "unknown" if there is none."""
    try:
        return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _load(folder: AllocationFolder, path: Path, load: Callable[[], T | None]) -> tuple[T | None, str]:
    """Returns the file's content, or None and the problem.

    An unreadable file is moved aside. A file that was moved aside at an earlier start, and not written since, still
    counts as unreadable, not as absent.
    """
    try:
        content = load()
        aside = "" if content is not None else folder.find_aside(path)
        return content, f"{path} was unreadable and is now {aside}" if aside else ""
    except ValueError as error:
        problem = f"{path} was unreadable ({error}) and is now {folder.move_aside(path)}"
        log.error(
            "a file of the journal is moved aside; going on with what is left",
            allocation_id=folder.allocation_id,
            problem=problem,
        )
        return None, problem


def _rebuild(folder: AllocationFolder, spec: runner_pb2.RunnerSpec | None) -> JournalRecord | None:
    """Returns a record from the spec alone, in place of an unreadable one. It has the allocation's slots and the time
    since when they are held."""
    if spec is None:
        return None
    return JournalRecord(
        allocation_id=folder.allocation_id,
        epoch=spec.allocation.epoch,
        slot_ids=tuple(spec.allocation.members[spec.node_rank].slot_ids),
        accepted_at=folder.spec_path.stat().st_mtime,
        phase=Phase.RUNNING,
    )
