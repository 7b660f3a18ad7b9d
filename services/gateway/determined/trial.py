"""Trials in Determined's form: their workloads, metrics and logs. A trial's id is a number there."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import datetime

import re2

from gangline.domain.document import read_document
from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.history import LogFilter, StoredLog, StoredMetrics
from gangline.domain.id import experiment_id_of, number_of, trial_id_of
from gangline.domain.state import LogLevel
from gangline.domain.view import TrialView
from gangline.errors import invalid
from services.gateway.determined.call import Call, Lines, Routes, instant, page_of, start_instant
from services.gateway.determined.checkpoint import MAX_REPORTS, describe_resources
from services.gateway.determined.task import trial_of
from services.gateway.determined.values import (
    Json,
    checkpoint_state_name,
    load,
    metrics_json,
    report_json,
    state_name,
    to_number,
)
from services.gateway.mirror.ingest_record import Scope

_LEVEL_PREFIX = "LOG_LEVEL_"
# Pages of reports in one list of workloads. Their values are in memory together.
MAX_PAGES = 16


async def list_of_experiment(call: Call) -> Json:
    views, _ = await call.cases.experiments.view_trials(call.number("id"), 0, 0)
    shown, pagination = page_of(views, call)
    return {"trials": [describe(view) for view in shown], "pagination": pagination}


async def find(call: Call) -> Json:
    return {"trial": describe(await call.cases.experiments.view_trial(_trial_id(call)))}


async def find_metadata(call: Call) -> Json:
    """A run is a trial, by its number."""
    view = await call.cases.experiments.view_trial(_trial_id(call))
    return {"metadata": read_document(view.trial.metadata_json)}


async def kill(call: Call) -> Json:
    await call.cases.experiments.kill_trial(_trial_id(call))
    return {}


async def list_workloads(call: Call) -> Json:
    """Lists what a trial reported and saved, by batches."""
    trial_id = _trial_id(call)
    scope = Scope(experiment_id_of(trial_id), trial_id)
    rows = await _reports(call, scope)
    checkpoints = await call.cases.checkpoints.list(scope.experiment_id)
    workloads = [(row.point.batches_completed, 1, row.at, _report(row)) for row in rows]
    workloads += [
        (checkpoint.batches_completed, 2, checkpoint.created_at, {"checkpoint": _saved(checkpoint)})
        for checkpoint in checkpoints
        if checkpoint.trial_id == trial_id
    ]
    shown, pagination = page_of(sorted(workloads, key=lambda entry: entry[:3]), call)
    return {"workloads": [entry[3] for entry in shown], "pagination": pagination}


async def _reports(call: Call, scope: Scope) -> list[StoredMetrics]:
    """Returns a trial's reports, the oldest first. Those beyond MAX_PAGES pages come without the metrics that are no
    numbers."""
    rows: list[StoredMetrics] = []
    for number in range(MAX_REPORTS):
        page = await call.cases.records.metrics_page(
            scope,
            rows[-1].id if rows else 0,
            MAX_REPORTS - len(rows),
            has_values=number < MAX_PAGES,
        )
        rows += page.rows
        if page.is_last or len(rows) >= MAX_REPORTS:
            break
    return rows


def training_metrics(call: Call) -> Lines:
    return _metrics(call, "training")


def validation_metrics(call: Call) -> Lines:
    return _metrics(call, "validation")


def group_metrics(call: Call) -> Lines:
    return _metrics(call, call.query.get("group", ""))


async def _metrics(call: Call, group: str) -> Lines:
    for number in call.query.getlist("trialIds"):
        trial_id = trial_id_of(to_number(number, "trialIds"))
        scope = Scope(experiment_id_of(trial_id), trial_id, group)
        async for rows in call.cases.records.metrics(scope):
            yield {"metrics": [_metrics_report(row) for row in rows]}


async def logs(call: Call) -> Lines:
    async for row in _logs(call, _trial_id(call)):
        yield _log_line(row) | {"trialId": number_of(row.trial_id)}


async def task_logs(call: Call) -> Lines:
    """Yields the lines of the log of a trial. The path has the id of a task or of a trial."""
    async for row in _logs(call, trial_of(call.path["task"])):
        yield _log_line(row) | {"taskId": row.trial_id}


async def log_fields(call: Call) -> Lines:
    """Which values the filters of logs take: the machines on which the trial ran."""
    view = await call.cases.experiments.view_trial(_trial_id(call))
    members = view.allocation.members if view.allocation is not None else ()
    yield {
        "agentIds": sorted({member.agent_id for member in members}),
        "containerIds": [],
        "rankIds": [],
        "stdtypes": ["stdout", "stderr"],
        "sources": [],
    }


async def _logs(call: Call, trial_id: str) -> AsyncIterator[StoredLog]:
    """Yields lines, the oldest first; with ORDER_BY_DESC the last `limit` ones, the newest first, as the client asks
    for a tail."""
    limit = call.count("limit")
    is_tail = call.query.get("orderBy") == "ORDER_BY_DESC"
    scope = Scope(experiment_id_of(trial_id), trial_id)
    pages = call.cases.records.logs(
        scope, tail=limit if is_tail else 0, follow=bool(call.is_set("follow")), wanted=_filter(call)
    )
    if is_tail:
        for row in reversed([row async for page in pages for row in page.rows]):
            yield row
        return
    num_left = limit or None
    async for page in pages:
        for row in page.rows[:num_left]:
            yield row
        if num_left is not None:
            num_left -= len(page.rows)
            if num_left <= 0:
                return


def _filter(call: Call) -> LogFilter:
    text = call.query.get("searchText", "")
    levels = [level.removeprefix(_LEVEL_PREFIX) for level in call.query.getlist("levels")]
    return LogFilter(
        since=_seconds(call, "timestampAfter"),
        until=_seconds(call, "timestampBefore"),
        ranks=tuple(to_number(rank, "rankIds") for rank in call.query.getlist("rankIds")),
        levels=tuple(LogLevel(level) for level in levels if level in LogLevel.__members__),
        agent_ids=tuple(call.query.getlist("agentIds")),
        pattern=text if call.is_set("enableRegex") else str(re2.escape(text)),
    )


def _seconds(call: Call, name: str) -> float | None:
    text = call.query.get(name, "")
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError as error:
        raise invalid("logs.time", f"{name} is {text[:40]!r}, which is no time such as 2026-01-31T12:00:00Z") from error


def _log_line(row: StoredLog) -> Json:
    level = (row.line.level or LogLevel.INFO).value
    source = f" [rank={row.line.rank}]" if row.line.rank is not None else ""
    at = start_instant(row.at)
    return {
        "id": str(row.id),
        "level": _LEVEL_PREFIX + level,
        "timestamp": at,
        "message": f"[{at}] [{row.line.agent_id}]{source} || {level}: {row.line.text}\n",
        "log": row.line.text + "\n",
        "agentId": row.line.agent_id,
        "stdtype": row.line.stream,
        **({"rankId": row.line.rank} if row.line.rank is not None else {}),
    }


def _metrics_report(row: StoredMetrics) -> Json:
    key = "validation_metrics" if row.point.group == "validation" else "avg_metrics"
    return {
        "trialId": number_of(row.trial_id),
        "trialRunId": 0,
        "id": row.id,
        "group": row.point.group,
        "totalBatches": row.point.batches_completed,
        "endTime": start_instant(row.at),
        "archived": False,
        "metrics": {key: report_json(row.point)},
    }


def _report(row: StoredMetrics) -> Json:
    workload = {
        "metrics": {"avgMetrics": report_json(row.point), "batchMetrics": []},
        "numInputs": 0,
        "totalBatches": row.point.batches_completed,
        "endTime": start_instant(row.at),
    }
    return {"validation" if row.point.group == "validation" else "training": workload}


def _saved(checkpoint: Checkpoint) -> Json:
    return {
        "uuid": checkpoint.id,
        "state": checkpoint_state_name(checkpoint.state),
        "totalBatches": checkpoint.batches_completed,
        "resources": describe_resources(checkpoint),
        "metadata": load(checkpoint.metadata_json),
        "endTime": start_instant(checkpoint.created_at),
    }


def describe(view: TrialView) -> Json:
    """Returns trialv1Trial."""
    trial: Trial = view.trial
    described: Json = {
        "id": number_of(trial.id),
        "experimentId": trial.experiment_id,
        "hparams": load(trial.hyperparameters_json),
        "metadata": read_document(trial.metadata_json),
        "restarts": trial.restarts,
        "state": state_name(trial.state, trial.outcome),
        "startTime": start_instant(trial.created_at),
        "totalBatchesProcessed": max(
            trial.batches_completed, view.progress.batches_completed if view.progress is not None else 0
        ),
        "taskId": trial.id,
        "taskIds": [trial.id],
        "summaryMetrics": _summary(view),
        "wallClockTime": max(0.0, trial.ended_at - trial.created_at) if trial.ended_at else 0.0,
    }
    if trial.ended_at:
        described["endTime"] = instant(trial.ended_at)
    if trial.best_validation is not None and math.isfinite(trial.best_validation):
        described["searcherMetricValue"] = trial.best_validation
    return described


def _summary(view: TrialView) -> Json:
    """Returns the newest metrics; Determined's minimum and maximum over all reports are not kept."""
    groups = {"avg_metrics": view.training, "validation_metrics": view.validation}
    return {
        name: {metric: {"last": value, "type": "number"} for metric, value in metrics_json(point.metrics).items()}
        for name, point in groups.items()
        if point is not None
    }


def _trial_id(call: Call) -> str:
    return trial_id_of(call.number("id"))


ROUTES: Routes = (
    ("GET", "/api/v1/experiments/{id}/trials", list_of_experiment),
    ("GET", "/api/v1/trials/metrics/training_metrics", training_metrics),
    ("GET", "/api/v1/trials/metrics/validation_metrics", validation_metrics),
    ("GET", "/api/v1/trials/metrics/trial_metrics", group_metrics),
    ("GET", "/api/v1/trials/{id}", find),
    ("GET", "/api/v1/runs/{id}/metadata", find_metadata),
    ("POST", "/api/v1/trials/{id}/kill", kill),
    ("GET", "/api/v1/trials/{id}/workloads", list_workloads),
    ("GET", "/api/v1/trials/{id}/logs", logs),
    ("GET", "/api/v1/trials/{id}/logs/fields", log_fields),
    ("GET", "/api/v1/tasks/{task}/logs", task_logs),
)
