"""PURE: a runner's reports on its running trial: progress, validation, checkpoints.

A terminal trial is never changed. A report of an attempt that has ended may still arrive; it counts until the next
attempt begins (fence.py), because a checkpoint is durable training state.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import replace

from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.search import Search, SearchEvent
from gangline.domain.state import CheckpointState, SearchEventKind, State
from services.scheduler.state.estimate import Progress
from services.scheduler.state.facts import facts_of
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.transition.checkpoint import age_of, mark_superfluous
from services.scheduler.transition.end import fail_experiment
from services.scheduler.transition.experiment import settle_experiment
from services.scheduler.transition.rules import Rules
from services.scheduler.transition.search import tell

# Keeps the trial's record well below the limit of an etcd transaction.
MAX_VALIDATION_BYTES = 16 << 10
# Names of metrics in a message.
_MOST_NAMES = 8


def progressed(records: Records, trial_id: str, progress: Progress, rules: Rules, now: float) -> StateChange:
    """Records progress, backwards too: a restart begins at its checkpoint, below what the trial had reached. A change
    of pace without progress is not worth a write. The pace of an attempt on fewer slots is recorded as that of the full
    size."""
    trial = records.find(Trial, trial_id)
    if trial is None or trial.state is State.TERMINAL or trial.batches_completed == progress.batches_completed:
        return StateChange()
    full_slots = facts_of(get(records, Experiment, trial.experiment_id).config_json).slots
    rounds = full_slots / trial.attempt_slots if trial.attempt_slots else 1.0
    draft = Draft(records)
    draft.put(
        replace(
            trial,
            batches_completed=progress.batches_completed,
            batches_total=progress.batches_total or trial.batches_total,
            seconds_per_batch=progress.seconds_per_batch / rounds or trial.seconds_per_batch,
        )
    )
    event = SearchEvent(SearchEventKind.PROGRESSED, trial.number, progress.batches_completed)
    _tell(draft, trial, event, rules, now)
    return draft.change


def validated(
    records: Records, trial_id: str, batches_completed: int, validation_json: str, *, rules: Rules, now: float
) -> StateChange:
    """Records a validation. validation_json: the metrics by name."""
    trial = records.find(Trial, trial_id)
    if trial is None or trial.state is State.TERMINAL:
        return StateChange()
    batches = max(trial.batches_completed, batches_completed)
    facts = facts_of(get(records, Experiment, trial.experiment_id).config_json)
    metrics = json.loads(validation_json)
    metric = _number(metrics.get(facts.searcher.metric))
    trial = replace(trial, batches_completed=batches, validation_json=_bounded(metrics, facts.searcher.metric))
    if metric is not None and _is_better(metric, trial.best_validation, facts.searcher.smaller_is_better):
        trial = replace(trial, best_validation=metric, best_validation_batches=batches_completed)
    draft = Draft(records)
    draft.put(trial)
    if not draft.change:
        return draft.change
    if _lacks_metric(draft, trial, metrics, facts.searcher.metric):
        reason = _say_missing(trial.id, facts.searcher.metric, metrics)
        fail_experiment(draft, trial.experiment_id, reason, rules, now)
        return draft.change
    _tell(draft, trial, SearchEvent(SearchEventKind.VALIDATED, trial.number, batches_completed, metric), rules, now)
    return draft.change


def _lacks_metric(draft: Draft, trial: Trial, metrics: Mapping[str, object], metric: str) -> bool:
    """Returns whether a search has never got the metric by which it compares trials. A metric that is no number was
    reported all the same, and a trial may report other metrics besides."""
    search = draft.find(Search, trial.experiment_id)
    if not metric or metric in metrics or search is None or search.num_planned < 2:
        return False
    return all(each.best_validation is None for each in draft.trials_of(trial.experiment_id))


def _say_missing(trial_id: str, metric: str, metrics: Mapping[str, object]) -> str:
    names = sorted(metrics)
    similar = difflib.get_close_matches(metric, names, n=1)
    advice = f"did you mean {similar[0]!r}?" if similar else "set searcher.metric to one of them"
    reported = ", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")
    return (
        f"the validation of trial {trial_id} has no metric {metric!r}, by which searcher.metric compares trials; "
        f"it reports {reported or 'nothing'}; {advice}"
    )


def checkpointed(records: Records, checkpoint: Checkpoint) -> StateChange:
    """Records a checkpoint. Its files must be complete in storage before it is reported. Checkpoints that it makes
    superfluous are marked in the same change; that may be itself, when an old report is repeated after its files were
    deleted."""
    trial = records.find(Trial, checkpoint.trial_id)
    stored_checkpoint = records.find(Checkpoint, checkpoint.id)
    if trial is None or (
        stored_checkpoint is not None
        and (stored_checkpoint.trial_id != trial.id or stored_checkpoint.state is CheckpointState.DELETING)
    ):
        return StateChange()
    draft = Draft(records)
    if stored_checkpoint is None:
        draft.put(checkpoint)
    latest = records.find(Checkpoint, trial.latest_checkpoint_id)
    is_newer = latest is None or age_of(checkpoint) >= age_of(latest)
    if trial.state is not State.TERMINAL and is_newer:
        batches = max(trial.batches_completed, checkpoint.batches_completed)
        trial = replace(trial, latest_checkpoint_id=checkpoint.id, batches_completed=batches)
        trial = replace(trial, infrastructure_failures=0)
        draft.put(trial)
    mark_superfluous(draft, trial)
    return draft.change


def _tell(draft: Draft, trial: Trial, event: SearchEvent, rules: Rules, now: float) -> None:
    before = draft.find(Search, trial.experiment_id)
    tell(draft, trial.experiment_id, event, rules, now)
    if draft.find(Search, trial.experiment_id) != before:
        settle_experiment(draft, trial.experiment_id, now)


def _bounded(metrics: dict[str, object], metric: str) -> str:
    """Returns as JSON the searcher's metric and as many others as a record of the state should hold. All of them are in
    the history; a large record here would prevent every later change of its trial from being written."""
    kept: dict[str, object] = {}
    num_bytes = 0
    for name in sorted(metrics, key=lambda name: (name != metric, name)):
        num_bytes += len(json.dumps({name: metrics[name]}))
        if num_bytes > MAX_VALIDATION_BYTES:
            break
        kept[name] = metrics[name]
    return json.dumps(kept, sort_keys=True)


def _number(value: object) -> float | None:
    """Returns the number; None for a value that cannot be compared."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _is_better(metric: float, best: float | None, smaller_is_better: bool) -> bool:
    if best is None:
        return True
    return metric < best if smaller_is_better else metric > best
