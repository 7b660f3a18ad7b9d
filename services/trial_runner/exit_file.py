"""Writes how the runner ended, and reads the agent's order to end it, in the folder that both share.

Owns the content of exit.json, and of outcome.json: how the ranks ended, for the agent of a runner that dies in its last
steps. `services/common/state_folder.py` owns the files.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gangline.domain.allocation import ExitReport
from gangline.domain.state import State
from gangline.protocol.wire import enum_number, prepare, to_proto
from gangline.v1 import agent_pb2, runner_pb2
from services.common.concurrency import in_own_thread
from services.common.state_folder import SharedFolder

# Limit for noting the outcome. A disk that is busy with the files of the ranks may need seconds.
OUTCOME_SECONDS = 10.0

log = structlog.get_logger(__name__)
prepare(ExitReport)


def write_exit(folder: SharedFolder, report: ExitReport, undelivered: Sequence[runner_pb2.TrialReport]) -> None:
    """Writes the report as `SharedFolder.write_exit` does, with its errors."""
    folder.write_exit(_format(folder.allocation_id, report, undelivered))


async def note_outcome(folder: SharedFolder, report: ExitReport, undelivered: Sequence[runner_pb2.TrialReport]) -> None:
    """Writes how the ranks ended, before a step that may take long. A disk that does not take it in OUTCOME_SECONDS
    delays the step no longer.

    undelivered: those that no scheduler has taken yet. One that is delivered meanwhile is known by its number.
    """
    status = _format(folder.allocation_id, report, undelivered)

    def write() -> None:
        try:
            folder.write_outcome(status)
        except OSError as error:
            log.error("cannot note how the ranks ended", error=str(error))

    await in_own_thread(write, OUTCOME_SECONDS)


def _format(
    allocation_id: str, report: ExitReport, undelivered: Sequence[runner_pb2.TrialReport]
) -> agent_pb2.AllocationStatus:
    return agent_pb2.AllocationStatus(
        allocation_id=allocation_id,
        state=enum_number(State.TERMINAL),  # type: ignore[arg-type] # the map knows numbers, not the stub's enum
        exit=to_proto(report),
        undelivered=undelivered,
    )


def load_stop_deadline(folder: SharedFolder) -> float:
    """Returns when the agent will kill what is left, according to its record of this allocation; 0 if that cannot be
    read."""
    deadline_at = folder.read_stop().get("deadline_at")
    return deadline_at if isinstance(deadline_at, float) else 0.0


def load_stop_reason(folder: SharedFolder) -> str:
    """Returns why the agent ordered the end; empty if that cannot be read."""
    return str(folder.read_stop().get("reason", ""))
