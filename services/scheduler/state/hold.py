"""PURE: decides what keeps an experiment's trials from starting, whatever room there is.

A paused experiment gets no slots, no experiment gets more slots at once than resources.max_slots, and no user and no
workspace more than its quota. The planner applies these rules; placing checks them again, so that no plan made on an
older snapshot breaks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangline.domain.allocation import Reason
from gangline.domain.experiment import Experiment
from gangline.domain.state import ReasonCode, State
from services.scheduler.placement.request.snapshot_change import Change, Release, describe_changes
from services.scheduler.state.quota import breached_quota
from services.scheduler.state.records import Records, live_allocation_of
from services.scheduler.state.settled import settled_of


def is_held(experiment: Experiment) -> bool:
    """Returns whether the experiment is paused, or is being ended, with its last requests about to be deleted."""
    return experiment.state in (State.PAUSED, State.STOPPING)


def may_start(records: Records, experiment: Experiment, slots: int, now: float) -> bool:
    """Returns whether this experiment may get this many more slots now."""
    if is_held(experiment) or breached_quota(records, experiment, slots, now) is not None:
        return False
    limit = settled_of(experiment.config_json).resources.max_slots
    return limit is None or _slots_held(records, experiment.id) + slots <= limit


def held_reason(experiment: Experiment, reason: Reason, changes: Iterable[Change]) -> Reason:
    """Returns the planner's reason with the recorded cause of the pause or end of the experiment. The planner knows no
    users. changes: the planner's records of what would start the request.
    """
    if experiment.state is State.STOPPING:
        what = f"experiment {experiment.id} is being ended: {experiment.reason}"
        return Reason(ReasonCode.PAUSED, what, "nothing starts it any more; submit it again", changes_json="[]")
    what = f"experiment {experiment.id} is {experiment.reason or 'paused'}"
    how = f"it is activated (gangline experiment activate {experiment.id})"
    worded_changes = [replace(change, sentence=how) if isinstance(change, Release) else change for change in changes]
    return replace(reason, message=what, would_start_if=describe_changes(worded_changes) or reason.would_start_if)


def _slots_held(records: Records, experiment_id: int) -> int:
    live = (live_allocation_of(records, trial) for trial in records.unended_trials_of(experiment_id))
    return sum(allocation.num_slots for allocation in live if allocation is not None)
