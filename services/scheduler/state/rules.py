"""PURE: the operator's rules: how long the scheduler waits, how often it retries, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Determined's default.
DEFAULT_PRIORITY = 42


@dataclass(frozen=True, slots=True)
class Rules:
    """Times and defaults by which the scheduler decides."""

    # by pool, the priority of requests whose configuration names none
    default_priorities: Mapping[str, int] = field(default_factory=dict)
    accept_seconds: float = 30.0  # time for every agent of a gang to accept
    rendezvous_seconds: float = 60.0  # time from the first runner's arrival to the last one's
    # further time, for the runners to come up before the rendezvous and the ranks after it
    start_seconds: float = 120.0
    kill_grace_seconds: float = 5.0  # time that an agent gives ranks between "end" and SIGKILL
    force_seconds: float = 30.0  # time that an agent may take to report the end after a grace has run out
    give_up_seconds: float = 86400.0  # time for which attempts in a row may fail for reasons outside of the trial
    max_backoff_seconds: float = 300.0  # the longest back-off before a trial runs again
    # Time for which a trial avoids an agent on which it could not start. An agent on which several trials could not
    # start is quarantined for as long.
    exclusion_seconds: float = 600.0
    # time that a trial that has run waits for all of its slots before it may start on fewer
    shrink_seconds: float = 60.0
    resize_seconds: float = 300.0  # the least time between two changes of a trial's size

    def default_priority(self, pool: str) -> int:
        return self.default_priorities.get(pool, DEFAULT_PRIORITY)

    def backoff(self, failures: int) -> float:
        """Returns 0 after the first failure in a row, because most occur once and slots are idle meanwhile; then 1, 2,
        4 ... seconds after the second, third, fourth."""
        return min(2.0 ** min(failures - 2, 60), self.max_backoff_seconds) if failures > 1 else 0.0
