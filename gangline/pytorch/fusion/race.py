"""PURE: measures the default and its challengers against one another, round after round, until one is good enough.

The best size lies in a wide, flat valley: which of two neighbours is better cannot be told from noise in reasonable
time and does not matter. So a challenger is dropped when it is clearly behind, and among those that are equal within
the zone of indifference the best so far is taken at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# The arm of torch's own buckets. Invariant: it is never dropped, because every gain is measured against it.
DEFAULT = 0
MOST_ROUNDS = 5
_LEAST_ROUNDS = 2
# By round: a challenger slower than the best arm by more than this is dropped. The limit falls, because a median of
# more steps varies less.
_DROP_RATIOS = (0.10, 0.05, 0.03)
# Challengers this close to one another are equally good: more rounds could not separate them from noise.
_INDIFFERENT_RATIO = 0.04
_EQUAL_RATIO = 0.01
_CLEAR_RATIO = 0.05
# Invariant: a challenger replaces the default only with a median gain of 2 % or more over at least LEAST_PAIRS pairs.
ACCEPT_RATIO = 0.98
LEAST_PAIRS = 3
_STILL_GOOD_RATIO = 1.02


class Shuffler(Protocol):
    """The part of random.Random that a race needs."""

    def sample(self, population: Sequence[int], k: int) -> list[int]: ...


@dataclass(slots=True)
class Race:
    """Arm 0 is the default, which stays to the end."""

    # number of buckets of each arm, the default included; among equals the arm with fewer buckets wins
    num_buckets: Sequence[int]
    turn_steps: int  # steps of one turn of an arm
    steps: int  # all steps that the race may take
    live: list[int] = field(init=False)
    num_rounds: int = 0
    steps_used: int = 0
    _seconds: dict[int, list[list[float]]] = field(init=False)

    def __post_init__(self) -> None:
        self.live = list(range(len(self.num_buckets)))
        self._seconds = {arm: [] for arm in self.live}

    def order(self, rng: Shuffler) -> list[int]:
        """Returns the arms of the next round, shuffled so that a drift of the machine favours none of them."""
        return rng.sample(self.live, len(self.live))

    def take(self, seconds_by_arm: Mapping[int, Sequence[float]]) -> None:
        """Records the steps of one round, equally many of every live arm; NaN counts as infinite."""
        for arm in self.live:
            self._seconds[arm].append([_time(seconds) for seconds in seconds_by_arm[arm]])
        self.steps_used += len(self.live) * self.turn_steps
        self.num_rounds += 1
        self._drop()
        if not self._has_steps_for(len(self.live)) and self._has_steps_for(2):
            self.live = [DEFAULT, self.best_challenger] if len(self.live) > 1 else self.live

    @property
    def is_over(self) -> bool:
        if self.live == [DEFAULT] or self.num_rounds >= MOST_ROUNDS:
            return True
        if not self._has_steps_for(len(self.live)):
            return True
        return self.num_rounds >= _LEAST_ROUNDS and len(self.live) == 2 and self._is_clear()

    @property
    def best_challenger(self) -> int:
        """Returns the arm of fewest buckets among those as good as the fastest; the default where no challenger is
        left.
        """
        challengers = [arm for arm in self.live if arm != DEFAULT]
        fastest = min((self.seconds(arm) for arm in challengers), default=0.0)
        equal = [arm for arm in challengers if self.seconds(arm) <= (1 + _EQUAL_RATIO) * fastest]
        return min(equal, key=lambda arm: (self.num_buckets[arm], self.seconds(arm)), default=DEFAULT)

    def winner(self) -> int:
        """Returns the best challenger when it is accepted, else the default."""
        best = self.best_challenger
        return best if best != DEFAULT and is_accepted(self.ratios(best)) else DEFAULT

    def seconds(self, arm: int) -> float:
        """Returns the time of one step: the lower median, which one slow step in a round cannot move. Infinite without
        samples.
        """
        samples = [seconds for one_round in self._seconds[arm] for seconds in one_round]
        return statistics.median_low(samples) if samples else math.inf

    def ratios(self, arm: int) -> list[float]:
        """Returns this arm's steps over the default's of the same rounds, pair by pair."""
        return [
            _ratio(ours, defaults)
            for own_round, default_round in zip(self._seconds[arm], self._seconds[DEFAULT], strict=False)
            for ours, defaults in zip(own_round, default_round, strict=True)
        ]

    def _drop(self) -> None:
        limit = 1 + _DROP_RATIOS[min(self.num_rounds, len(_DROP_RATIOS)) - 1]
        best = min(self.seconds(arm) for arm in self.live)
        self.live = [arm for arm in self.live if arm == DEFAULT or self.seconds(arm) <= limit * best]
        challengers = [arm for arm in self.live if arm != DEFAULT]
        if not challengers:
            return
        fastest = min(self.seconds(arm) for arm in challengers)
        if all(self.seconds(arm) <= (1 + _INDIFFERENT_RATIO) * fastest for arm in challengers):
            self.live = [DEFAULT, self.best_challenger]

    def _has_steps_for(self, num_arms: int) -> bool:
        return self.steps_used + num_arms * self.turn_steps <= self.steps

    def _is_clear(self) -> bool:
        """Returns whether the default and the one challenger differ by more than noise."""
        return abs(_ratio(self.seconds(DEFAULT), self.seconds(self.best_challenger)) - 1) > _CLEAR_RATIO


def is_accepted(ratios: Sequence[float]) -> bool:
    """Returns whether the gain is proven. ratios: a challenger's steps over the default's. Few pairs, or a gain within
    noise, keep the default.
    """
    return len(ratios) >= LEAST_PAIRS and statistics.median(ratios) <= ACCEPT_RATIO


def is_still_good(ratios: Sequence[float]) -> bool:
    """Returns whether recalled buckets may stay: they are not clearly slower than the default."""
    return statistics.median(ratios) <= _STILL_GOOD_RATIO


def _time(seconds: float) -> float:
    return seconds if math.isfinite(seconds) and seconds > 0 else math.inf


def _ratio(ours: float, theirs: float) -> float:
    """Returns the ratio; infinite where a time is missing, so that it proves nothing in favour of a challenger."""
    return ours / theirs if math.isfinite(ours) and math.isfinite(theirs) else math.inf
