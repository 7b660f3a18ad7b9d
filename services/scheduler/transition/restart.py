"""PURE: continues an ended experiment: the same trial, from its newest checkpoint, perhaps for longer.

For experiments of one trial. A search that has ended has chosen its trials, so it is forked instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangline.config import ExperimentConfig
from gangline.domain.allocation import Timeline
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.state import CheckpointState, Outcome, State
from gangline.errors import GanglineError, conflict, invalid
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.checkpoint import age_of
from services.scheduler.transition.experiment import settle_experiment
from services.scheduler.transition.removal import check_code_stays
from services.scheduler.transition.request import queue
from services.scheduler.transition.rights import check_secrets

# Sections that made the trial what it is, and texts that have commands of their own.
_FIXED = ("name", "description", "labels", "workspace", "project", "hyperparameters", "reproducibility", "searcher")
# A change of these runs no other program.
_HARMLESS = ("max_restarts",)
# Each version keeps an archive in the storage for as long as the experiment exists.
MAX_EARLIER_CODES = 50
# Keys of the searcher that may change.
_LENGTH = ("max_length", "max_time")


@dataclass(frozen=True, slots=True)
class NewCode:
    """The code with which an experiment continues."""

    sha256: str
    # Number of experiments deleted by the time a gateway found the code in the storage. None if the gateway did not
    # say.
    num_deleted: int | None


def continue_experiment(
    records: Records,
    experiment_id: int,
    config_json: str,
    request_id: str,
    *,
    user: str,
    code: NewCode | None = None,
    rules: Rules,
    now: float,
) -> StateChange:
    """Queues the trial of an ended experiment again. A request that has continued it before changes nothing.

    config_json: checked, with all defaults. code: None for the code that it has. Raises GanglineError
    `experiment.not_found`, `experiment.not_ended`, `experiment.deleting`, `experiment.archived`, `experiment.search`,
    `config.fixed`, `config.trained`, `trial.no_checkpoint`, `code.deleting`, `code.too_many_versions`.
    """
    experiment = get(records, Experiment, experiment_id)
    if experiment.continue_request_id == request_id:
        return StateChange()
    _check_ended(experiment)
    trial = _only_trial(records, experiment)
    before, after = (ExperimentConfig.model_validate_json(text) for text in (experiment.config_json, config_json))
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    _check_fixed(old, new)
    if code is not None or _runs_otherwise(old, new):
        action = f"continue experiment {experiment_id} with other code or commands"
        check_secrets(records, user, experiment, action)
    _check_length(trial, after)
    if code is not None:
        experiment = _with_code(records, experiment, code)
    draft = Draft(records)
    draft.put(
        replace(
            experiment,
            config_json=config_json,
            state=State.QUEUED,
            outcome=None,
            reason="",
            stop_kind=None,
            ended_at=0.0,
            continued_at=now,
            continue_request_id=request_id,
        )
    )
    trial = replace(
        trial,
        state=State.QUEUED,
        outcome=None,
        reason="",
        closing=None,
        ended_at=0.0,
        restarts=0,
        infrastructure_failures=0,
        failures_in_a_row=0,
        failing_since_at=0.0,
        last_failure=None,
        # Its length may be another one now.
        length_batches=None,
        batches_total=trial.batches_total if config_json == experiment.config_json else 0,
        warning="",
        latest_checkpoint_id=_find_checkpoint(records, trial),
        timeline=Timeline(queued_at=now),
    )
    draft.put(trial)
    queue(draft, trial, settled_of(config_json), rules)
    settle_experiment(draft, experiment_id, now)
    return draft.change


def _with_code(records: Records, experiment: Experiment, code: NewCode) -> Experiment:
    """Returns the experiment with other code. Its earlier code stays stored until the experiment is deleted."""
    check_code_stays(records, code.sha256, code.num_deleted)
    if code.sha256 == experiment.code_sha256:
        return experiment
    if len(experiment.earlier_code_sha256s) >= MAX_EARLIER_CODES:
        text = f"experiment {experiment.id} has had {MAX_EARLIER_CODES + 1} versions of its code; fork it instead"
        raise conflict("code.too_many_versions", text)
    earlier = (*experiment.earlier_code_sha256s, experiment.code_sha256)
    return replace(experiment, code_sha256=code.sha256, earlier_code_sha256s=earlier)


def _check_ended(experiment: Experiment) -> None:
    if experiment.is_deleting:
        raise _refusal("deleting", experiment, "is being deleted")
    if experiment.state is not State.TERMINAL:
        raise _refusal("not_ended", experiment, "has not ended")
    if experiment.archived:
        raise _refusal("archived", experiment, "is archived", f"; gangline experiment unarchive {experiment.id}")


def _refusal(code: str, experiment: Experiment, why: str, advice: str = "") -> GanglineError:
    return conflict(f"experiment.{code}", f"experiment {experiment.id} {why}, so it cannot be continued{advice}")


def _only_trial(records: Records, experiment: Experiment) -> Trial:
    name = settled_of(experiment.config_json).searcher.name
    trials = records.trials_of(experiment.id)
    if name != "single" or len(trials) != 1:
        advice = f"; begin a new one: gangline experiment fork {experiment.id}"
        raise _refusal("search", experiment, f"is a search ({name})", advice)
    return trials[0]


def _check_fixed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name in _FIXED:
        old, new = ({name: document[name]} for document in (before, after))
        if name == "searcher":
            old, new = (
                {f"searcher.{key}": value for key, value in document["searcher"].items() if key not in _LENGTH}
                for document in (before, after)
            )
        changed = next((key for key in old if old[key] != new.get(key)), None)
        if changed is not None:
            text = f"{changed}: a trial that continues keeps {json.dumps(old[changed])}"
            raise invalid("config.fixed", f"{text}; fork the experiment to change it")


def _runs_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns whether more changes than how long it trains and how often it is tried, and so perhaps which programs
    run. The searcher is compared by `_check_fixed`."""
    return any(before[name] != after[name] for name in before if name not in (*_FIXED, *_HARMLESS))


def _check_length(trial: Trial, config: ExperimentConfig) -> None:
    """Refuses to continue a completed trial without further batches. Other units are known to the trial alone."""
    length = config.searcher.max_length
    if trial.outcome is not Outcome.COMPLETED or length is None or not length.batches:
        return
    if length.batches <= trial.batches_completed:
        text = f"trial {trial.id} has trained {trial.batches_completed} batches; continue it with more of them, as in"
        longer = f"--config searcher.max_length.batches={2 * trial.batches_completed}"
        raise invalid("config.trained", f"searcher.max_length: {text} {longer}")


def _find_checkpoint(records: Records, trial: Trial) -> str:
    """Returns the trial's latest checkpoint, else the newest one that is kept; empty for a trial that never had one."""
    latest = records.find(Checkpoint, trial.latest_checkpoint_id) if trial.latest_checkpoint_id else None
    if not trial.latest_checkpoint_id or (latest is not None and latest.state is CheckpointState.COMPLETED):
        return trial.latest_checkpoint_id
    kept = [item for item in records.checkpoints_of(trial.id) if item.state is CheckpointState.COMPLETED]
    if not kept:
        text = f"no checkpoint of trial {trial.id} is kept, so it cannot be continued"
        advice = f"begin anew with: gangline experiment fork {trial.experiment_id}"
        raise conflict("trial.no_checkpoint", f"{text}; {advice}")
    return max(kept, key=age_of).id
