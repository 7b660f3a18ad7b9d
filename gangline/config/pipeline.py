"""PURE: the schedules of a pipeline, and the rules by which stages, microbatches and slots fit together.

Called at submit and by ranks. `stages` counts the slots of one replica. A schedule with two parts in each slot divides
the model into twice as many parts.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Microbatches for each stage where the configuration names no number: the bubble is then below 20 %.
_MICROBATCHES_PER_STAGE = 4
# Largest divisor that is tried for a batch, and its counterpart. It bounds the search for any batch that a user writes.
_MOST_TRIED = 1 << 20
SPLIT_WORDS = ("parameters", "time")


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One schedule with its rules."""

    name: str
    parts: int = 1  # parts of the model in each slot
    is_v: bool = False  # a slot has part i and the i-th from the end, instead of parts i and i + stages
    # at least one microbatch for each part of a round is needed, so that every stage has work in the steady state
    needs_full: bool = True
    can_compile: bool = True  # whether torch runs it with compiled modules
    can_recompute: bool = True  # whether torch runs it with activation checkpointing


SCHEDULES: dict[str, ScheduleRow] = {
    row.name: row
    for row in (
        ScheduleRow("GPipe", needs_full=False),
        ScheduleRow("1F1B"),
        ScheduleRow("Interleaved1F1B", parts=2),
        ScheduleRow("ZBVZeroBubble", parts=2, is_v=True, can_compile=False, can_recompute=False),
    )
}
DEFAULT_SCHEDULE = "1F1B"


def find_schedule(name: str) -> str | None:
    """Returns a schedule's name as the table has it, whatever the case of its letters; None for an unknown one."""
    return {known.lower(): known for known in SCHEDULES}.get(name.lower())


def unknown_word(what: str, word: str, known: tuple[str, ...], more: str = "") -> str:
    """Returns the message about an unknown word, with the nearest ones: those that begin with it, else similar ones."""
    by_lower = {name.lower(): name for name in known}
    nearest = [name for lower, name in by_lower.items() if word and lower.startswith(word.lower())]
    if not nearest:
        nearest = [by_lower[name] for name in difflib.get_close_matches(word.lower(), by_lower, n=2, cutoff=0.4)]
    advice = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"there is no {what} {word!r}; {advice}use {', '.join(known)}{more}"


def slot_of_part(part: int, stages: int, schedule: str) -> int:
    """Returns the slot of a replica, from 0 on, that has this part of the model."""
    if SCHEDULES[schedule].is_v and part >= stages:
        return 2 * stages - 1 - part
    return part % stages


def bubble_ratio(stages: int, microbatches: int, schedule: str = DEFAULT_SCHEDULE) -> float:
    """Returns the ratio of a step's time in which a slot waits: (P - 1) / (n + P - 1); with several parts in each slot
    the wait is divided by their number. Megatron-LM's formula (arXiv 2104.04473)."""
    wait = (stages - 1) / SCHEDULES[schedule].parts
    return wait / (microbatches + wait)


def choose_microbatches(records: int, stages: int, schedule: str = DEFAULT_SCHEDULE) -> int:
    """Returns the number of microbatches for a replica's batch of so many records: the smallest divisor of it that is
    at least four for each stage, or else the largest one that the schedule can run; 1 where it can run none."""
    possible = [count for count in _divisors(records) if microbatch_conflict(count, stages, schedule) is None]
    enough = [count for count in possible if count >= _MICROBATCHES_PER_STAGE * stages]
    return enough[0] if enough else max(possible, default=1)


def fewer_microbatches(records: int, most: int, stages: int, schedule: str) -> int:
    """Returns the number of microbatches for a smaller batch, as the last one of an epoch: the largest divisor of its
    records up to `most` that the schedule can run. Without such a divisor it is the largest one below the number of
    stages, which leaves stages idle."""
    possible = [count for count in _divisors(records) if count <= most]
    full = [count for count in possible if microbatch_conflict(count, stages, schedule) is None]
    return max(full or [count for count in possible if count < stages], default=1)


def microbatch_conflict(microbatches: int, stages: int, schedule: str, records: int | None = None) -> str | None:
    """Returns why a schedule cannot run so many microbatches; None when it can. records: of a replica's batch, for the
    way out; None where they are not known."""
    row = SCHEDULES[schedule]
    if row.needs_full and microbatches < stages:
        conflict = (
            f"{schedule} needs at least as many microbatches as stages, but there are {microbatches} for {stages} "
            "stages"
        )
        rule, other = f"at least {stages}, a number that divides a replica's batch", "GPipe"
    elif schedule == "Interleaved1F1B" and microbatches % stages != 0:
        conflict = f"Interleaved1F1B needs a multiple of its {stages} stages, but there are {microbatches} microbatches"
        rule, other = f"a multiple of {stages} that divides a replica's batch", "1F1B"
    else:
        return None
    advice = rule
    if records is not None:
        nearest = _nearest_microbatches(records, microbatches, stages, schedule)
        advice = rule if nearest is None else f"{nearest} for the {_records(records)} of a replica's batch"
    return f"{conflict}; use {advice}, or schedule: {other}"


def _nearest_microbatches(records: int, microbatches: int, stages: int, schedule: str) -> int | None:
    """Returns the largest possible number up to the wanted one, or else the smallest possible one; None for none."""
    possible = [count for count in _divisors(records) if microbatch_conflict(count, stages, schedule) is None]
    return max((count for count in possible if count <= microbatches), default=min(possible, default=None))


def split_conflict(num_names: int, stages: int, schedule: str) -> str | None:
    """Returns why so many beginnings of parts do not fit the stages; None when they do."""
    parts = stages * SCHEDULES[schedule].parts
    if num_names == parts - 1:
        return None
    wanted = "the module with which the second part begins"
    if parts > 2:
        wanted = f"the {parts - 1} modules with which the second and each later part begin"
    names = "1 module" if num_names == 1 else f"{num_names} modules"
    return f"split names {names}, but {stages} stages with {schedule} are {parts} parts; name {wanted}"


def names_conflict(names: Sequence[str]) -> tuple[int, str] | None:
    """Returns the place of the first wrong name of a split by hand, and why it is wrong; None where all may be right.
    The model is not known here."""
    for place, name in enumerate(names):
        if not name:
            return place, "an empty name; name the module with which the part begins, as in blocks.4"
        if name in names[:place]:
            return place, f"{name!r} is there twice; each part begins with another module"
    return None


def units_conflict(num_units: int, stages: int, schedule: str) -> str | None:
    """Returns why a model of so many units cannot be divided over the stages; None when it can. The text follows the
    model's name."""
    per_stage = SCHEDULES[schedule].parts
    if stages * per_stage <= num_units:
        return None
    most = num_units // per_stage
    advice = f"use stages: {most}" if most == 2 else f"use at most {most} stages, a number that divides the slots"
    if most < 2:
        advice = "use schedule: 1F1B with 2 stages" if num_units >= 2 else "use ddp"
    return f"has {num_units} units, but {stages} stages with {schedule} are {stages * per_stage} parts; {advice}"


def batch_conflict(records: int, microbatches: int | None, stages: int, schedule: str) -> str | None:
    """Returns why a replica's batch of so many records cannot be cut into microbatches; None when it can."""
    if microbatches is None:
        if microbatch_conflict(choose_microbatches(records, stages, schedule), stages, schedule) is None:
            return None
        return (
            f"a replica's {_records(records)} cannot be cut into the {stages} microbatches that {schedule} needs; use "
            f"a global_batch_size with a multiple of {stages} records for each replica, or schedule: GPipe"
        )
    if records % microbatches == 0:
        return microbatch_conflict(microbatches, stages, schedule, records)
    nearest = _nearest_microbatches(records, microbatches, stages, schedule)
    return (
        f"a replica's batch of {_records(records)} cannot be cut into {microbatches} equal microbatches; use "
        f"{'' if nearest is None else f'{nearest}, or '}a global_batch_size with a multiple of {microbatches} records "
        "for each replica"
    )


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _divisors(records: int) -> list[int]:
    """Returns the divisors of a number in their order. Of a number above 2^40 some may be missing."""
    low = [count for count in range(1, min(math.isqrt(max(0, records)), _MOST_TRIED) + 1) if records % count == 0]
    return sorted({*low, *(records // count for count in low)})
