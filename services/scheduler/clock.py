"""PURE: how far an agent's clock is from the leader's, told from the times that the agent's messages carry.

What is compared between machines (which member of a gang failed first, whether a checkpoint is older than a failure)
goes through here, so that a host whose clock is off is neither blamed for it nor cleared. Kept by the agent's session.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from gangline.domain.allocation import ExitReport

# Heartbeats come five times in a lease: a clock that was set back counts as such about two leases later.
NUM_RECENT = 10


class AgentClock:
    """A message's way takes time as well, so the quickest of the recent ones says it best, to some milliseconds. Agents
    of an earlier version send no times; their clocks are trusted."""

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=NUM_RECENT)

    def heard(self, sent_at: float, now: float) -> None:
        """sent_at: by the agent's clock, 0 where it did not say; passed over when it is no number. now: by the
        leader's."""
        if sent_at and math.isfinite(sent_at):
            self._differences.append(now - sent_at)

    def to_ours(self, at: float) -> float:
        """A time of the agent's on the leader's clock; 0, which means never, stays."""
        return at + min(self._differences, default=0.0) if at else at

    def exit_to_ours(self, report: ExitReport) -> ExitReport:
        return replace(report, failed_at=self.to_ours(report.failed_at), ended_at=self.to_ours(report.ended_at))
