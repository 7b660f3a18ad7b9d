"""PURE: how many steps tuning may take, and whether it is worth beginning.

All counts are optimizer steps. Tuning costs little, as most measured partitions are faster than the default; it still
must not outweigh the possible gain of a short trial.
"""

from __future__ import annotations

from dataclasses import dataclass

WARMUP_STEPS = 2
PROFILE_STEPS = 4
# Invariant: the first step after new buckets is not timed.
DROPPED_STEPS = 1
KEPT_STEPS = 2
TURN_STEPS = DROPPED_STEPS + KEPT_STEPS

# A shorter trial only recalls: it could not win back the steps of a race.
_LEAST_TRIAL_STEPS = 400
# Tuning takes at most 40 steps, and at most 5 % of the remaining ones.
_MOST_STEPS = 40
_MOST_SHARE = 0.05
_MOST_CHALLENGERS = 3

# Below this share of a step, exchanges cannot be worth tuning.
LEAST_COMMUNICATION_RATIO = 0.03
# A smaller gain cannot be told from noise, so it would not be accepted either.
LEAST_GAIN_RATIO = 0.02
_LEAST_GAIN_RATIO_OF_RARE_EXCHANGE = 0.03
_RARE_EXCHANGE = 8


@dataclass(frozen=True, slots=True)
class Budget:
    """The optimizer steps that tuning may take."""

    steps: int  # steps that may pass from the first step until the decision; 0 if tuning must not begin

    @property
    def is_open(self) -> bool:
        return self.num_challengers > 0

    @property
    def race_steps(self) -> int:
        return max(0, self.steps - WARMUP_STEPS - PROFILE_STEPS)

    @property
    def num_challengers(self) -> int:
        """Returns the most challengers that leave time for two rounds."""
        return max(0, min(_MOST_CHALLENGERS, self.race_steps // (2 * TURN_STEPS) - 1))


def budget_of(steps_left: int) -> Budget:
    """Returns the budget. steps_left: optimizer steps that the trial has before it."""
    if steps_left < _LEAST_TRIAL_STEPS:
        return Budget(0)
    return Budget(min(_MOST_STEPS, int(_MOST_SHARE * steps_left)))


def least_gain_ratio(aggregation_frequency: int) -> float:
    """Returns the expected gain, as a part of a step, below which no race is run."""
    is_rare = aggregation_frequency >= _RARE_EXCHANGE
    return _LEAST_GAIN_RATIO_OF_RARE_EXCHANGE if is_rare else LEAST_GAIN_RATIO
