"""PURE: the times at which periodic work is due, the same for all processes of a machine.

Work that is due at the same time wakes its process once. A heartbeat that is sent then also finds its receiver awake.
After each message, the idle threads of grpc wake up about ten times within a second, so messages that coincide cost
less than those that are spread. Lease keepers, health checks and scans of all services wait by this grid.
"""

from __future__ import annotations

# Share of a period by which a wait may end early and still count as one until the end of the period.
_EARLY_SHARE = 0.01


def seconds_until_due(period_seconds: float, now: float) -> float:
    """Returns the time until the next multiple of the period, at most 1.01 periods.

    now: of a clock that counts from the machine's start (time.monotonic). So machines are not in step with each other,
    and their messages do not reach a scheduler all at once.
    """
    num_passed = now // period_seconds + (now % period_seconds > (1 - _EARLY_SHARE) * period_seconds)
    return (num_passed + 1) * period_seconds - now
