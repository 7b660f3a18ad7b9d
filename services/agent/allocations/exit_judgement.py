"""PURE: how an allocation ended on this agent if its runner left no report of its own, as one ExitReport.

The runner's own report always takes precedence, and then its note of how the ranks ended
(services/trial_runner/last_report.py). This module has the sentences for the other cases. The lifecycle of an
allocation calls it, once for each allocation.

Owns the signals and deadlines by which a runner is asked to stop and at last killed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from signal import Signals

from gangline.domain.allocation import ExitReport
from gangline.domain.failure import signal_name
from gangline.domain.state import ExitKind
from services.agent.allocations.journal_record import JournalRecord, JournalStop, Phase


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process, as far as the kernel reports it; both fields are None if it does not."""

    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence that the agent has of the end."""

    end: ProcessEnd = ProcessEnd()
    start_error: str = ""  # why no runner could be started; empty if one was
    is_disk_fault: bool = False  # whether it could not be started because the agent's own disk refuses writes
    was_killed: bool = False  # whether the agent sent SIGKILL
    problem: str = ""  # names the file of the allocation's folder that could not be read; empty if there is none
    log_path: str = ""  # the file of the runner's own output
    ended_unasked: bool = False  # whether it ended before there was an order to end


def conclude(record: JournalRecord, evidence: Evidence, agent_id: str, now: float) -> ExitReport:
    """Returns the report for a runner that left none."""
    kind, message = _judge(record, evidence)
    was_never_started = record.phase is Phase.ACCEPTED and record.stop is not None and not evidence.problem
    return ExitReport(
        agent_id=agent_id,
        kind=kind,
        message=message,
        exit_code=evidence.end.exit_code,
        signal=evidence.end.signal,
        failed_at=now,
        ended_at=now,
        is_agent_at_fault=bool(evidence.start_error),
        has_not_begun=bool(evidence.start_error) or was_never_started,
    )


def _judge(record: JournalRecord, evidence: Evidence) -> tuple[ExitKind, str]:
    if evidence.start_error:
        kind = ExitKind.AGENT_DISK if evidence.is_disk_fault else ExitKind.START_FAILED
        return kind, evidence.start_error
    if record.stop is None or evidence.ended_unasked or evidence.problem:
        return ExitKind.RUNNER_LOST, _lost_message(record, evidence)
    return _judge_stopped(record, record.stop, evidence)


def _judge_stopped(record: JournalRecord, order: JournalStop, evidence: Evidence) -> tuple[ExitKind, str]:
    if record.phase is Phase.ACCEPTED:
        return order.kind, f"stopped before its trial runner started: {order.reason}"
    if order.kind is ExitKind.KILLED:
        return ExitKind.KILLED, f"killed: {order.reason}"
    if evidence.end.signal == signal.SIGTERM:
        # SIGTERM came from this agent, before the runner listened to it. There was nothing yet to checkpoint.
        return order.kind, f"stopped while its trial runner was starting: {order.reason}"
    if evidence.was_killed:
        # PREEMPTED would claim a checkpoint, of which there is no evidence.
        return ExitKind.RUNNER_LOST, f"did not stop in time and was killed; asked to stop because {order.reason}"
    return ExitKind.RUNNER_LOST, _lost_message(record, evidence)


def _lost_message(record: JournalRecord, evidence: Evidence) -> str:
    who = f"its trial runner (pid {record.process.pid})" if record.process else "its trial runner"
    parts = [f"{who} ended without a report", _format_end(evidence.end)]
    parts += [evidence.problem, f"its log is {evidence.log_path}" if evidence.log_path else ""]
    return "; ".join(part for part in parts if part)


def _format_end(end: ProcessEnd) -> str:
    if end.signal is not None:
        return f"signal {end.signal} ({signal_name(end.signal)}) ended it"
    return f"exit code {end.exit_code}" if end.exit_code is not None else ""


# Time for a runner to end after it has written its report: it has nothing left to do then.
LINGER_SECONDS = 20.0


def plan_signal(order: JournalStop | None) -> Signals | None:
    """Returns SIGTERM, with which the trial checkpoints first, or SIGQUIT, which ends the ranks now; None without an
    order."""
    if order is None:
        return None
    return Signals.SIGQUIT if order.kind is ExitKind.KILLED else Signals.SIGTERM


def plan_kill_at(order: JournalStop | None, exit_seen_at: float | None) -> float | None:
    """Returns the Unix seconds at which the rest of the runner gets SIGKILL; None while it may run on.

    exit_seen_at: when its report was first seen on disk.
    """
    moments = [order.deadline_at] if order is not None else []
    if exit_seen_at is not None:
        moments.append(exit_seen_at + LINGER_SECONDS)
    return min(moments, default=None)
