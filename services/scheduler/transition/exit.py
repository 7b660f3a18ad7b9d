"""PURE: the end of a member, the end of its allocation with the last member, and the trial's next state.

The first failure stops the rest of the gang. When every member has ended, the allocation is gone and its slots are free
in the same change that ends or requeues the trial, and that counts its slot-hours.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Allocation, ExitReport, Timeline
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.settled.record import Settled
from gangline.domain.state import ExitKind, Outcome, State
from gangline.domain.usage import MAX_ATTEMPT_USAGES, usage_of
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.exclusion import exclude
from services.scheduler.transition.experiment import settle_experiment
from services.scheduler.transition.quota_use import count_use
from services.scheduler.transition.request import queue
from services.scheduler.transition.retry import (
    RetryTerms,
    decide,
    describe,
    excluded_by,
    furthest_batches,
    lacked_gateway,
    older_checkpoint,
    step_down_if_it_helps,
)
from services.scheduler.transition.search import closed_event, tell
from services.scheduler.transition.size import kept_slots, shrink_time
from services.scheduler.transition.stop import StopOrder, stop_allocation


def member_exited(
    records: Records, allocation_id: str, report: ExitReport, rules: Rules, now: float, *, had_gateway: bool = False
) -> StateChange:
    """Records the end of a member. Only the first report of a member counts. had_gateway: whether a gateway was
    registered for as long as the allocation lived."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None or report.agent_id not in unended_agents(allocation):
        return StateChange()
    draft = Draft(records)
    allocation = replace(allocation, exits=(*allocation.exits, report))
    if not unended_agents(allocation):
        _finish(draft, allocation, rules, now, had_gateway=had_gateway)
        return draft.change
    draft.put(allocation)
    if report.kind is not ExitKind.COMPLETED:
        stop_allocation(draft, allocation, _order_for_rest(draft, allocation, report, rules, now), now)
    return draft.change


def unended_agents(allocation: Allocation) -> list[str]:
    """Returns the agents whose member has not ended, by node rank."""
    ended = {report.agent_id for report in allocation.exits}
    return [member.agent_id for member in allocation.members if member.agent_id not in ended]


def _order_for_rest(draft: Draft, allocation: Allocation, report: ExitReport, rules: Rules, now: float) -> StopOrder:
    kind, grace_seconds = ExitKind.KILLED, rules.kill_grace_seconds
    if report.kind is ExitKind.PREEMPTED:
        kind, grace_seconds = ExitKind.PREEMPTED, _settled(draft, allocation).preemption_timeout
    reason = f"its member ended first: {describe(report)}"
    return StopOrder(kind, reason, now + grace_seconds + rules.force_seconds)


def _finish(draft: Draft, allocation: Allocation, rules: Rules, now: float, *, had_gateway: bool) -> None:
    experiment = get(draft, Experiment, allocation.experiment_id)
    trial = get(draft, Trial, allocation.trial_id)
    settled = settled_of(experiment.config_json)
    closing = Outcome.CANCELED if experiment.state is State.STOPPING else trial.closing
    is_corrupt = any(report.kind is ExitKind.CHECKPOINT_CORRUPT for report in allocation.exits)
    older = older_checkpoint(trial, allocation, draft.checkpoints_of(trial.id)) if is_corrupt else None
    started = draft.find(Checkpoint, allocation.checkpoint_id) if allocation.checkpoint_id else None
    terms = RetryTerms(rules, now, settled.max_restarts, closing, older, settled.task_kind, had_gateway)
    decision = decide(trial, allocation, terms)
    if settled.task_kind is None:
        decision = step_down_if_it_helps(decision, trial, allocation, started.batches_completed if started else 0)
    draft.delete(Allocation, allocation.id)
    count_use(draft, experiment, allocation, now)
    ending = decision.failure.message if decision.failure is not None else allocation.stop_reason
    trial = replace(
        trial,
        reason=decision.reason,
        restarts=decision.restarts,
        infrastructure_failures=decision.infrastructure_failures,
        failures_in_a_row=decision.failures_in_a_row,
        failing_since_at=decision.failing_since_at,
        furthest_batches=furthest_batches(trial, allocation),
        last_failure=decision.failure or trial.last_failure,
        timeline=allocation.timeline,
        excluded_agents={**trial.excluded_agents, **excluded_by(allocation)},
        attempt_usages=(*trial.attempt_usages, usage_of(allocation, now, ending))[-MAX_ATTEMPT_USAGES:],
    )
    trial = exclude(draft, trial, allocation, rules, now, had_gateway=had_gateway)
    if decision.strategy is not None:
        trial = replace(trial, strategy_choice_json=decision.strategy.to_json())
    if decision.checkpoint is not None:
        batches = decision.checkpoint.batches_completed
        trial = replace(trial, latest_checkpoint_id=decision.checkpoint.id, batches_completed=batches)
    if decision.outcome is None:
        trial = replace(trial, state=State.QUEUED, timeline=Timeline(queued_at=now))
        draft.put(trial)
        not_before_at = now + decision.delay_seconds if decision.delay_seconds else 0.0
        shrink_at = shrink_time(trial, settled, rules, now)
        queue(
            draft,
            trial,
            settled,
            rules,
            not_before_at,
            shrink_at=shrink_at,
            kept_slots=kept_slots(trial, settled),
            needs_gateway=lacked_gateway(allocation),
        )
    else:
        trial = replace(trial, state=State.TERMINAL, outcome=decision.outcome, closing=None, ended_at=now)
        draft.put(trial)
        tell(draft, trial.experiment_id, closed_event(trial), rules, now)
    settle_experiment(draft, allocation.experiment_id, now)


def _settled(draft: Draft, allocation: Allocation) -> Settled:
    return settled_of(get(draft, Experiment, allocation.experiment_id).config_json)
