"""PURE: the searcher of an experiment receives events, and its operations are carried out.

Owns the creation and closing of trials. If a searcher asks for more trials than fit into one transaction,
`make_outstanding` creates the rest, some in each call. The number it asked for is on record, so any leader can
continue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gangline.config.hyperparameter import count_draws
from gangline.domain.allocation import Request, Timeline
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.id import trial_id
from gangline.domain.search import Search, SearchEvent, SearchOperation
from gangline.domain.settled.record import Settled
from gangline.domain.settled.searcher import MAX_TRIALS
from gangline.domain.state import CheckpointState, ExitKind, Outcome, SearchEventKind, SearchOperationKind, State
from gangline.errors import conflict, invalid, not_found
from services.scheduler.searcher.draw import derive_seed
from services.scheduler.searcher.interface import CloseTrial, CreateTrial, Operation, Searcher, ShutDown
from services.scheduler.searcher.methods import SEARCHERS
from services.scheduler.searcher.optuna_class import check_packages
from services.scheduler.searcher.replay import append, keep_searcher, make_searcher, take_searcher
from services.scheduler.state.records import Draft, Records, StateChange, get, live_allocation_of
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.experiment import settle_experiment
from services.scheduler.transition.request import queue
from services.scheduler.transition.rights import sees_checkpoint, sees_experiment
from services.scheduler.transition.stop import StopOrder, stop_allocation

# etcd allows 128 operations and 1.5 MiB in one transaction; a new trial takes two operations, and other records change
# too.
MAX_CREATED = 32
MAX_CREATED_BYTES = 512 << 10
# Draws of one transaction (count_draws). Each takes 50 us, and the leader does nothing else meanwhile.
MAX_DRAWS = 500

# Operations that the process of a custom search posts at once, and bytes of all their hyperparameters. A post is an
# event, and a page in etcd has 64 of them.
MAX_OPERATIONS = 32
MAX_POST_BYTES = 16 << 10

# Hyperparameters that were made outside of a transition, by the trial's number.
Suggestions = Mapping[int, dict[str, Any]]
NO_SUGGESTIONS: Suggestions = {}
_LIST = "gangline checkpoint list"


def begin_search(draft: Draft, experiment: Experiment, seed: int, rules: Rules, now: float) -> None:
    """Begins the search of an experiment that is new and in the draft. Raises GanglineError for a source that is not
    there, and for a sampler or pruner that Optuna does not have or that needs a package which is not installed."""
    settled = settled_of(experiment.config_json)
    check_packages(settled.searcher.sampler, settled.searcher.pruner)
    num_planned, source_id = make_searcher(settled, seed).num_planned, _find_source(draft, experiment.owner, settled)
    draft.put(Search(experiment.id, seed, num_planned=num_planned, source_checkpoint_id=source_id))
    tell(draft, experiment.id, SearchEvent(SearchEventKind.EXPERIMENT_CREATED), rules, now)


def tell(draft: Draft, experiment_id: int, event: SearchEvent, rules: Rules, now: float) -> None:
    """Passes an event to the searcher, unless the experiment is being ended. The caller settles the experiment."""
    experiment, search = get(draft, Experiment, experiment_id), draft.find(Search, experiment_id)
    if search is None or search.is_shut_down or experiment.state in (State.STOPPING, State.TERMINAL):
        return
    settled = settled_of(experiment.config_json)
    if event.kind not in SEARCHERS[settled.searcher.name].listens:
        return
    searcher = take_searcher(draft, search, settled)
    operations = searcher.on_event(event)
    append(draft, search, event)
    search = replace(
        search,
        num_events=search.num_events + 1,
        num_planned=searcher.num_planned,
        num_wanted=search.num_wanted + sum(isinstance(operation, CreateTrial) for operation in operations),
        is_shut_down=any(isinstance(operation, ShutDown) for operation in operations),
        num_posts=search.num_posts + (event.kind is SearchEventKind.OPERATED),
    )
    draft.put(search)
    new_trials = _make(draft, experiment, search, searcher, rules=rules, now=now)
    keep_searcher(draft, search, searcher)
    # Only now, because each of these may pass a further event to the searcher.
    _tell_created(draft, new_trials, rules, now)
    _close(draft, experiment_id, operations, rules, now)


def post_operations(
    records: Records,
    experiment_id: int,
    post_number: int,
    operations: Sequence[SearchOperation],
    *,
    rules: Rules,
    now: float,
) -> StateChange:
    """Carries out what the process of a custom search asks for. post_number: how many posts came before it. A post that
    was carried out before changes nothing.

    Raises GanglineError `experiment.not_found`, `search.not_custom`, `search.over`, `search.order`,
    `search.operation`.
    """
    experiment, search = get(records, Experiment, experiment_id), records.find(Search, experiment_id)
    if search is None or settled_of(experiment.config_json).searcher.name != "custom":
        text = f"the searcher of experiment {experiment_id} decides by itself; only `name: custom` takes operations"
        raise invalid("search.not_custom", text)
    if post_number < search.num_posts:
        return StateChange()
    if search.is_shut_down or experiment.state in (State.STOPPING, State.TERMINAL):
        raise conflict("search.over", f"the search of experiment {experiment_id} is over; it takes no operations")
    if post_number > search.num_posts:
        text = f"post {post_number} of the search of experiment {experiment_id} came before post {search.num_posts}"
        raise conflict("search.order", text)
    _check_operations(search, operations)
    draft = Draft(records)
    tell(draft, experiment_id, SearchEvent(SearchEventKind.OPERATED, operations=tuple(operations)), rules, now)
    settle_experiment(draft, experiment_id, now)
    return draft.change


def _check_operations(search: Search, operations: Sequence[SearchOperation]) -> None:
    """Raises GanglineError `search.operation`."""
    if len(operations) > MAX_OPERATIONS:
        raise invalid("search.operation", f"{len(operations)} operations at once; post at most {MAX_OPERATIONS}")
    num_bytes = sum(len(operation.hyperparameters_json) for operation in operations)
    if num_bytes > MAX_POST_BYTES:
        text = f"the hyperparameters of one post have {num_bytes} bytes; post at most {MAX_POST_BYTES}"
        raise invalid("search.operation", text)
    num_trials = search.num_wanted
    for operation in operations:
        match operation.kind:
            case SearchOperationKind.CREATE:
                num_trials += 1
                _check_point(operation.hyperparameters_json)
            case SearchOperationKind.CLOSE if not 1 <= operation.trial_number <= num_trials:
                raise invalid("search.operation", f"there is no trial {operation.trial_number} to close")
            case SearchOperationKind.SHUT_DOWN if not num_trials:
                raise invalid("search.operation", "a search without a trial cannot shut down; cancel the experiment")
    if num_trials > MAX_TRIALS:
        raise invalid("search.operation", f"{num_trials} trials; a search has at most {MAX_TRIALS}")


def _check_point(hyperparameters_json: str) -> None:
    try:
        point = json.loads(hyperparameters_json)
    except ValueError:
        point = None
    if not isinstance(point, dict):
        raise invalid("search.operation", "the hyperparameters of a trial are no JSON object")


def closed_event(trial: Trial) -> SearchEvent:
    """Returns the event of a trial that has ended."""
    is_invalid_hp = (
        trial.outcome is Outcome.FAILED
        and trial.last_failure is not None
        and trial.last_failure.kind is ExitKind.INVALID_HP
    )
    return SearchEvent(
        SearchEventKind.TRIAL_CLOSED,
        trial.number,
        trial.batches_completed,
        trial.best_validation,
        trial.outcome,
        is_invalid_hp=is_invalid_hp,
    )


def make_outstanding(
    draft: Draft, experiment: Experiment, rules: Rules, now: float, suggestions: Suggestions = NO_SUGGESTIONS
) -> None:
    """Creates some of the trials that the searcher has asked for and that do not exist yet. suggestions: for searchers
    whose hyperparameters come from outside."""
    search = draft.find(Search, experiment.id)
    if search is not None and draft.num_trials_of(experiment.id) < search.num_wanted:
        searcher = take_searcher(draft, search, settled_of(experiment.config_json))
        new_trials = _make(draft, experiment, search, searcher, rules=rules, now=now, suggestions=suggestions)
        keep_searcher(draft, search, searcher)
        _tell_created(draft, new_trials, rules, now)


def close_trial(draft: Draft, trial: Trial, outcome: Outcome, order: StopOrder, *, rules: Rules, now: float) -> None:
    """Closes a trial: a waiting one ends with this outcome at once; a live one is stopped as ordered and gets it
    then."""
    allocation = live_allocation_of(draft, trial)
    if allocation is not None:
        draft.put(replace(trial, closing=outcome, reason=order.reason))
        stop_allocation(draft, allocation, order, now)
        return
    draft.delete(Request, trial.id)
    trial = replace(trial, state=State.TERMINAL, outcome=outcome, reason=order.reason, ended_at=now)
    draft.put(trial)
    tell(draft, trial.experiment_id, closed_event(trial), rules, now)
    settle_experiment(draft, trial.experiment_id, now)


def _make(
    draft: Draft,
    experiment: Experiment,
    search: Search,
    searcher: Searcher,
    *,
    rules: Rules,
    now: float,
    suggestions: Suggestions = NO_SUGGESTIONS,
) -> list[Trial]:
    """Creates the next trials that the searcher has asked for, as many as fit into a transaction. A trial without a
    suggestion waits for it."""
    new_trials: list[Trial] = []
    num_bytes = 0
    first = draft.num_trials_of(experiment.id) + 1
    for number in range(first, min(search.num_wanted, first + _most_created(experiment.config_json) - 1) + 1):
        values = searcher.hyperparameters(number)
        if values is None:
            values = suggestions.get(number)
        if values is None:
            break
        hyperparameters = json.dumps(values)
        num_bytes += len(hyperparameters)
        if new_trials and num_bytes > MAX_CREATED_BYTES:
            break
        new_trials.append(_new_trial(search, number, hyperparameters, now))
    for trial in new_trials:
        draft.put(trial)
        queue(draft, trial, settled_of(experiment.config_json), rules)
    return new_trials


@lru_cache(maxsize=1024)
def _most_created(config_json: str) -> int:
    """Returns how many trials of this experiment one transaction may create."""
    num_draws = count_draws(settled_of(config_json).hyperparameters)
    return max(1, min(MAX_CREATED, MAX_DRAWS // max(1, num_draws)))


def _tell_created(draft: Draft, new_trials: Sequence[Trial], rules: Rules, now: float) -> None:
    for trial in new_trials:
        event = SearchEvent(SearchEventKind.TRIAL_CREATED, trial.number)
        tell(draft, trial.experiment_id, event, rules, now)


def _find_source(records: Records, owner: str, settled: Settled) -> str:
    """Returns the checkpoint that the experiment's trials begin from; empty for none. owner: of the experiment, to whom
    what it does not see does not exist."""
    source_trial_id, checkpoint_id = settled.searcher.source_trial_id, settled.searcher.source_checkpoint_uuid
    if source_trial_id is not None:
        trial = records.find(Trial, source_trial_id)
        if trial is not None and not sees_experiment(records, owner, trial.experiment_id):
            trial = None
        if trial is None or not trial.latest_checkpoint_id:
            what = f"there is no trial {source_trial_id}" if trial is None else f"trial {trial.id} has no checkpoint"
            raise not_found("searcher.source", f"searcher.source_trial_id: {what}; list them with: {_LIST}")
        checkpoint_id = trial.latest_checkpoint_id
    if checkpoint_id is None:
        return ""
    checkpoint = records.find(Checkpoint, checkpoint_id)
    if checkpoint is not None and source_trial_id is None and not sees_checkpoint(records, owner, checkpoint):
        checkpoint = None
    if checkpoint is None or checkpoint.state is not CheckpointState.COMPLETED:
        what = f"there is no checkpoint {checkpoint_id}" if checkpoint is None else f"{checkpoint_id} is being deleted"
        raise not_found("searcher.source", f"searcher.source_checkpoint_uuid: {what}; list them with: {_LIST}")
    return checkpoint_id


def _new_trial(search: Search, number: int, hyperparameters_json: str, now: float) -> Trial:
    """A trial that begins from another one's checkpoint has it as its latest one. The library takes the state from it
    and counts batches from 0."""
    return Trial(
        id=trial_id(search.experiment_id, number),
        experiment_id=search.experiment_id,
        number=number,
        hyperparameters_json=hyperparameters_json,
        seed=derive_seed(search.seed, number),
        latest_checkpoint_id=search.source_checkpoint_id,
        created_at=now,
        timeline=Timeline(queued_at=now),
    )


def _close(draft: Draft, experiment_id: int, operations: Sequence[Operation], rules: Rules, now: float) -> None:
    """Closes the trials that the searcher wants closed. A trial that has ended, or is being ended, stays as it is."""
    for operation in operations:
        if not isinstance(operation, CloseTrial):
            continue
        trial = get(draft, Trial, trial_id(experiment_id, operation.number))
        if trial.state is State.TERMINAL or trial.closing is not None:
            continue
        grace_seconds = _settled(draft, experiment_id).preemption_timeout
        deadline_at = now + grace_seconds + rules.force_seconds
        order = StopOrder(ExitKind.PREEMPTED, operation.reason, deadline_at)
        close_trial(draft, trial, Outcome.COMPLETED, order, rules=rules, now=now)


def _settled(draft: Draft, experiment_id: int) -> Settled:
    return settled_of(get(draft, Experiment, experiment_id).config_json)
