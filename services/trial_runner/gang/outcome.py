"""PURE: why this member of an allocation ended, from how its ranks ended.

The cause is the first real error, with its rank. A rank that only noticed the loss of another one ("connection closed
by peer") reports a consequence, which is never the cause. An error after a rank has finished its training is teardown
and changes nothing. The runner calls this once, when all of its ranks are gone.

Owns signatures: the common part of failures of the same cause, by which the scheduler sees that a failure repeats.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.domain.allocation import ExitReport
from gangline.domain.failure import CHILD, describe_signal, signal_passed_on
from gangline.domain.state import ExitKind
from gangline.launch.memory_fault import is_lack_of_memory
from services.trial_runner.gang.limit import Limits, name_limit
from services.trial_runner.gang.printed_error import PrintedError, find_final_error, find_last_error, quote_last_line

# Longest message of an exit, in characters. Exits are stored in etcd.
MAX_MESSAGE_LENGTH = 2000
# Longest code of an error, which a rank chooses.
MAX_CODE_LENGTH = 100

# Messages of gloo, NCCL and the store of torch 2.9 to 2.13 on the surviving ranks, when a rank has gone.
_CONSEQUENCE = re.compile(
    r"connection closed by peer|connection reset by peer.*gloo|gloo.*connection reset by peer|gloo.*broken pipe"
    r"|\[\S*gloo/transport/tcp/\S+\]|gloo connectfullmesh failed|ncclremoteerror|remote process exited"
    r"|nccl communicator was aborted|distnetworkerror|failed to recv, got 0 bytes|recvvalue failed"
    r"|sendbytes failed|connection was likely closed",
    re.IGNORECASE | re.DOTALL,
)
# Those that come only after the other process has gone. Every other consequence is nearer to the cause.
_PEER_HAS_GONE = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|remote process exited", re.IGNORECASE
)
# The output of the C++ runtime for an uncaught exception, before it aborts.
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^']+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(\S.*)")
_KIND_BY_EXCEPTION = {
    "ImportError": ExitKind.IMPORT_ERROR,
    "ModuleNotFoundError": ExitKind.IMPORT_ERROR,
    "BrokenPipeError": ExitKind.UNAVAILABLE,
    "ConnectionAbortedError": ExitKind.UNAVAILABLE,
    "ConnectionError": ExitKind.UNAVAILABLE,
    "ConnectionRefusedError": ExitKind.UNAVAILABLE,
    "ConnectionResetError": ExitKind.UNAVAILABLE,
    "TimeoutError": ExitKind.UNAVAILABLE,
}


# Kinds of errors reported by a rank that a disk fault may have caused.
_MAY_BE_DISK = {None, ExitKind.USER_ERROR, ExitKind.UNAVAILABLE, ExitKind.CONFIGURATION_ERROR}


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failure that a rank reported, or that a member of the gang reported of one of its ranks."""

    kind: ExitKind | None  # None if it is not classified yet
    message: str
    rank: int | None = None
    agent_id: str = ""
    failed_at: float = 0.0
    details: str = ""
    error_code: str = ""  # code of a rank's GanglineError; empty for other errors
    remark: str = ""  # a fact beside the message, such as the exit code or a quoted line; nothing is inferred from it

    @property
    def text(self) -> str:
        """Returns message and remark, for users."""
        return "; ".join(filter(None, (self.message, self.remark)))

    @property
    def is_consequence(self) -> bool:
        """Whether the failure only reports the loss of another process."""
        return self._distance > 0

    def is_nearer_than(self, other: FailureRecord) -> bool:
        """Whether this failure is nearer to the cause of all, whichever of the two came first."""
        return self._distance < other._distance

    @property
    def order(self) -> tuple[int, float]:
        """Sorts failures: the one that counts comes first."""
        return self._distance, self.failed_at

    @property
    def _distance(self) -> int:
        """Returns 0 for an own error, 1 for a consequence, 2 for one that follows when the other process has gone."""
        texts = self.message, self.details[-MAX_MESSAGE_LENGTH:]
        if not any(map(_CONSEQUENCE.search, texts)):
            return 0
        return 2 if _PEER_HAS_GONE.search(self.message) else 1


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one rank. Exactly one of exit_code and signal is set; neither is set if the end was not observed."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None
    ended_at: float = 0.0
    was_killed: bool = False  # whether this runner killed the rank before it had ended by itself
    failure: FailureRecord | None = None
    is_finished: bool = False  # whether the rank had reported that its training was over
    is_preempted: bool = False
    was_out_of_memory: bool = False  # whether the kernel counted a kill for lack of memory while the rank ran
    exceeded_memory: bool = False  # whether the kernel counted a kill in the rank's own control group
    # newest failure reported by a process that the rank had started, with the rank of that worker
    worker_failure: FailureRecord | None = None
    last_lines: tuple[str, ...] = ()  # last lines of the rank's output, as they were printed
    report_lines: tuple[str, ...] = ()  # the last lines for a user, with tracebacks folded
    trace_lines: tuple[str, ...] = ()  # as many last lines of the same stream as a traceback may have
    stdout_line: str = ""  # last line of standard output, if the last lines are those of standard error
    # whether stdout_line came so late that the process was not about to end when it wrote to standard error
    is_stdout_later: bool = False
    uncaught_lines: tuple[str, ...] = ()  # output of the C++ runtime for an uncaught exception

    @property
    def is_success(self) -> bool:
        return self.is_finished or (self.exit_code == 0 and self.failure is None)


@dataclass(frozen=True, slots=True)
class Stop:
    """An order to end."""

    kind: ExitKind  # PREEMPTED (orderly) or KILLED
    reason: str = ""
    is_overdue: bool = False  # whether the ranks did not end before the deadline


@dataclass(frozen=True, slots=True)
class OutcomeContext:
    """Everything besides the ranks' ends that the verdict depends on."""

    agent_id: str
    num_nodes: int  # number of machines in the gang
    now: float
    peer: FailureRecord | None = None  # the first failure that another member reported; None if none did
    stop: Stop | None = None
    lost: str = field(default="")  # why the nursery died; empty if it did not
    hang: FailureRecord | None = None  # hang of a rank of this member, for which the whole gang was ended
    cut: FailureRecord | None = None  # set if the ranks were ended because the attempt is over or its lease has run out
    # Returns a clause about the agent's own disk if an error's message shows that the disk refuses writes, else empty
    # text.
    find_disk_fault: Callable[[str], str] = field(default=lambda _: "")
    limits: Limits = field(default_factory=Limits)  # limits of each rank


def judge(ends: Sequence[RankEnd], context: OutcomeContext) -> ExitReport:
    """Returns the report of this member, once all its ranks are gone."""
    report = ExitReport(agent_id=context.agent_id, kind=ExitKind.COMPLETED, ended_at=context.now)
    if ends and all(end.is_success for end in ends):
        return _judge_success(report, ends, context)
    if context.hang is not None:
        return _judge_hang(report, context.hang)
    cause = find_cause(ends)
    # An own error counts even if a kill was ordered meanwhile. The member that was ended by this very error may have
    # reported first; the scheduler then kills the rest of the gang.
    if cause is not None and not cause.is_consequence:
        is_obeying = context.stop is not None and _is_unsaved_stop(cause)
        return _judge_unsaved_stop(report, cause, context) if is_obeying else _with_cause(report, cause, ends, context)
    if context.cut is not None:
        return replace(report, kind=ExitKind.NETWORK, message=context.cut.message, failed_at=context.cut.failed_at)
    if context.stop is not None and context.stop.kind is ExitKind.KILLED:
        return replace(report, kind=ExitKind.KILLED, message=context.stop.reason or "killed on request")
    return _judge_innocent(report, cause, ends, context)


def _is_unsaved_stop(failure: FailureRecord | None) -> bool:
    """Whether a rank obeys an order to stop, but its storage takes no checkpoint."""
    return failure is not None and failure.kind is ExitKind.PREEMPTED


def _judge_unsaved_stop(report: ExitReport, cause: FailureRecord, context: OutcomeContext) -> ExitReport:
    assert context.stop is not None
    message = f"{cause.message}; it goes on from its latest checkpoint; asked to stop: {context.stop.reason}"
    return replace(report, kind=context.stop.kind, message=message[:MAX_MESSAGE_LENGTH])


def _judge_innocent(
    report: ExitReport, cause: FailureRecord | None, ends: Sequence[RankEnd], context: OutcomeContext
) -> ExitReport:
    """Judges a member whose ranks have no error of their own. cause: the consequence that one of them noticed."""
    if context.peer is not None and not (context.stop is not None and _is_unsaved_stop(context.peer)):
        return _judge_peer(report, context)
    if context.stop is not None:
        return _judge_overdue(report, context.stop)
    if cause is not None:
        return _judge_consequence(_with_cause(report, cause, ends, context), context)
    message = context.lost or "its ranks vanished without a trace"
    return replace(report, kind=ExitKind.RUNNER_LOST, message=message, failed_at=context.now)


def find_cause(ends: Sequence[RankEnd]) -> FailureRecord | None:
    """Returns the first real error among the ranks; without one, the first consequence, such as the end of a wait for
    the others, before those of its own end; None if no rank of this member failed."""
    failures = [failure for failure in map(failure_of, ends) if failure is not None]
    return min(failures, key=lambda failure: failure.order, default=None)


def first_cause(earlier: FailureRecord | None, told: FailureRecord) -> FailureRecord:
    """Returns the one of two failures that counts: the earlier report, unless the later one is nearer to the cause."""
    return told if earlier is None or told.is_nearer_than(earlier) else earlier


def failure_of(end: RankEnd) -> FailureRecord | None:
    """Returns what this rank did wrong itself; None if it finished or was killed by this runner."""
    if end.is_success:
        return None
    if end.failure is not None:
        reason = _find_reason(end, end.failure)
        return reason if reason.rank is not None and end.worker_failure is not None else replace(reason, rank=end.rank)
    if end.was_killed or (end.signal is None and end.exit_code is None):
        return None
    if end.signal is not None:
        return _signal_failure(end, end.signal)
    return _find_reason(end, FailureRecord(None, f"exited with code {end.exit_code}", end.rank, "", end.ended_at))


def _find_reason(end: RankEnd, failure: FailureRecord) -> FailureRecord:
    """Returns the failure with its kind, message and remark.

    A rank that ends with an exit code may pass on the failure of a process that it had started. Such a process was
    killed, reported its failure over a link of its own, or printed a traceback as the last of the output.
    """
    number = signal_passed_on(end.exit_code or 0)
    if number is not None and failure.kind in (None, ExitKind.SIGNAL):
        remark = f"exited with code {end.exit_code}"
        return replace(failure, **_killed(number, end.was_out_of_memory, CHILD), remark=remark)
    if failure.kind is not None:
        return failure
    if end.worker_failure is not None:
        return replace(end.worker_failure, failed_at=failure.failed_at)
    lines = end.trace_lines or end.last_lines
    error = None if end.is_stdout_later else find_final_error(lines)
    if error is None and (last := find_last_error(lines)) is not None and is_consequence(last.text):
        # Messages of NCCL and gloo have several lines.
        error = last
    if error is not None:
        return replace(failure, kind=_kind_of(error), message=error.text, remark=failure.message)
    quote = quote_last_line(lines, end.stdout_line)
    silence = "" if quote or end.failure is not None else " and said nothing"
    return replace(failure, kind=ExitKind.USER_ERROR, message=f"{failure.message}{silence}", remark=quote)


def is_consequence(text: str) -> bool:
    """Whether this error only reports that another process has gone."""
    return bool(_CONSEQUENCE.search(text))


def _signal_failure(end: RankEnd, number: int) -> FailureRecord:
    failure = FailureRecord(**_killed(number, end.was_out_of_memory), rank=end.rank, failed_at=end.ended_at)
    text = find_uncaught(end.uncaught_lines) if number == signal.SIGABRT else ""
    if not text:
        return failure
    # gloo aborts if the data of another rank does not fit: the ranks of the user's code called different collectives.
    if text.startswith("gloo::EnforceNotMet"):
        return replace(failure, kind=ExitKind.USER_ERROR, message=text)
    is_memory = is_lack_of_memory((text.partition(": ")[0],), text)
    return replace(
        failure, kind=ExitKind.OUT_OF_MEMORY if is_memory else ExitKind.SIGNAL, message=f"{failure.message}: {text}"
    )


def find_uncaught(lines: Sequence[str]) -> str:
    """Returns the C++ exception that ended a process by abort(), as the C++ runtime prints it; empty if there is
    none."""
    types = [match[1] for match in map(_TERMINATE.search, lines) if match is not None]
    whats = [match[1].strip() for match in map(_WHAT.match, lines) if match is not None]
    return f"{types[-1]}: {whats[-1]}" if types and whats else ""


def _killed(number: int, was_out_of_memory: bool, whom: str = "") -> dict[str, Any]:
    """Returns kind and message of a failure by a signal."""
    if number == signal.SIGKILL and was_out_of_memory:
        message = f"{whom}killed by the kernel because memory ran out (SIGKILL)"
        return {"kind": ExitKind.OUT_OF_MEMORY, "message": message}
    return {"kind": ExitKind.SIGNAL, "message": describe_signal(number, whom)}


def _kind_of(error: PrintedError) -> ExitKind:
    if is_lack_of_memory((error.name,), error.text):
        return ExitKind.OUT_OF_MEMORY
    return _KIND_BY_EXCEPTION.get(error.name, ExitKind.USER_ERROR)


def _judge_success(report: ExitReport, ends: Sequence[RankEnd], context: OutcomeContext) -> ExitReport:
    if context.stop is not None and any(end.is_preempted for end in ends):
        why = f": {context.stop.reason}" if context.stop.reason else ""
        message = f"stopped after a checkpoint{why}"
        return replace(report, kind=ExitKind.PREEMPTED, message=message)
    return report


def _with_cause(
    report: ExitReport, cause: FailureRecord, ends: Sequence[RankEnd], context: OutcomeContext
) -> ExitReport:
    # A worker of a script that runs once on its machine has no process of its own among the ends.
    end = next((end for end in ends if end.rank == cause.rank), ends[0])
    # A quoted line may name a full disk; without a path, the check of the disk itself decides.
    texts = (cause.message, cause.remark.partition("'")[0]) if cause.kind in _MAY_BE_DISK else ()
    disk_fault = next(filter(None, map(context.find_disk_fault, texts)), "")
    kind, message = ExitKind.AGENT_DISK, f"{cause.text}; {disk_fault}"
    if not disk_fault:
        lines = (*end.last_lines, *cause.details.splitlines())
        found = cause.kind or ExitKind.USER_ERROR
        if found is ExitKind.PREEMPTED:
            # Nobody has asked this rank to stop.
            found = ExitKind.UNAVAILABLE
        kind, message = name_limit(
            found, cause.message, lines, context.limits, exceeded_memory=end.exceeded_memory, remark=cause.remark
        )
    return replace(
        report,
        kind=kind,
        is_agent_at_fault=bool(disk_fault),
        message=message[:MAX_MESSAGE_LENGTH],
        rank=cause.rank,
        exit_code=None if end.was_killed else end.exit_code,
        signal=None if end.was_killed else end.signal,
        failed_at=cause.failed_at,
        last_lines=end.report_lines or end.last_lines,
        error_code="" if disk_fault else cause.error_code,
    )


def _judge_hang(report: ExitReport, hang: FailureRecord) -> ExitReport:
    """Reports the hang, and ignores what the ranks printed when they were ended."""
    return replace(
        report,
        kind=ExitKind.HANG,
        message=hang.message[:MAX_MESSAGE_LENGTH],
        rank=hang.rank,
        failed_at=hang.failed_at,
        last_lines=tuple(hang.details.splitlines()),
    )


def _judge_peer(report: ExitReport, context: OutcomeContext) -> ExitReport:
    assert context.peer is not None
    message = f"ended because {describe_failure(context.peer)}"[:MAX_MESSAGE_LENGTH]
    return replace(report, kind=ExitKind.PEER_FAILED, message=message, failed_at=context.now)


def describe_failure(failure: FailureRecord) -> str:
    """Returns one clause that names rank and agent if they are known."""
    if failure.rank is None:
        return failure.text
    return f"rank {failure.rank} on {failure.agent_id} failed first: {failure.text}"


def _judge_overdue(report: ExitReport, stop: Stop) -> ExitReport:
    """Returns PREEMPTED also without a last checkpoint: the trial is requeued and continues from the checkpoint that it
    has."""
    how = "had not stopped in time and was killed" if stop.is_overdue else "ended on request, without a last checkpoint"
    message = f"{how}; it goes on from its latest checkpoint; asked to stop: {stop.reason}"
    return replace(report, kind=ExitKind.PREEMPTED, message=message)


def _judge_consequence(report: ExitReport, context: OutcomeContext) -> ExitReport:
    if context.num_nodes == 1:
        return report
    message = f"{report.message}; no rank of any member reported an error of its own"
    return replace(report, kind=ExitKind.NETWORK, message=message[:MAX_MESSAGE_LENGTH])


# Longest signature, in characters. Two messages that differ only behind it count as the same failure.
MAX_SIGNATURE_LENGTH = 300
# Addresses, ids, sizes and times, which differ between attempts.
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]*\d[0-9a-f]*\b|\d+")
# Signals that a process raises by its own fault. Any other one may come from another process.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def signature_of(report: ExitReport) -> str:
    """Returns the signature of a failure; empty if the user's code may not be the cause. Other causes are a machine, a
    network, another rank, or the sender of a signal."""
    is_own_signal = report.kind is ExitKind.SIGNAL and report.signal in _OWN_SIGNALS
    if report.kind is ExitKind.HANG:
        # The message of a hang has durations and the places of ranks, which differ each time.
        return report.kind.value
    is_own = report.kind is ExitKind.USER_ERROR and not is_consequence(report.message)
    if not is_own and not is_own_signal:
        return ""
    # The exit code is the only certain difference between failures that are known by their last line. A rank that has
    # named its exception has code 1, or none if it was killed before it ended.
    code = f" {report.exit_code}" if report.exit_code not in (None, 1) else ""
    return f"{report.kind.value}{code} {_CHANGING.sub('#', report.message)}"[:MAX_SIGNATURE_LENGTH]
