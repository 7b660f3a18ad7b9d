"""Checks the address at which a trial runner says that it serves its metrics.

The runner writes the address into its folder, where a rank with the same account could write another one. The agent
vouches for it to the leader only if the runner's own process listens there. So a trial cannot make Prometheus read
anything else.
"""

from __future__ import annotations

import asyncio

import psutil
import structlog

from gangline.printable import to_line
from services.agent.allocations import process_watch
from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.journal_record import Process
from services.common.address import join_address

_log = structlog.get_logger(__name__)


class RunnerMetrics:
    """The metrics of one runner. address: "host:port" once it is checked; empty before. may_come: whether there is
    something left to look for."""

    def __init__(self, folder: AllocationFolder) -> None:
        self.address = ""
        self._folder = folder
        self._refused = ""

    @property
    def may_come(self) -> bool:
        return not self.address

    async def check(self, runner: Process) -> bool:
        """Looks for a new address. Returns whether it is the runner's. Refuses each other address with one line."""
        address = self._folder.load_metrics_address()
        if not address or address in (self.address, self._refused):
            return False
        own = await asyncio.to_thread(_listening, runner)
        if address in own:
            self.address = address
            return True
        self._refused = address
        _log.warning(
            "metrics are refused, because the trial runner does not listen at their address",
            allocation_id=self._folder.allocation_id,
            address=to_line(address),
            pid=runner.pid,
            listens=sorted(own),
        )
        return False


def _listening(runner: Process) -> set[str]:
    """Returns the addresses at which this process listens; empty if it has ended or cannot be read."""
    try:
        connections = psutil.Process(runner.pid).net_connections("tcp")
    except psutil.Error:
        return set()
    if not process_watch.is_alive(runner):
        return set()
    return {join_address(each.laddr.ip, each.laddr.port) for each in connections if each.status == psutil.CONN_LISTEN}
