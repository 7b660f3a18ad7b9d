"""PURE: computes the smaller numbers of slots on which a trial may run while it cannot have slots_per_trial.

A smaller size divides the data replicas of slots_per_trial, and the strategy can use it. So each replica takes the
batches of a whole number of replicas, one after the other, and sums their gradients. Batches, records and optimizer
steps are those of the full size, and no slot needs memory for more than its usual batch. Called at submit and by the
scheduler.
"""

from __future__ import annotations

from functools import lru_cache

from gangline.config.complaint import Complaint
from gangline.config.experiment import ExperimentConfig
from gangline.config.spread import slots_conflict
from gangline.config.strategy_table import STRATEGIES

_PATH = ("resources", "min_slots_per_trial")
# The largest number of replicas whose batches one replica trains. It bounds the search for sizes for any number that a
# user writes.
_MOST_ROUNDS = 1024


@lru_cache(maxsize=256)
def smaller_sizes(slots: int, fewest: int, strategy: str) -> tuple[int, ...]:
    """Returns the possible sizes below `slots`, the largest first."""
    rounds = range(2, min(slots // fewest, _MOST_ROUNDS) + 1)
    replicas = slots // STRATEGIES[strategy].ranks_per_replica
    sizes = (slots // count for count in rounds if replicas % count == 0)
    return tuple(size for size in sizes if slots_conflict(strategy, size, "") is None)


def sizes_of(config: ExperimentConfig) -> tuple[int, ...]:
    """Returns the smaller sizes of a valid configuration; empty when its trials have one size only."""
    fewest, slots = config.resources.min_slots_per_trial, config.resources.slots_per_trial
    return () if fewest is None else smaller_sizes(slots, fewest, config.parallelism.strategy)


def find_size_conflict(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint about a min_slots_per_trial that is impossible; None for a possible one."""
    fewest, slots = config.resources.min_slots_per_trial, config.resources.slots_per_trial
    if fewest is None or fewest == slots:
        return None
    if fewest > slots:
        text = f"{fewest} is above the {slots} slots of slots_per_trial; use at most {slots}, or leave it out"
        return Complaint("invalid_value", _PATH, text)
    strategy = config.parallelism.strategy
    if smaller_sizes(slots, fewest, strategy):
        return None
    possible = smaller_sizes(slots, 1, strategy)
    advice = f"use at most {possible[0]}" if possible else "leave it out"
    text = (
        f"with {fewest} there is no smaller size for {slots} slots_per_trial and the strategy {strategy}: a smaller "
        f"size divides slots_per_trial, and the strategy can use it; {advice}, or change slots_per_trial"
    )
    return Complaint("invalid_value", _PATH, text)
