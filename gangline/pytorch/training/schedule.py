"""PURE: derives the tasks of the loop after a batch from the user's periods. It uses no clock and no rank.

Owns the pace: after how many batches the ranks check together whether they should stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.pytorch.trial.unit import Position, TrainUnit


@dataclass(frozen=True, slots=True)
class Rungs:
    """Lengths, each of which is due once: at the first batch that completes it."""

    units: tuple[TrainUnit, ...] = ()

    def is_due(self, position: Position) -> bool:
        before = position.before(1)
        return any(unit.total_batches(before) == position.batches for unit in self.units)

    def next_due(self, position: Position) -> int:
        """Returns the batches at which the next length is due; without one a count that is never reached."""
        ahead = (unit.total_batches(position) for unit in self.units)
        return min((batches for batches in ahead if batches > position.batches), default=_NEVER)


_NEVER = 1 << 62
NO_RUNGS = Rungs()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Periods of one training. A period of None means: only at the end.

    A validation, a checkpoint or a stop that is due between two steps waits for the later step, because no checkpoint
    has aggregated gradients. Reports and the end of training do not wait.
    """

    max_length: TrainUnit
    reporting_period: TrainUnit
    validation_period: TrainUnit | None = None
    checkpoint_period: TrainUnit | None = None
    checkpoint_policy: str = "best"
    aggregation_frequency: int = 1  # batches of one optimizer step
    rungs: Rungs = NO_RUNGS  # lengths at which a searcher compares trials, so each one is validated

    def has_report(self, position: Position) -> bool:
        return self.reporting_period.is_due(position)

    def has_validation(self, position: Position) -> bool:
        return self._is_due_by_step(self.validation_period, position) or self.has_rung(position)

    def has_rung(self, position: Position) -> bool:
        return bool(self.rungs.units) and self._is_due_by_step(self.rungs, position)

    def has_checkpoint(self, position: Position) -> bool:
        return self._is_due_by_step(self.checkpoint_period, position)

    def ends_step(self, position: Position) -> bool:
        """Returns whether no aggregated gradients wait for further batches."""
        return position.batches % self.aggregation_frequency == 0

    def wants_checkpoint_of(self, is_best: bool) -> bool:
        """Returns whether the policy saves a checkpoint after a validation."""
        return self.checkpoint_policy == "all" or (self.checkpoint_policy == "best" and is_best)

    def is_over(self, position: Position) -> bool:
        return self.max_length.is_reached(position)

    def next_event(self, position: Position) -> int:
        """Returns a count of batches, above the position's, before which nothing is due and training is not over."""
        # Counted from the newest step, because events that were due since then still wait.
        step = position.before(position.batches % self.aggregation_frequency)
        periods = (self.validation_period, self.checkpoint_period, self.rungs if self.rungs.units else None)
        waiting = [period.next_due(step) for period in periods if period is not None]
        frequency = self.aggregation_frequency
        nearest = min(
            [self.reporting_period.next_due(position), *(-(-due // frequency) * frequency for due in waiting)]
        )
        return max(position.batches + 1, min(nearest, self.max_length.total_batches(position)))

    def total_batches(self, position: Position) -> int:
        return self.max_length.total_batches(position)

    def _is_due_by_step(self, period: TrainUnit | Rungs | None, position: Position) -> bool:
        """Returns whether a period was due at any batch of the step that has just ended."""
        if period is None or not self.ends_step(position):
            return False
        return any(
            period.is_due(position.before(ago)) for ago in range(min(self.aggregation_frequency, position.batches))
        )


@dataclass(slots=True)
class BestMetric:
    """Keeps the best value of the deciding metric."""

    metric: str | None  # None if no metric decides; every validation then counts as best
    smaller_is_better: bool = True
    value: float | None = None

    def beats(self, metrics: dict[str, float]) -> bool:
        """Returns whether these metrics are the best so far, and keeps them if so."""
        if self.metric is None or self.metric not in metrics:
            return True
        value = metrics[self.metric]
        if self.value is not None and (value >= self.value if self.smaller_is_better else value <= self.value):
            return False
        self.value = value
        return True


# Cap on the batches between two checks. It bounds the wait for a stop when batches become slower.
_MOST_BATCHES = 10_000


@dataclass(slots=True)
class Pace:
    """Distance between checks."""

    seconds: float = 0.5  # wanted time between two checks
    distance: int = 1
    next_look: int = 1  # batch count of the next check
    is_hurried: bool = False  # whether the next agreement gives the least distance, whatever the ranks suggest

    def suggest(self, batches: int, elapsed_seconds: float) -> int:
        """Returns the distance that this rank would choose after `batches` took so long. At most twice the present one,
        because the first batches of a process say little."""
        if batches < 1 or elapsed_seconds <= 0:
            return self.distance
        wanted = int(self.seconds * batches / elapsed_seconds)
        return max(1, min(wanted, 2 * self.distance, _MOST_BATCHES))

    def agree(self, now: int, distance: int) -> None:
        """Sets the distance and the next check. All ranks call it with the same numbers."""
        self.distance = 1 if self.is_hurried else distance
        self.is_hurried = False
        self.next_look = now + self.distance

    def hurry(self, now: int, *, is_asked: bool) -> None:
        """Checks after the next batch, and from then on at doubling distances. Called where an order is likely, which
        takes some milliseconds to arrive. All ranks call it at the same batch. is_asked: whether a check is under way,
        whose suggestions are from before."""
        self.agree(now, 1)
        self.is_hurried = is_asked
