"""PURE: what a user does to an experiment or a trial: pause, activate, cancel, kill.

The user's wish is written at once, on the experiment. Its trials follow some at a time, because a transaction holds
only so many. `continue_change` handles the next ones and is called until it changes nothing; the wish is on record, so
any leader can continue.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import ExitKind, Outcome, State
from gangline.errors import conflict
from services.scheduler.state.records import Draft, Records, StateChange, get, live_allocation_of
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.experiment import check_going_on, settle_experiment
from services.scheduler.transition.queue_move import give_back
from services.scheduler.transition.removal import continue_deletion
from services.scheduler.transition.request import follow_experiment, restart_shrink_wait
from services.scheduler.transition.search import NO_SUGGESTIONS, Suggestions, close_trial, make_outstanding
from services.scheduler.transition.stop import StopOrder, stop_allocation

# A trial takes two or three operations, of the 128 that etcd allows.
MAX_TRIALS = 32


def kill_experiment(records: Records, experiment_id: int, reason: str, rules: Rules, now: float) -> StateChange:
    """Ends the experiment at once: waiting trials are canceled, live ones are killed, also if they were being canceled.
    An ended experiment stays as it is.

    Raises GanglineError `experiment.not_found`.
    """
    experiment = get(records, Experiment, experiment_id)
    is_being_canceled = experiment.state is State.STOPPING and experiment.stop_kind is ExitKind.PREEMPTED
    if experiment.state is State.TERMINAL or (experiment.state is State.STOPPING and not is_being_canceled):
        return StateChange()
    wished = replace(experiment, state=State.STOPPING, stop_kind=ExitKind.KILLED, reason=reason)
    return _wish(records, wished, rules, now)


def fail_experiment(draft: Draft, experiment_id: int, reason: str, rules: Rules, now: float) -> None:
    """Ends the experiment at once as FAILED, because its configuration does not suit its trials. An experiment that is
    being ended stays as it is."""
    experiment = get(draft, Experiment, experiment_id)
    if experiment.state not in (State.TERMINAL, State.STOPPING):
        wished = replace(experiment, state=State.STOPPING, stop_kind=ExitKind.CONFIGURATION_ERROR, reason=reason)
        draft.put(wished)
        _bring_in_line(draft, wished, rules, now)


def cancel_experiment(records: Records, experiment_id: int, reason: str, rules: Rules, now: float) -> StateChange:
    """Cancels waiting trials at once, and live ones after their checkpoint. An experiment that is being ended is not
    changed."""
    experiment = get(records, Experiment, experiment_id)
    if experiment.state in (State.TERMINAL, State.STOPPING):
        return StateChange()
    wished = replace(experiment, state=State.STOPPING, stop_kind=ExitKind.PREEMPTED, reason=reason)
    return _wish(records, wished, rules, now)


def pause_experiment(records: Records, experiment_id: int, reason: str, rules: Rules, now: float) -> StateChange:
    """Pauses the experiment: live trials checkpoint and are requeued; none starts before the experiment is activated.

    Raises GanglineError `experiment.ended`, `experiment.stopping`, and `task.no_pause` for a task that has started.
    """
    experiment = get(records, Experiment, experiment_id)
    check_going_on(experiment, "paused")
    if experiment.state is State.PAUSED:
        return StateChange()
    if experiment.task_kind is not None and experiment.state is not State.QUEUED:
        kind = experiment.task_kind.lower()
        text = f"{kind} {experiment_id} has no checkpoint to go on from, so it cannot be paused; end it with kill"
        raise conflict("task.no_pause", text)
    return _wish(records, replace(experiment, state=State.PAUSED, reason=reason), rules, now)


def activate_experiment(records: Records, experiment_id: int, rules: Rules, now: float) -> StateChange:
    """Activates a paused experiment. Trials that are still stopping because of the pause are requeued once they have
    stopped. The pause does not count as a wait for slots, so trials that may run on fewer slots wait for all of them
    from now on.

    Raises GanglineError `experiment.ended` or `experiment.stopping`.
    """
    experiment = get(records, Experiment, experiment_id)
    check_going_on(experiment, "activated")
    if experiment.state is not State.PAUSED:
        return StateChange()
    draft = Draft(records)
    draft.put(replace(experiment, state=State.QUEUED, reason=""))
    restart_shrink_wait(draft, experiment_id, rules, now)
    settle_experiment(draft, experiment_id, now)
    return draft.change


def kill_trial(records: Records, trial_id: str, reason: str, rules: Rules, now: float) -> StateChange:
    """Kills one trial; the others of its experiment continue. Raises GanglineError `trial.not_found`."""
    trial = get(records, Trial, trial_id)
    if trial.state is State.TERMINAL or trial.closing is Outcome.CANCELED:
        return StateChange()
    draft = Draft(records)
    order = StopOrder(ExitKind.KILLED, reason, now + rules.kill_grace_seconds + rules.force_seconds)
    close_trial(draft, trial, Outcome.CANCELED, order, rules=rules, now=now)
    return draft.change


def continue_change(
    records: Records,
    experiment_id: int,
    rules: Rules,
    now: float,
    *,
    suggestions: Suggestions = NO_SUGGESTIONS,
    failure: str = "",
) -> StateChange:
    """Updates the next trials that do not yet match the wish of the experiment or of its searcher; empty when all
    match. An experiment that is being deleted loses its next checkpoints or records.

    suggestions: see `make_outstanding`. failure: why none can be made, which ends the experiment.
    """
    experiment = records.find(Experiment, experiment_id)
    if experiment is None:
        return StateChange()
    if experiment.is_deleting:
        return continue_deletion(records, experiment)
    if experiment.state is State.TERMINAL:
        return StateChange()
    draft = Draft(records)
    if failure:
        fail_experiment(draft, experiment_id, failure, rules, now)
    else:
        _bring_in_line(draft, experiment, rules, now, suggestions)
    return draft.change


def _wish(records: Records, wished: Experiment, rules: Rules, now: float) -> StateChange:
    draft = Draft(records)
    draft.put(wished)
    _bring_in_line(draft, wished, rules, now)
    return draft.change


def _bring_in_line(
    draft: Draft, experiment: Experiment, rules: Rules, now: float, suggestions: Suggestions = NO_SUGGESTIONS
) -> None:
    # Invariant: trials are stopped, created and made to give slots back in changes of their own, because a transaction
    # holds only so many operations.
    is_stopping = experiment.state in (State.STOPPING, State.PAUSED) and _stop_some(draft, experiment, rules, now)
    if experiment.state is not State.STOPPING and not is_stopping:
        make_outstanding(draft, experiment, rules, now, suggestions)
        follow_experiment(draft, experiment, rules)
        if not draft.change and experiment.state is not State.PAUSED:
            give_back(draft, experiment, rules, now)
    settle_experiment(draft, experiment.id, now)


def _stop_some(draft: Draft, experiment: Experiment, rules: Rules, now: float) -> bool:
    """Stops the next trials of an experiment that is paused or stopping. Returns whether there were any."""
    order = _order_of(experiment, rules, now)
    behind = [trial for trial in draft.unended_trials_of(experiment.id) if _is_behind(draft, trial, experiment, order)]
    for trial in behind[:MAX_TRIALS]:
        _stop_trial(draft, trial, order, now)
    return bool(behind)


def _order_of(experiment: Experiment, rules: Rules, now: float) -> StopOrder:
    if experiment.state is State.STOPPING and experiment.stop_kind is not ExitKind.PREEMPTED:
        return StopOrder(ExitKind.KILLED, experiment.reason, now + rules.kill_grace_seconds + rules.force_seconds)
    grace_seconds = settled_of(experiment.config_json).preemption_timeout
    return StopOrder(ExitKind.PREEMPTED, experiment.reason, now + grace_seconds + rules.force_seconds)


def _is_behind(draft: Draft, trial: Trial, experiment: Experiment, order: StopOrder) -> bool:
    if trial.state is State.TERMINAL:
        return False
    allocation = live_allocation_of(draft, trial)
    if allocation is None:
        return experiment.state is State.STOPPING
    return allocation.state is not State.STOPPING or _is_escalation(allocation, order)


def _is_escalation(allocation: Allocation, order: StopOrder) -> bool:
    return allocation.stop_kind is ExitKind.PREEMPTED and order.kind is ExitKind.KILLED


def _stop_trial(draft: Draft, trial: Trial, order: StopOrder, now: float) -> None:
    allocation = live_allocation_of(draft, trial)
    if allocation is not None:
        stop_allocation(draft, allocation, order, now)
        return
    draft.delete(Request, trial.id)
    draft.put(replace(trial, state=State.TERMINAL, outcome=Outcome.CANCELED, reason=order.reason, ended_at=now))
