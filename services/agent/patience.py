"""PURE: the signal with which a runner is asked to stop, and the time at which the agent stops waiting for it."""

from __future__ import annotations

from signal import Signals

from gangline.domain.state import ExitKind
from services.agent.record import StopOrder

# Time for a runner to end after it has written its report: it has nothing left to do then.
LINGER_SECONDS = 20.0


def plan_signal(order: StopOrder | None) -> Signals | None:
    """Returns SIGTERM, with which the trial checkpoints first, or SIGQUIT, which ends the ranks now; None without an
    order."""
    if order is None:
        return None
    return Signals.SIGQUIT if order.kind is ExitKind.KILLED else Signals.SIGTERM


def plan_kill_at(order: StopOrder | None, exit_seen_at: float | None) -> float | None:
    """Returns the Unix seconds at which the rest of the runner gets SIGKILL; None while it may run on.

    exit_seen_at: when its report was first seen on disk.
    """
    moments = [order.deadline_at] if order is not None else []
    if exit_seen_at is not None:
        moments.append(exit_seen_at + LINGER_SECONDS)
    return min(moments, default=None)
