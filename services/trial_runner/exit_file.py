"""The files by which the agent sees how the runner ended, and whether it lives: exit.json and the flock'ed `lock`.

Owns how both are written, in the allocation's folder. Only the agent reads them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
from google.protobuf import json_format

from gangline.domain.allocation import ExitReport
from gangline.domain.state import State
from gangline.errors import conflict
from gangline.v1 import agent_pb2, runner_pb2
from gangline.wire import enum_number, to_proto
from services.common.disk import write_atomic
from services.common.disk_fault import write_spare

log = structlog.get_logger(__name__)


def take_lock(directory: Path) -> int:
    """Takes the folder's lock, which is held until this process ends. Raises GanglineError `runner.already_runs`, or
    OSError."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise conflict("runner.already_runs", f"another trial runner lives in {directory}") from error
    return fd


def write_exit(
    directory: Path, allocation_id: str, report: ExitReport, undelivered: Sequence[runner_pb2.TrialReport]
) -> None:
    """Writes exit.json as a whole or not at all, and returns only once it is on the disk.

    If the disk refuses it, the exit is written to the place that the agent reads next (`disk_fault.spare_path`). Raises
    OSError if neither place takes it.
    """
    status = agent_pb2.AllocationStatus(
        allocation_id=allocation_id,
        state=enum_number(State.TERMINAL),  # type: ignore[arg-type] # the map knows numbers, not the stub's enum type
        exit=to_proto(report),
        undelivered=undelivered,
    )
    path, text = directory / "exit.json", json_format.MessageToJson(status, indent=None)
    try:
        write_atomic(path, text, mode=0o600)
    except OSError as error:
        log.error("cannot write the exit; leaving it in shared memory", path=str(path), error=str(error))
        write_spare(path, text)


def write_nursery_pid(directory: Path, pid: int) -> None:
    """Writes the pid by which the agent finds the nursery, and with it the store, when the runner is gone."""
    _write_pids(directory / "nursery.pid", [pid])


def write_rank_pids(directory: Path, pids: Iterable[int]) -> None:
    """Writes the pids of the ranks, each of which leads a process group. By them the agent finds what the ranks have
    started, when runner and nursery are gone."""
    _write_pids(directory / "ranks.pid", pids)


def _write_pids(path: Path, pids: Iterable[int]) -> None:
    write_atomic(path, "".join(f"{pid}\n" for pid in pids), mode=0o600, is_durable=False)


def load_stop_deadline(directory: Path) -> float:
    """Returns when the agent will kill what is left, according to its record of this allocation; 0 if that cannot be
    read."""
    deadline_at = _load_stop(directory).get("deadline_at")
    return deadline_at if isinstance(deadline_at, float) else 0.0


def load_stop_reason(directory: Path) -> str:
    """Returns why the agent ordered the end; empty if that cannot be read."""
    return str(_load_stop(directory).get("reason", ""))


def _load_stop(directory: Path) -> dict[str, object]:
    try:
        record = json.loads((directory / "record.json").read_text())
    except (OSError, ValueError):
        return {}
    stop = record.get("stop") if isinstance(record, dict) else None
    return stop if isinstance(stop, dict) else {}
