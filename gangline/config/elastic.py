"""PURE: the numbers of slots on which a trial may run: what its strategy allows, and smaller sizes while slots are
short.

A smaller size divides slots_per_trial, and the strategy can use it. So each slot takes the batches of a whole number of
slots, one after the other, and sums their gradients. Batches, records and optimizer steps are those of the full size,
and no slot needs memory for more than its usual batch. Called at submit, by the scheduler and by ranks.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

from gangline.config.batch import NAME as BATCH_SIZE
from gangline.config.complaint import Complaint
from gangline.config.experiment import ExperimentConfig
from gangline.config.hyperparameter import possible_values
from gangline.config.parallelism import NAMES, STRATEGIES, Parallelism, ranks_per_replica
from gangline.config.pipeline import DEFAULT_SCHEDULE, batch_conflict, microbatch_conflict, split_conflict
from gangline.domain.settled.record import Settled

_PATH = ("resources", "min_slots_per_trial")
# The largest number of replicas whose batches one replica trains. It bounds the search for sizes for any number that a
# user writes.
_MOST_ROUNDS = 1024


@lru_cache(maxsize=256)
def smaller_sizes(slots: int, fewest: int, strategy: str, stages: int | None = None) -> tuple[int, ...]:
    """Returns the possible sizes below `slots`, the largest first. stages: of a pipeline, as configured."""
    rounds = range(2, min(slots // fewest, _MOST_ROUNDS) + 1)
    replicas = slots // ranks_per_replica(strategy, slots, stages)
    sizes = (slots // count for count in rounds if replicas % count == 0)
    return tuple(size for size in sizes if slots_conflict(strategy, size, "", stages) is None)


def sizes_of(settled: Settled) -> tuple[int, ...]:
    """Returns the smaller sizes of a valid configuration; empty when its trials have one size only."""
    fewest, slots = settled.resources.min_slots_per_trial, settled.resources.slots_per_trial
    if fewest is None:
        return ()
    return smaller_sizes(slots, fewest, settled.parallelism.strategy, settled.parallelism.stages)


def find_size_conflict(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint about a min_slots_per_trial that is impossible; None for a possible one."""
    fewest, slots = config.resources.min_slots_per_trial, config.resources.slots_per_trial
    if fewest is None or fewest == slots:
        return None
    if fewest > slots:
        text = f"{fewest} is above the {slots} slots of slots_per_trial; use at most {slots}, or leave it out"
        return Complaint("invalid_value", _PATH, text)
    strategy, stages = config.parallelism.strategy, config.parallelism.stages
    if smaller_sizes(slots, fewest, strategy, stages):
        return None
    possible = smaller_sizes(slots, 1, strategy, stages)
    advice = f"use at most {possible[0]}" if possible else "leave it out"
    text = (
        f"with {fewest} there is no smaller size for {slots} slots_per_trial and the strategy {strategy}: a smaller "
        f"size divides slots_per_trial, and the strategy can use it; {advice}, or change slots_per_trial"
    )
    return Complaint("invalid_value", _PATH, text)


def find_spread_conflict(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint when the strategy cannot spread this experiment over its slots."""
    strategy, slots = config.parallelism.strategy, config.resources.slots_per_trial
    if slots == 0:
        return None
    text = slots_conflict(strategy, slots, "resources.slots_per_trial is", config.parallelism.stages)
    if text is None and STRATEGIES[strategy].family == "staged":
        text = _batches_conflict(config)
    return None if text is None else Complaint("invalid_value", ("parallelism",), text)


def _batches_conflict(config: ExperimentConfig) -> str | None:
    """Returns why the stages of a pipeline cannot run its batches; None when they can run all possible ones."""
    section, slots = config.parallelism, config.resources.slots_per_trial
    stages, schedule = section.stages or slots, section.schedule or DEFAULT_SCHEDULE
    sizes: Any = possible_values(config.hyperparameters.get(BATCH_SIZE)) or []
    records = (int(size) * stages // slots for size in sizes)
    texts = (batch_conflict(count, section.microbatches, stages, schedule) for count in records)
    # The batch's conflict has a number of microbatches as its way out.
    return next((text for text in texts if text is not None), None) or stages_conflict(section, slots)


def stages_conflict(section: Parallelism, slots: int) -> str | None:
    """Returns why the stages of a pipeline do not fit its own options; None when they do. slots: a multiple of the
    stages."""
    stages, schedule = section.stages or slots, section.schedule or DEFAULT_SCHEDULE
    if section.microbatches is not None:
        text = microbatch_conflict(section.microbatches, stages, schedule)
        if text is not None:
            return text
    return split_conflict(len(section.split), stages, schedule) if isinstance(section.split, list) else None


def slots_conflict(strategy: str, slots: int, what: str, stages: int | None = None) -> str | None:
    """Returns why the strategy cannot use that many slots; None when it can. what: the words before their number, as in
    "resources.slots_per_trial is". stages: of a pipeline, as configured."""
    row = STRATEGIES[strategy]
    replica_ranks = ranks_per_replica(strategy, slots, stages)
    if row.family == "single" and slots > 1:
        return f"{strategy} trains on one slot, but {what} {slots}; use ddp"
    if slots % replica_ranks != 0:
        nearest = slots + replica_ranks - slots % replica_ranks
        fewer = next((count for count in range(min(replica_ranks, slots), 1, -1) if slots % count == 0), None)
        return (
            f"{strategy} trains each replica on {replica_ranks} slots, but {what} {slots}, no multiple of "
            f"that; use {nearest} slots{'' if fewer is None else f', or stages: {fewer}'}"
        )
    if slots >= row.fewest_slots and slots % row.slots_multiple == 0:
        return None
    if row.slots_multiple == 1:
        return (
            f"{strategy} divides the state of a trial over its slots, but {what} {slots}; use none, or at least "
            f"{row.fewest_slots} slots"
        )
    nearest = max(row.fewest_slots, slots + slots % row.slots_multiple)
    instead = "none" if slots < 2 else "zero3"
    return (
        f"{strategy} needs an even number of slots, at least {row.fewest_slots}, because it makes equal copies of a "
        f"divided trial, but {what} {slots}; use {instead}, or {nearest} slots"
    )


def unknown_strategy(name: str) -> str:
    """Returns the message about a strategy that this version does not have."""
    nearest = difflib.get_close_matches(name, NAMES, n=2)
    advice = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"there is no strategy {name!r}; {advice}this version has {', '.join(NAMES)}"
