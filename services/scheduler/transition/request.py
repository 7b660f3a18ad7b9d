"""PURE: a trial's request for slots. Every trial that has to wait for slots is queued here."""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.settled.record import Settled
from gangline.domain.state import State
from services.scheduler.state.records import Draft
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.exclusion import blocklist_of

# A request takes one operation, of the 128 that etcd allows; other records change beside them.
MAX_FOLLOWING = 32


def queue(
    draft: Draft,
    trial: Trial,
    settled: Settled,
    rules: Rules,
    not_before_at: float = 0.0,
    *,
    shrink_at: float = 0.0,
    kept_slots: int = 0,
    needs_gateway: bool = False,
) -> None:
    """Queues a trial. A requeued trial keeps its place in the queue, because the time counts at which it was created,
    or at which its experiment was continued. shrink_at, kept_slots: when and how it may have fewer slots, see
    size.py. needs_gateway: it starts only while one is registered."""
    experiment = draft.find(Experiment, trial.experiment_id)
    continued_at = experiment.continued_at if experiment is not None else 0.0
    draft.put(
        Request(
            trial_id=trial.id,
            experiment_id=trial.experiment_id,
            pool=settled.resources.pool_name,
            slots=settled.resources.slots_per_trial,
            priority=priority_of(settled, rules),
            is_single_agent=settled.resources.is_single_node,
            blocklist=blocklist_of(trial),
            submitted_at=max(trial.created_at, continued_at),
            not_before_at=not_before_at,
            exclusions=trial.exclusions,
            shrink_at=shrink_at,
            kept_slots=kept_slots,
            needs_gateway=needs_gateway,
        )
    )


def priority_of(settled: Settled, rules: Rules) -> int:
    """Returns the configured priority, else its pool's default."""
    resources = settled.resources
    return rules.default_priority(resources.pool_name) if resources.priority is None else resources.priority


def follow_experiment(draft: Draft, experiment: Experiment, rules: Rules) -> None:
    """Updates the next requests that do not show the experiment's priority. The planner uses the experiment's own, so
    requests that are updated later lose nothing."""
    priority = priority_of(settled_of(experiment.config_json), rules)
    waiting = (trial for trial in draft.unended_trials_of(experiment.id) if trial.state is State.QUEUED)
    requests = (draft.find(Request, trial.id) for trial in waiting)
    behind = [request for request in requests if request is not None and request.priority != priority]
    for request in behind[:MAX_FOLLOWING]:
        draft.put(replace(request, priority=priority))


def restart_shrink_wait(draft: Draft, experiment_id: int, rules: Rules, now: float) -> None:
    """Makes the requests of an experiment that continues wait `shrink_seconds` anew before they may have fewer slots.

    Changes at most MAX_FOLLOWING requests, which bounds the transaction. The others count from when they were queued.
    """
    due_at = now + rules.shrink_seconds
    waiting = (trial for trial in draft.unended_trials_of(experiment_id) if trial.state is State.QUEUED)
    requests = (draft.find(Request, trial.id) for trial in waiting)
    early = [request for request in requests if request is not None and 0 < request.shrink_at < due_at]
    for request in early[:MAX_FOLLOWING]:
        draft.put(replace(request, shrink_at=due_at))
