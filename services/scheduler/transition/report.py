"""PURE: a runner's reports on its running trial: progress, validation, checkpoints, waits, metadata.

A terminal trial is never changed. A report of an attempt that has ended may still arrive; it counts until the next
attempt begins (fence.py), because a checkpoint is durable training state.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gangline.domain.allocation import Allocation, Wait
from gangline.domain.experiment import BestValidation, Checkpoint, Experiment, Trial
from gangline.domain.history import MetricsPoint
from gangline.domain.search import Search, SearchEvent
from gangline.domain.settled.searcher import SettledSearcher
from gangline.domain.state import CheckpointState, SearchEventKind, State
from services.scheduler.state.estimate import Progress
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.checkpoint import age_of, mark_superfluous
from services.scheduler.transition.end import fail_experiment
from services.scheduler.transition.experiment import settle_experiment
from services.scheduler.transition.length import (
    TrialReach,
    end_if_far_past,
    is_comparable,
    is_far_past,
    warn,
    with_length,
)
from services.scheduler.transition.search import tell
from services.scheduler.transition.strategy_step import new_choice

# Keeps a record with metrics well below the limit of an etcd transaction.
MAX_VALIDATION_BYTES = 16 << 10
# Longest text of a wait, in characters.
MAX_WAIT_CHARACTERS = 1000
# Best values of a trial on record, so that an attempt that validates earlier batches again finds the best before them.
MAX_BEST_VALIDATIONS = 32
# Names of metrics in a message.
_MOST_NAMES = 8


def progressed(records: Records, trial_id: str, progress: Progress, rules: Rules, now: float) -> StateChange:
    """Records progress, backwards too: a restart begins at its checkpoint, below what the trial had reached. A change
    of pace without progress is not worth a write. The pace of an attempt on fewer slots is recorded as that of the full
    size."""
    trial = records.find(Trial, trial_id)
    if trial is None or trial.state is State.TERMINAL:
        return StateChange()
    reached = _reached(trial, progress.batches_completed, progress.batches_total)
    if reached == trial:
        return StateChange()
    settled = settled_of(get(records, Experiment, trial.experiment_id).config_json)
    rounds = settled.resources.slots_per_trial / trial.attempt_slots if trial.attempt_slots else 1.0
    trial = replace(
        reached,
        seconds_per_batch=progress.seconds_per_batch / rounds or trial.seconds_per_batch,
    )
    reach = _reach_of(settled.searcher, progress.batches_completed)
    if is_far_past(settled.searcher, reach):
        trial = warn(trial, settled.searcher, reach)
    draft = Draft(records)
    draft.put(trial)
    event = SearchEvent(SearchEventKind.PROGRESSED, trial.number, progress.batches_completed)
    _tell(draft, trial, event, rules, now)
    end_if_far_past(draft, get(draft, Trial, trial.id), settled, reach, rules=rules, now=now)
    return draft.change


def _reached(trial: Trial, batches: int, total: int = 0) -> Trial:
    """Returns the trial after so many batches. total: as reported, 0 when unknown. A script's report of a share is an
    estimate of the total, which the batches may pass."""
    total = total or trial.batches_total
    return replace(trial, batches_completed=batches, batches_total=max(total, batches) if total else 0)


def passes_length(section: SettledSearcher, batches: int) -> bool:
    """Returns whether a trial of so many batches is too far past its length."""
    return is_far_past(section, _reach_of(section, batches))


def _reach_of(section: SettledSearcher, batches: int) -> TrialReach:
    """Returns how far a trial is by its progress, which counts batches only."""
    return TrialReach(batches, float(batches) if section.unit_name == "batches" else None)


def validated(
    records: Records,
    trial_id: str,
    validation: MetricsPoint,
    *,
    rules: Rules,
    now: float,
    units: float | None = None,
) -> StateChange:
    """Records a validation, and passes it to the searcher once.

    A validation counts for the searcher if it has the searcher's metric and comes after more batches than every earlier
    one of its trial. So a repeated report changes nothing there, nor does a trial that restarts from an older
    checkpoint and validates the same batches again.

    units: the length trained as the rank reports it; None where the rank does not know it.
    """
    trial = records.find(Trial, trial_id)
    if trial is None or trial.state is State.TERMINAL:
        return StateChange()
    settled = settled_of(get(records, Experiment, trial.experiment_id).config_json)
    metrics, batches_completed = validation.metrics, validation.batches_completed
    metric = _finite(metrics.get(settled.searcher.metric))
    trial = _reached(trial, max(trial.batches_completed, batches_completed))
    trial = replace(trial, validation_json=bounded_metrics(metrics, settled.searcher.metric))
    has_operation = units is not None
    units = _units_of(settled.searcher, metrics, batches_completed, units)
    reach = TrialReach(batches_completed, units, has_operation)
    counts = is_comparable(trial, settled.searcher, reach)
    trial = with_length(trial, settled.searcher, reach) if counts else warn(trial, settled.searcher, reach)
    trial = _without_replaced(trial, batches_completed)
    if counts and metric is not None and _is_better(metric, trial.best_validation, settled.searcher.smaller_is_better):
        best = BestValidation(batches_completed, metric, trial.attempts)
        trial = _with_bests(trial, (*trial.best_validations, best)[-MAX_BEST_VALIDATIONS:])
    is_new = settled.searcher.metric in metrics and batches_completed > _last_validated(trial)
    if is_new:
        trial = replace(trial, validated_batches=batches_completed)
    draft = Draft(records)
    draft.put(trial)
    if not draft.change:
        return draft.change
    if _lacks_metric(draft, trial, metrics, settled.searcher.metric):
        reason = _say_missing(trial.id, settled.searcher.metric, metrics)
        fail_experiment(draft, trial.experiment_id, reason, rules, now)
        return draft.change
    if is_new and units is None and settled.searcher.is_halving:
        fail_experiment(draft, trial.experiment_id, _say_no_units(trial.id, settled.searcher, metrics), rules, now)
        return draft.change
    # The process of a custom search may judge such a validation by itself.
    if is_new and (counts or settled.searcher.name == "custom"):
        event = SearchEvent(
            SearchEventKind.VALIDATED,
            trial.number,
            batches_completed,
            math.nan if metric is None else metric,
            units=units,
        )
        _tell(draft, trial, event, rules, now)
    end_if_far_past(draft, get(draft, Trial, trial.id), settled, reach, rules=rules, now=now)
    return draft.change


def described(records: Records, trial_id: str, metadata_json: str) -> StateChange:
    """Records the metadata that the trial's program has set. They replace earlier ones."""
    return _noted(records, trial_id, metadata_json=metadata_json)


def chosen(records: Records, trial_id: str, text: str) -> StateChange:
    """Records what `parallelism: auto` has chosen in the newest attempt."""
    trial = records.find(Trial, trial_id)
    return StateChange() if trial is None else _noted(records, trial_id, strategy_choice_json=new_choice(trial, text))


def waiting(records: Records, allocation_id: str, node_rank: int, text: str, now: float) -> StateChange:
    """Records what the ranks of a member wait for; an empty text ends the wait. Another text in the course of a wait
    does not change its beginning."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None:
        return StateChange()
    before = next((wait for wait in allocation.waits if wait.node_rank == node_rank), None)
    waits = tuple(wait for wait in allocation.waits if wait.node_rank != node_rank)
    if text:
        wait = Wait(node_rank, text[:MAX_WAIT_CHARACTERS], before.since_at if before is not None else now)
        waits = tuple(sorted((*waits, wait), key=lambda wait: wait.node_rank))
    draft = Draft(records)
    if waits != allocation.waits:
        draft.put(replace(allocation, waits=waits))
    return draft.change


def _noted(records: Records, trial_id: str, **texts: str) -> StateChange:
    """Puts texts into the fields of these names of a trial that has not ended."""
    trial = records.find(Trial, trial_id)
    if trial is None or trial.state is State.TERMINAL:
        return StateChange()
    changed = replace(trial, **texts)  # type: ignore[arg-type]  # fields that are texts
    draft = Draft(records)
    if changed != trial:
        draft.put(changed)
    return draft.change


def best_validation_of(records: Records, experiment_id: int) -> float | None:
    """Returns the best value of the searcher's metric over all trials; None before the first validation."""
    smaller_is_better = settled_of(get(records, Experiment, experiment_id).config_json).searcher.smaller_is_better
    values = [trial.best_validation for trial in records.trials_of(experiment_id) if trial.best_validation is not None]
    return (min if smaller_is_better else max)(values, default=None)


def _without_replaced(trial: Trial, batches_completed: int) -> Trial:
    """Returns the trial without the best values that this validation of the newest attempt replaces: those of older
    attempts at the same or later batches. They are of a model that the trial no longer trains."""
    bests = trial.best_validations
    if not bests and trial.best_validation is not None:
        # An earlier version has recorded the best value alone.
        bests = (BestValidation(trial.best_validation_batches, trial.best_validation, 0),)
    left = tuple(best for best in bests if best.attempt == trial.attempts or best.batches_completed < batches_completed)
    return trial if left == trial.best_validations else _with_bests(trial, left)


def _with_bests(trial: Trial, bests: tuple[BestValidation, ...]) -> Trial:
    last = bests[-1] if bests else None
    return replace(
        trial,
        best_validations=bests,
        best_validation=last.value if last is not None else None,
        best_validation_batches=last.batches_completed if last is not None else 0,
    )


def _last_validated(trial: Trial) -> int:
    return -1 if trial.validated_batches is None else trial.validated_batches


def _units_of(
    section: SettledSearcher, metrics: Mapping[str, float], batches_completed: int, reported: float | None
) -> float | None:
    """Returns the length trained in the searcher's unit. A metric of the unit's name counts first, because a script
    that counts epochs or records itself reports them so. Batches are always known."""
    value = _finite(metrics.get(section.unit_name))
    if value is not None:
        return value
    return float(batches_completed) if section.unit_name == "batches" else reported


def _lacks_metric(draft: Draft, trial: Trial, metrics: Mapping[str, float], metric: str) -> bool:
    """Returns whether a search has never got the metric by which it compares trials. A metric that is no number was
    reported all the same, and a trial may report other metrics besides."""
    search = draft.find(Search, trial.experiment_id)
    if not metric or metric in metrics or search is None or search.num_planned < 2:
        return False
    return all(each.best_validation is None for each in draft.trials_of(trial.experiment_id))


def _say_missing(trial_id: str, metric: str, metrics: Mapping[str, float]) -> str:
    similar = difflib.get_close_matches(metric, sorted(metrics), n=1)
    advice = f"did you mean {similar[0]!r}?" if similar else "set searcher.metric to one of them"
    return (
        f"the validation of trial {trial_id} has no metric {metric!r}, by which searcher.metric compares trials; "
        f"it reports {_names_of(metrics)}; {advice}"
    )


def _say_no_units(trial_id: str, section: SettledSearcher, metrics: Mapping[str, float]) -> str:
    key = "time_metric" if section.time_metric is not None else "max_length"
    return (
        f"the validation of trial {trial_id} has no number {section.unit_name!r}, by which searcher.{key} measures how "
        f"far a trial is; it reports {_names_of(metrics)}; report {section.unit_name!r} with each validation, or call "
        "report_progress of the searcher's operation before it"
    )


def _names_of(metrics: Mapping[str, float]) -> str:
    names = sorted(metrics)
    return (", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")) or "nothing"


def checkpointed(records: Records, checkpoint: Checkpoint) -> StateChange:
    """Records a checkpoint. Its files must be complete in storage before it is reported. Checkpoints that it makes
    superfluous are marked in the same change; that may be itself, when an old report is repeated after its files were
    deleted. Where the id is that of another record, the trial gets a warning only."""
    trial = records.find(Trial, checkpoint.trial_id)
    stored_checkpoint = records.find(Checkpoint, checkpoint.id)
    if trial is None:
        return StateChange()
    draft = Draft(records)
    if problem := find_taken(records, checkpoint):
        if trial.state is not State.TERMINAL and not trial.warning:
            draft.put(replace(trial, warning=problem))
        return draft.change
    if stored_checkpoint is not None and stored_checkpoint.state is CheckpointState.DELETING:
        return StateChange()
    if stored_checkpoint is None:
        is_past_length = trial.length_batches is not None and checkpoint.batches_completed > trial.length_batches
        draft.put(replace(checkpoint, is_past_length=is_past_length))
    latest = records.find(Checkpoint, trial.latest_checkpoint_id)
    # The latest one may be of another trial, from which this one began.
    is_newer = latest is None or latest.trial_id != trial.id or age_of(checkpoint) >= age_of(latest)
    if trial.state is not State.TERMINAL and is_newer:
        trial = _reached(trial, max(trial.batches_completed, checkpoint.batches_completed))
        trial = replace(trial, latest_checkpoint_id=checkpoint.id, infrastructure_failures=0, failing_since_at=0.0)
        draft.put(trial)
    mark_superfluous(draft, trial)
    return draft.change


def find_taken(records: Records, checkpoint: Checkpoint) -> str:
    """Returns why a reported checkpoint is not recorded: its id has a record of another trial, or of an import. Empty
    where it has none."""
    stored = records.find(Checkpoint, checkpoint.id)
    if stored is None or stored.trial_id == checkpoint.trial_id:
        return ""
    whose = f"trial {stored.trial_id} has reported" if stored.trial_id else "an import has"
    return (
        f"its checkpoint {checkpoint.id} after batch {checkpoint.batches_completed} is not recorded, because {whose} "
        "the same id; save another one, and give no id away before its checkpoint is saved"
    )


def _tell(draft: Draft, trial: Trial, event: SearchEvent, rules: Rules, now: float) -> None:
    before = draft.find(Search, trial.experiment_id)
    tell(draft, trial.experiment_id, event, rules, now)
    if draft.find(Search, trial.experiment_id) != before:
        settle_experiment(draft, trial.experiment_id, now)


def bounded_metrics(metrics: Mapping[str, Any], metric: str) -> str:
    """Returns as JSON this metric, which is the searcher's, and as many others as a record of the state should hold. A
    large record would prevent every later change of its trial or model from being written."""
    kept: dict[str, Any] = {}
    num_bytes = 0
    for name in sorted(metrics, key=lambda name: (name != metric, name)):
        num_bytes += len(json.dumps({name: metrics[name]}))
        if num_bytes > MAX_VALIDATION_BYTES:
            break
        kept[name] = metrics[name]
    return json.dumps(kept, sort_keys=True)


def _finite(value: float | None) -> float | None:
    """Returns the number; None for a value that cannot be compared."""
    return value if value is not None and math.isfinite(value) else None


def _is_better(metric: float, best: float | None, smaller_is_better: bool) -> bool:
    if best is None:
        return True
    return metric < best if smaller_is_better else metric > best
