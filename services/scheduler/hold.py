"""PURE: what keeps requests from the planner whatever room there is.

A paused experiment gets nothing, and none gets more slots at once than it may hold (resources.max_slots). Placing
checks the same again, so that no plan made on an older snapshot breaks it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gangline.domain.allocation import Allocation, Reason, Request
from gangline.domain.experiment import Experiment
from gangline.domain.state import ReasonCode, State
from services.scheduler.facts import facts_of
from services.scheduler.placement.order import by_priority
from services.scheduler.records import Records, get, live_allocation_of


def find_hold(records: Records, experiment: Experiment, slots: int, promised: int = 0) -> Reason | None:
    """Why this experiment may not get so many slots more. promised: what it is about to get."""
    if experiment.state is State.PAUSED:
        return paused_reason(experiment)
    limit = facts_of(experiment.config_json).max_slots
    if limit is None:
        return None
    live = _live_allocations(records, experiment.id)
    used = sum(allocation.num_slots for allocation in live) + promised
    if used + slots <= limit:
        return None
    blocking = tuple(allocation.id for allocation in live)
    return Reason(
        ReasonCode.QUOTA_EXCEEDED,
        f"needs {slots} of the {limit} slots that experiment {experiment.id} may hold at once (resources.max_slots), "
        f"and it holds {used}",
        f"one of these ends: {', '.join(blocking)}" if blocking else "what starts before it ends",
        blocking,
    )


def find_held(records: Records, requests: Iterable[Request]) -> dict[str, Reason]:
    """By trial id, those that must not be planned now. Of an experiment with a limit, only as many are left to the
    planner as would not break it together: those that wait for no backoff first, then in the planner's order."""
    limited = [request for request in requests if _is_limited(get(records, Experiment, request.experiment_id))]
    held: dict[str, Reason] = {}
    promised: defaultdict[int, int] = defaultdict(int)
    for request in sorted(limited, key=lambda request: (request.not_before_at, by_priority(request))):
        experiment = get(records, Experiment, request.experiment_id)
        reason = find_hold(records, experiment, request.slots, promised[experiment.id])
        if reason is None:
            promised[experiment.id] += request.slots
        else:
            held[request.trial_id] = reason
    return held


def paused_reason(experiment: Experiment) -> Reason:
    return Reason(
        ReasonCode.PAUSED,
        f"experiment {experiment.id} is {experiment.reason or 'paused'}",
        f"it is activated: gangline experiment activate {experiment.id}",
    )


def _is_limited(experiment: Experiment) -> bool:
    return experiment.state is State.PAUSED or facts_of(experiment.config_json).max_slots is not None


def _live_allocations(records: Records, experiment_id: int) -> list[Allocation]:
    live = (live_allocation_of(records, trial) for trial in records.trials_of(experiment_id))
    return [allocation for allocation in live if allocation is not None]
