"""The folder of one allocation as the agent uses it: its journal record, its spec, and files that cannot be read.

`services/common/state_folder.py` owns the files, which the agent shares with the runner; journal_record.py owns the
content of the record. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gangline.v1 import runner_pb2
from services.agent.allocations.journal_record import JournalRecord, format_record, parse_record
from services.common.disk import move_aside
from services.common.state_folder import SharedFolder
from services.common.tree import remove_tree

CORRUPT = "corrupt"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AllocationFolder(SharedFolder):
    """The folder of one allocation, with the functions that only the agent calls."""

    def create(self, spec: runner_pb2.RunnerSpec, record: JournalRecord) -> None:
        """Writes spec and record. The record is the last file: a folder without one was never accepted.

        The files outlive the agent, but need not outlive a power cut. A power cut ends everything that runs here, and
        the leader counts an allocation as ended that the next hello does not name.
        """
        # They may be left of an allocation that had the same id, in an earlier cluster.
        self.remove_spares()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write_spec(spec)
        self.save(record, is_durable=False)

    def save(self, record: JournalRecord, *, is_durable: bool = True) -> None:
        """Writes the record atomically. is_durable: it also survives a power cut."""
        self.write_record(format_record(record), is_durable=is_durable)

    def load_record(self) -> JournalRecord | None:
        """Returns the record; None if there is none. Raises ValueError if it cannot be read or belongs to another
        allocation."""
        text = _read_if_there(self.record_path.read_text)
        if text is None:
            return None
        record = parse_record(text)
        if record.allocation_id != self.allocation_id:
            raise ValueError(f"it is the record of allocation {record.allocation_id}")
        return record

    def load_spec(self) -> runner_pb2.RunnerSpec | None:
        """Returns the spec; None if there is none. Raises ValueError if it cannot be read or belongs to another
        allocation."""
        spec = _read_if_there(self.read_spec)
        if spec is None:
            return None
        if spec.allocation.id != self.allocation_id or spec.node_rank >= len(spec.allocation.members):
            raise ValueError(f"it is the spec of allocation {spec.allocation.id!r}, node rank {spec.node_rank}")
        return spec

    def move_aside(self, path: Path) -> str:
        """Renames an unreadable file. Returns the new name, or the old one if the disk accepts no writes."""
        try:
            return move_aside(path, CORRUPT).name
        except OSError:
            return path.name

    def find_aside(self, path: Path) -> str:
        """Returns the name of an unreadable predecessor of this file; empty if there is none."""
        return next((each.name for each in sorted(self.path.glob(f"{path.name}.{CORRUPT}-*"))), "")

    def remove(self) -> None:
        self.remove_spares()
        remove_tree(self.path)


def _read_if_there(read: Callable[[], T]) -> T | None:
    """Returns the content of a file; None if there is no file. Raises ValueError if it cannot be read."""
    try:
        return read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error)) from error
