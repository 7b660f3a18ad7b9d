"""PURE: which attempts of a trial may still change state, and why an attempt is over.

Every report of a runner carries its allocation id. A report changes state only while its attempt is the newest one of
its trial. Every answer to a runner whose attempt is over for its member says so, and the runner ends its ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Trial
from gangline.domain.id import describe_allocation, parse_allocation_id
from gangline.domain.state import State
from services.scheduler.state.records import Records, StateChange
from services.scheduler.transition.exit import unended_agents


def why_over(records: Records, allocation_id: str, node_rank: int) -> str:
    """Returns why this member of this attempt must not train any more; "" while it is live.

    Raises GanglineError `id.allocation`.
    """
    trial_id, attempt = parse_allocation_id(allocation_id)
    allocation = records.find(Allocation, allocation_id)
    if allocation is not None:
        unended = unended_agents(allocation)
        is_live = any(member.node_rank == node_rank and member.agent_id in unended for member in allocation.members)
        return (
            ""
            if is_live
            else f"the scheduler counts node rank {node_rank} of {describe_allocation(allocation_id)} as ended"
        )
    trial = records.find(Trial, trial_id)
    if trial is None:
        return f"there is no trial {trial_id}"
    if trial.attempts > attempt:
        return f"attempt {trial.attempts} of trial {trial_id} has taken the place of attempt {attempt}"
    if trial.state is State.TERMINAL:
        return f"trial {trial_id} has ended ({trial.outcome})"
    return f"the scheduler counts {describe_allocation(allocation_id)} as ended"


def is_superseded(records: Records, allocation_id: str) -> bool:
    """Returns whether a later attempt exists, or the trial does not: no report of this attempt counts any more.

    An attempt that has ended may still report its results, as long as no other one has begun.
    """
    trial_id, attempt = parse_allocation_id(allocation_id)
    trial = records.find(Trial, trial_id)
    return trial is None or trial.attempts != attempt


def live(
    allocation_id: str, node_rank: int, transition: Callable[[Records], StateChange]
) -> Callable[[Records], StateChange]:
    """Wraps a transition that also affects other trials, so that only a live member may cause it."""
    return lambda records: StateChange() if why_over(records, allocation_id, node_rank) else transition(records)


def fenced(allocation_id: str, transition: Callable[[Records], StateChange]) -> Callable[[Records], StateChange]:
    """Wraps a transition so that it changes nothing for a superseded attempt."""
    return lambda records: StateChange() if is_superseded(records, allocation_id) else transition(records)
