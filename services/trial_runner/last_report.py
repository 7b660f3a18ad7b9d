"""The last report of an attempt on this machine: noted while the runner still has work to do, written, told.

Owns the order of these and their limits. If the runner dies between the end of its ranks and exit.json, the agent
reports the note; without it the runner would count as lost, and finished work would run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from gangline.domain.allocation import ExitReport
from gangline.v1 import runner_pb2
from services.common.state_folder import SharedFolder
from services.trial_runner import exit_file
from services.trial_runner.attempt_lease import AttemptLease
from services.trial_runner.delivery.relay import Relay
from services.trial_runner.delivery.reporter import Reporter
from services.trial_runner.output_text import describe_interrupted

# Limit for reporting the exit to the scheduler directly, if the agent is gone and cannot report it.
EXIT_SECONDS = 5.0
# The same limit while the agent lives. It may be stuck, but usually it reports the exit as well.
QUICK_EXIT_SECONDS = 0.5

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LastReport:
    folder: SharedFolder
    relay: Relay
    reporter: Reporter
    lease: AttemptLease

    async def note(self, report: ExitReport) -> None:
        """Notes the report before the last steps."""
        self.relay.tell_rest()
        await exit_file.note_outcome(self.folder, report, self.reporter.undelivered)

    async def note_for_copy(self, report: ExitReport) -> None:
        """Notes the report before the output is copied, with the place at which the files stay without this runner."""
        message = describe_interrupted(report.message, str(self.folder.forgotten_path.absolute()), report.agent_id)
        await self.note(replace(report, message=message))

    async def leave(self, report: ExitReport, close: Callable[[], Awaitable[list[runner_pb2.TrialReport]]]) -> None:
        """Delivers what it can in a bounded time, and leaves the rest to the agent and to the drainer. The exit is
        written even if an earlier step fails.

        close: closes all parts. Returns the reports that no scheduler took.
        """
        undelivered: list[runner_pb2.TrialReport] = []
        try:
            undelivered = await close()
        except Exception as error:
            log.exception("the runner cannot close in order", error=str(error))
        exit_file.write_exit(self.folder, report, undelivered)
        if not undelivered:
            await self.lease.tell_exit(report, QUICK_EXIT_SECONDS if self.folder.state.has_agent() else EXIT_SECONDS)
        await self.lease.close()
        log.info("the runner ends", kind=report.kind, message=report.message)
