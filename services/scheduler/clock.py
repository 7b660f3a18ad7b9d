"""PURE: estimates the offset between an agent's clock and the leader's from the times in the agent's messages.

Every comparison of times between machines uses it: which member of a gang failed first, whether a checkpoint is older
than a failure. So a host with a wrong clock is neither blamed for a failure nor cleared of it. Each session keeps one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from gangline.domain.allocation import ExitReport

# An agent sends five heartbeats in a lease, so the estimate follows a clock that was set back about two leases later.
NUM_RECENT = 10


class AgentClock:
    """Estimates the clock offset as the smallest (received - sent) of the last NUM_RECENT messages.

    The message with the least network delay gives the best estimate, to some milliseconds. Agents of an earlier version
    send no times; their clocks are trusted.
    """

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=NUM_RECENT)

    def heard(self, sent_at: float, now: float) -> None:
        """Records the times of one message.

        sent_at: by the agent's clock, 0 where the agent sent none; ignored when it is not finite. now: by the leader's
        clock.
        """
        if sent_at and math.isfinite(sent_at):
            self._differences.append(now - sent_at)

    def to_ours(self, at: float) -> float:
        """Converts a time of the agent's clock to the leader's; 0, which means never, stays 0."""
        return at + min(self._differences, default=0.0) if at else at

    def exit_to_ours(self, report: ExitReport) -> ExitReport:
        return replace(report, failed_at=self.to_ours(report.failed_at), ended_at=self.to_ours(report.ended_at))
