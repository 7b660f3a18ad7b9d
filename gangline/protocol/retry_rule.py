"""PURE: decides how long a call is retried, and the pauses between its attempts.

The attempts of a call go round the gateways. Each gateway is tried before the first pause; then the pause doubles with
each round. The clock's values come in as arguments. Used by gangline.client.attempts only.
"""

from __future__ import annotations

# The pause after a round doubles from the first to the longest.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0


class Retry:
    """The retries of one call. started: the clock's value when the call began."""

    def __init__(self, num_gateways: int, started: float) -> None:
        self._num_gateways = num_gateways
        self._started = started
        self._num_failures = 0
        self._pause = FIRST_PAUSE_SECONDS

    def fail(self, now: float, limit: float, *, is_answer: bool) -> float | None:
        """Counts a failed attempt. Returns the pause before the next one; None to give up.

        limit: the most seconds since the start. It does not apply before each gateway was tried once, unless the
        failure is an answer. is_answer: the gateway has answered that the cluster cannot take the call now, which the
        others would answer too.
        """
        has_untried = self.has_untried
        self._num_failures += 1
        is_round_over = self._num_failures % self._num_gateways == 0
        pause = self._pause if is_round_over else 0.0
        if (is_answer or not has_untried) and self.seconds(now) + pause > limit:
            return None
        if is_round_over:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause

    @property
    def has_untried(self) -> bool:
        """Returns whether a gateway is left to try if the present attempt fails."""
        return self._num_failures + 1 < self._num_gateways

    def seconds(self, now: float) -> float:
        """Returns how long the call has been retried."""
        return now - self._started

    def restart_clock(self, now: float) -> None:
        """Begins a new outage, because the last attempt had brought the call further."""
        self._started = now

    def restart(self, now: float) -> None:
        """Begins a new outage with short pauses, because the last attempt had worked for long."""
        self._started, self._num_failures, self._pause = now, 0, FIRST_PAUSE_SECONDS
