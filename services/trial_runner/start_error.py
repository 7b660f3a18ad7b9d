"""The end of an attempt before its ranks run: the kind of an error, and whether this machine caused it."""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from gangline.errors import ErrorKind, GanglineError
from services.common.disk_fault import is_disk_fault
from services.trial_runner.gang.outcome import signature_of
from services.trial_runner.gang.rendezvous import RendezvousFailed
from services.trial_runner.ranks.startup_hook import HookFailed

# The code of a start that no gateway has helped with the trial's code.
NO_GATEWAY_CODE = "code.no_gateway"
# Codes of start errors that this machine causes.
_AGENTS_CODES = {
    "code.disk",
    "environment.cgroup",
    "environment.rank_uids",
    "forkserver.none",
    "runner.no_nursery",
    "runner.no_port",
    "runner.no_rank",
    "runner.no_store",
}


class EndedEarly(Exception):
    """The attempt ended before its ranks started; report says why."""

    def __init__(self, report: ExitReport) -> None:
        super().__init__(report.message)
        self.report = report


def judge_start(error: Exception, agent_id: str, hook_lines: tuple[str, ...], now: float) -> ExitReport:
    """Returns the report of a start that failed by itself. hook_lines: the last ones of the startup hook."""
    if isinstance(error, RendezvousFailed):
        return ExitReport(agent_id, error.kind, error.message, failed_at=now, suspect_agent_ids=error.suspects)
    if isinstance(error, HookFailed):
        report = ExitReport(agent_id, ExitKind.USER_ERROR, str(error), failed_at=now, last_lines=hook_lines)
        return replace(report, batches_completed=0, signature=signature_of(report))
    return ExitReport(agent_id, kind_of(error), str(error), failed_at=now, is_agent_at_fault=is_agents_fault(error))


def kind_of(error: Exception) -> ExitKind:
    """Returns CONFIGURATION_ERROR for an error that every other attempt would meet as well, such as wrong bytes under
    the code's sha256."""
    if is_disk_fault(error):
        return ExitKind.AGENT_DISK
    if isinstance(error, GanglineError) and error.code == NO_GATEWAY_CODE:
        return ExitKind.NO_GATEWAY
    is_lasting = isinstance(error, GanglineError) and error.kind is ErrorKind.INVALID
    return ExitKind.CONFIGURATION_ERROR if is_lasting else ExitKind.START_FAILED


def is_agents_fault(error: Exception) -> bool:
    """Whether this machine caused the error. An answer of another machine, such as a gateway that is away, does not
    count."""
    return isinstance(error, OSError) or (isinstance(error, GanglineError) and error.code in _AGENTS_CODES)
