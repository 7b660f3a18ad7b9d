"""The files of one allocation on this agent's disk: <state-dir>/allocations/<allocation id>/.

| file         | written by | holds                                                                     |
|--------------|------------|---------------------------------------------------------------------------|
| record.json  | agent      | the journal record (record.py), replaced atomically                       |
| spec.json    | agent      | RunnerSpec as proto JSON, 0600: it holds the allocation's token           |
| alive        | agent      | flock'ed from before the runner is forked until the runner ends           |
| lock         | runner     | flock'ed by the runner while it lives                                     |
| exit.json    | runner     | AllocationStatus as proto JSON, written atomically as its last step; in   |
|              |            | shared memory if this disk refuses it                                     |
| nursery.pid  | runner     | the process that the ranks die with; it leads a process group             |
| ranks.pid    | runner     | the ranks; each leads a process group                                     |
| runner.log   | agent      | the output of the runner                                                  |
| code/        | runner     | the experiment's code, which the ranks run in                             |
| rank<n>.beat | runner     | the progress of each rank                                                 |
| ranks/       | runner     | its socket to the ranks, and their temporary folders, removed when it     |
|              |            | ends                                                                      |

Owns the files' names and how each is read; decides nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from gangline.v1 import agent_pb2, runner_pb2
from services.agent.record import Record, format_record, parse_record
from services.common.disk import move_aside, sync_folder, write_atomic
from services.common.disk_fault import has_spare, read_spare, remove_spare

CORRUPT = "corrupt"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class AllocationFolder:
    """The paths of one allocation's files, and the functions that read them."""

    path: Path

    @property
    def allocation_id(self) -> str:
        return self.path.name

    @property
    def record_path(self) -> Path:
        return self.path / "record.json"

    @property
    def spec_path(self) -> Path:
        return self.path / "spec.json"

    @property
    def exit_path(self) -> Path:
        return self.path / "exit.json"

    @property
    def nursery_path(self) -> Path:
        return self.path / "nursery.pid"

    @property
    def rank_pids_path(self) -> Path:
        return self.path / "ranks.pid"

    @property
    def log_path(self) -> Path:
        return self.path / "runner.log"

    @property
    def ranks_path(self) -> Path:
        return self.path / "ranks"

    @property
    def alive_path(self) -> Path:
        return self.path / "alive"

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    def create(self, spec: runner_pb2.RunnerSpec, record: Record) -> None:
        """Writes spec and record. The record is the last file: a folder without one was never accepted.

        The files outlive the agent, but need not outlive a power cut. A power cut ends everything that runs here, and
        the leader counts an allocation as ended that the next hello does not name.
        """
        # It may be left of an allocation that had the same id, in an earlier cluster.
        remove_spare(self.exit_path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self.spec_path, json_format.MessageToJson(spec, indent=None), mode=0o600, is_durable=False)
        self.save(record, is_durable=False)

    def save(self, record: Record, *, is_durable: bool = True) -> None:
        """Writes the record atomically. is_durable: it also survives a power cut."""
        write_atomic(self.record_path, format_record(record), is_durable=is_durable)
        if is_durable:
            sync_folder(self.path.parent)

    def load_record(self) -> Record | None:
        """Returns the record; None if there is none. Raises ValueError if it cannot be read or belongs to another
        allocation."""
        text = _read(self.record_path)
        if text is None:
            return None
        record = parse_record(text)
        if record.allocation_id != self.allocation_id:
            raise ValueError(f"it is the record of allocation {record.allocation_id}")
        return record

    def load_spec(self) -> runner_pb2.RunnerSpec | None:
        """Returns the spec; None if there is none. Raises ValueError if it cannot be read or belongs to another
        allocation."""
        text = _read(self.spec_path)
        if text is None:
            return None
        spec = _parse(text, runner_pb2.RunnerSpec())
        if spec.allocation.id != self.allocation_id or spec.node_rank >= len(spec.allocation.members):
            raise ValueError(f"it is the spec of allocation {spec.allocation.id!r}, node rank {spec.node_rank}")
        return spec

    def load_exit(self) -> agent_pb2.AllocationStatus | None:
        """Returns the runner's report; None if it left none. Raises ValueError if it cannot be read."""
        text = _read(self.exit_path)
        if text is None:
            text = _read_spare(self.exit_path)
        if text is None:
            return None
        status = _parse(text, agent_pb2.AllocationStatus())
        if not status.HasField("exit"):
            raise ValueError("it names no exit")
        return status

    @property
    def has_exit(self) -> bool:
        """Whether the runner has left its report, here or in shared memory beside a disk that refused it."""
        return self.exit_path.exists() or has_spare(self.exit_path)

    def move_aside(self, path: Path) -> str:
        """Renames an unreadable file. Returns the new name, or the old one if the disk accepts no writes."""
        try:
            return move_aside(path, CORRUPT).name
        except OSError:
            return path.name

    def find_aside(self, path: Path) -> str:
        """Returns the name of an unreadable predecessor of this file; empty if there is none."""
        return next((each.name for each in sorted(self.path.glob(f"{path.name}.{CORRUPT}-*"))), "")

    def hold_alive(self) -> int:
        """Returns a descriptor of the flock'ed file `alive`.

        The runner inherits it. Otherwise a restarted agent could take the runner for absent in the moment between the
        fork and the runner's own lock. Raises BlockingIOError if a runner of this allocation lives.
        """
        descriptor = os.open(self.alive_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def is_locked(self) -> bool:
        """Whether a runner of this allocation lives.

        `alive` is tested first. A test of the runner's own lock while a runner starts could make that runner believe
        that another one holds it.
        """
        return _is_locked(self.alive_path) or _is_locked(self.lock_path)

    def remove(self) -> None:
        remove_spare(self.exit_path)
        shutil.rmtree(self.path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _read_spare(path: Path) -> str | None:
    try:
        return read_spare(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _parse(text: str, message: M) -> M:
    try:
        return json_format.Parse(text, message, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ValueError(f"no {type(message).__name__} in JSON: {error}") from error


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
