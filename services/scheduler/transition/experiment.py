"""PURE: the state of an experiment, derived from its trials. Every transition that changes a trial ends here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.search import Search
from gangline.domain.state import ExitKind, Outcome, State
from gangline.errors import GanglineError, conflict
from services.scheduler.state.records import Draft, get

# An experiment shows the furthest state of its trials.
_FURTHEST_FIRST = (State.RUNNING, State.STOPPING, State.STARTING, State.QUEUED)


def follow_allocation(draft: Draft, allocation: Allocation, now: float) -> None:
    """Puts the allocation, and updates its trial and experiment to match."""
    draft.put(allocation)
    trial = get(draft, Trial, allocation.trial_id)
    draft.put(replace(trial, state=allocation.state, timeline=allocation.timeline))
    settle_experiment(draft, allocation.experiment_id, now)


def settle_experiment(draft: Draft, experiment_id: int, now: float) -> None:
    """Derives the experiment from its trials. A terminal experiment stays as it is."""
    experiment = get(draft, Experiment, experiment_id)
    if experiment.state is not State.TERMINAL:
        draft.put(_derive(draft, experiment, now))


def _derive(draft: Draft, experiment: Experiment, now: float) -> Experiment:
    """Returns the experiment with the state that follows from its trials. One that is being ended stays STOPPING until
    the last of them has ended, and a paused one stays PAUSED until all have. An experiment of older versions has no
    search, and one trial. Ended trials are read only once all have ended, because a search may have thousands."""
    search = draft.find(Search, experiment.id)
    num_trials, unended = draft.num_trials_of(experiment.id), draft.unended_trials_of(experiment.id)
    is_found = search is None or (search.is_shut_down and num_trials >= search.num_wanted)
    is_last = is_found or experiment.state is State.STOPPING
    is_without_trials = num_trials == 0 and experiment.state is not State.STOPPING
    if is_last and not unended and not is_without_trials:
        outcome, reason = _outcome(experiment, draft.trials_of(experiment.id), is_found)
        return replace(experiment, state=State.TERMINAL, outcome=outcome, reason=reason, ended_at=now)
    if experiment.state in (State.STOPPING, State.PAUSED):
        return experiment
    states = {trial.state for trial in unended}
    furthest = next((state for state in _FURTHEST_FIRST if state in states), State.QUEUED)
    return replace(experiment, state=State.RUNNING if furthest is State.STOPPING else furthest)


def _outcome(experiment: Experiment, trials: Sequence[Trial], is_found: bool) -> tuple[Outcome, str]:
    """Returns outcome and reason. As in Determined, a search with at least one completed trial is COMPLETED. is_found:
    the search made all of its trials."""
    failed = [trial for trial in trials if trial.outcome is Outcome.FAILED]
    canceled = [trial for trial in trials if trial.outcome is Outcome.CANCELED]
    num_completed = len(trials) - len(failed) - len(canceled)
    if experiment.state is State.STOPPING and (failed or canceled or not is_found):
        is_refused = experiment.stop_kind is ExitKind.CONFIGURATION_ERROR
        return Outcome.FAILED if is_refused else Outcome.CANCELED, experiment.reason
    if not failed and not canceled:
        return Outcome.COMPLETED, "its trial completed" if len(trials) == 1 else f"all {len(trials)} trials completed"
    first = (failed or canceled)[0]
    what = f"trial {first.id} {'failed' if failed else 'was canceled'}: {first.reason}"
    if num_completed:
        return Outcome.COMPLETED, f"{num_completed} of {len(trials)} trials completed; {what}"
    return Outcome.FAILED if failed else Outcome.CANCELED, what


def check_going_on(experiment: Experiment, done: str) -> None:
    """Refuses to act on an experiment that is over. done: the action as a participle, such as "paused". Raises
    GanglineError `experiment.ended` or `experiment.stopping`."""
    if experiment.state is State.TERMINAL:
        raise _refusal("ended", experiment, f"has ended ({experiment.outcome})", done)
    if experiment.state is State.STOPPING:
        raise _refusal("stopping", experiment, f"is being ended ({experiment.reason})", done)


def _refusal(code: str, experiment: Experiment, why: str, done: str) -> GanglineError:
    return conflict(f"experiment.{code}", f"experiment {experiment.id} {why}, so it cannot be {done}")
