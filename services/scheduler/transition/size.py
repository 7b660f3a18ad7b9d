"""PURE: the size of a trial's attempts: when a request may start on fewer slots, and how a smaller one grows back.

A trial that has run may continue on fewer slots (resources.min_slots_per_trial) once it has waited `shrink_seconds`.
A trial shrinks, or is stopped to grow, at least `resize_seconds` after the last change of its size. Taking the size of
its last attempt again is no change, and an attempt that starts anyway may take all slots at any time. A trial that has
not run yet waits for its full size, because it has no training to continue. All of this is on record, so any leader can
continue.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.config.elastic import sizes_of
from gangline.domain.allocation import Allocation, Request, SizeChange
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.settled.record import Settled
from gangline.domain.state import ExitKind, State
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.stop import StopOrder, stop_allocation

# Kept for each trial, so that its record stays small.
MAX_SIZE_CHANGES = 10


def shrink_time(trial: Trial, settled: Settled, rules: Rules, now: float) -> float:
    """Returns the time from which a requeued trial may start on fewer slots; 0 for never."""
    if not sizes_of(settled) or not trial.attempts:
        return 0.0
    rested_at = trial.resized_at + rules.resize_seconds if trial.resized_at else 0.0
    return max(now + rules.shrink_seconds, rested_at)


def kept_slots(trial: Trial, settled: Settled) -> int:
    """Returns the size of the last attempt, if it was smaller than the full size and is still allowed; 0 otherwise."""
    return trial.attempt_slots if trial.attempt_slots in sizes_of(settled) else 0


def may_have(request: Request, slots: int, settled: Settled, now: float) -> bool:
    """Returns whether this request may start on so many slots now."""
    if slots == request.slots or slots not in sizes_of(settled):
        return slots == request.slots
    return slots == request.kept_slots or 0 < request.shrink_at <= now


def sized(trial: Trial, slots: int, full_slots: int, reason: str, now: float) -> Trial:
    """Returns the trial with the size of its next attempt. Earlier versions recorded no size; it was the full one."""
    last = (trial.attempt_slots or full_slots) if trial.attempts else slots
    if slots == last:
        return replace(trial, attempt_slots=slots)
    changes = (*trial.size_changes, SizeChange(now, slots, full_slots, reason))
    return replace(trial, attempt_slots=slots, resized_at=now, size_changes=changes[-MAX_SIZE_CHANGES:])


def grow(records: Records, allocation_id: str, rules: Rules, now: float) -> StateChange:
    """Stops a smaller attempt so that its trial starts again on all of its slots. It checkpoints first, and no restart
    is counted. The order counts as a change of size, so an attempt is not stopped for it again and again."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None or allocation.state is not State.RUNNING or not allocation.full_slots:
        return StateChange()
    if allocation.grow_at > now:
        return StateChange()
    settled = settled_of(get(records, Experiment, allocation.experiment_id).config_json)
    deadline_at = now + settled.preemption_timeout + rules.force_seconds
    reason = f"starts again on {allocation.full_slots} slots, it had {allocation.num_slots}"
    draft = Draft(records)
    growing = replace(allocation, grow_slots=allocation.full_slots)
    stop_allocation(draft, growing, StopOrder(ExitKind.PREEMPTED, reason, deadline_at), now)
    draft.put(replace(get(draft, Trial, allocation.trial_id), resized_at=now))
    return draft.change


def grow_time(trial: Trial, rules: Rules) -> float:
    """Returns the time from which a smaller attempt may be stopped to grow. trial: in the state in which its attempt
    starts."""
    return trial.resized_at + rules.resize_seconds


def is_growing(allocation: Allocation) -> bool:
    return allocation.grow_slots > 0 and allocation.stop_kind is ExitKind.PREEMPTED
