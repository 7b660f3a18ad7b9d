"""Retention in Determined's form: the policy of an experiment's checkpoints, its preview, and the days of logs."""

from __future__ import annotations

from typing import Any

from gangline.domain.experiment import VALIDATION_METRICS, Checkpoint, RetentionChange
from gangline.domain.id import experiment_id_of, number_of, trial_id_of
from gangline.domain.settled.reading import settle
from gangline.errors import invalid
from services.gateway.determined.call import Call, Routes, start_instant
from services.gateway.determined.checkpoint import describe_resources
from services.gateway.determined.values import Json, load, to_number

_STORAGE_KEYS = {
    "saveExperimentBest": "save_experiment_best",
    "saveTrialBest": "save_trial_best",
    "saveTrialLatest": "save_trial_latest",
}


def read_storage(values: Any) -> RetentionChange:
    """Reads PatchCheckpointStorage; null is no change. Raises GanglineError `request.id`, `request.invalid`."""
    if not isinstance(values, dict | None):
        raise invalid("request.invalid", "checkpointStorage is no JSON object")
    values = values or {}
    given = {ours: values.get(theirs) for theirs, ours in _STORAGE_KEYS.items()}
    return RetentionChange(**{key: to_number(value, key) for key, value in given.items() if value is not None})


async def preview(call: Call) -> Json:
    """Lists the checkpoints that a policy would delete, in the form of Determined's earlier API."""
    experiment_id = call.number("id")
    given = {key: call.query.get(key) for key in _STORAGE_KEYS.values()}
    change = RetentionChange(**{key: to_number(value, key) for key, value in given.items() if value is not None})
    view = await call.cases.experiments.view(experiment_id)
    checkpoints = await call.cases.checkpoints.preview_retention(experiment_id, change)
    metric = settle(view.experiment.config_json).searcher.metric
    return {"checkpoints": [_describe(checkpoint) for checkpoint in checkpoints], "metric_name": metric}


def _describe(checkpoint: Checkpoint) -> Json:
    """The client counts a checkpoint as one with a validation where its `step` has one."""
    validation = load(checkpoint.metadata_json).get(VALIDATION_METRICS)
    return {
        "UUID": checkpoint.id,
        "TrialID": number_of(checkpoint.trial_id),
        "StepsCompleted": checkpoint.batches_completed,
        "State": "COMPLETED",
        "ReportTime": start_instant(checkpoint.created_at),
        "Resources": describe_resources(checkpoint),
        "ValidationMetrics": validation,
        "step": {"validation": bool(validation)},
    }


async def retain_logs(call: Call) -> Json:
    await _retain(call, call.number("id"))
    return {}


async def retain_logs_of_trial(call: Call) -> Json:
    """An experiment has one number of days for the logs of all of its trials."""
    experiment_id = experiment_id_of(trial_id_of(call.number("id")))
    num_trials = call.cases.experiments.count_trials(experiment_id)
    if num_trials > 1:
        raise invalid(
            "request.lacking",
            f"the {num_trials} trials of experiment {experiment_id} keep their logs equally long; use: "
            f"det experiment set log-retention {experiment_id} --days N",
        )
    await _retain(call, experiment_id)
    return {}


async def _retain(call: Call, experiment_id: int) -> None:
    change = RetentionChange(log_retention_days=to_number(call.body.get("numDays"), "numDays"))
    await call.cases.experiments.update(experiment_id, (change,))


ROUTES: Routes = (
    ("GET", "/experiments/{id}/preview_gc", preview),
    ("PUT", "/api/v1/experiments/{id}/retain_logs", retain_logs),
    ("PUT", "/api/v1/trials/{id}/retain_logs", retain_logs_of_trial),
)
