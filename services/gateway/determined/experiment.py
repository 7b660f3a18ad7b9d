"""Experiments in Determined's form, and its calls for them."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from gangline.config import named_home, parse_config, read_config
from gangline.config.yaml_document import parse_document
from gangline.domain.experiment import Experiment, ExperimentFilter, RetentionChange, TextChange
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import ExperimentAction, Outcome, State
from gangline.domain.view import ProjectView
from gangline.errors import invalid
from services.gateway.determined.call import Call, Handler, Routes, instant, start_instant
from services.gateway.determined.model_definition import pack_files
from services.gateway.determined.retention import read_storage
from services.gateway.determined.values import (
    Json,
    load,
    pagination,
    read_resources,
    state_name,
    states_named,
    to_number,
    with_storage,
)
from services.gateway.usecase.experiment import ExperimentChange
from services.gateway.usecase.shared.parsing import off_loop

_MAX_PAGE = 1000
# Keys of the configuration that the description of an experiment reads.
_SETTLED = ("description", "hyperparameters", "resources", "searcher")


async def create(call: Call) -> Json:
    """Creates an experiment; with `validateOnly` it only checks what is there."""
    text, template = call.text("config"), call.text("template")
    project_id = to_number(call.body.get("projectId") or 0, "projectId")
    workspace, project = await off_loop(named_home, text)
    inherited = await call.cases.projects.inherit(workspace, project, template, project_id)
    config, warnings = await off_loop(parse_config, text, inherited)
    if project_id:
        config = config.model_copy(update={"workspace": inherited.workspace, "project": inherited.project})
    config_json = config.model_dump_json()
    parent_id = to_number(call.body.get("parentId") or 0, "parentId")
    if call.body.get("validateOnly"):
        await call.cases.experiments.preview_search(config_json, 0)
        # Determined answers with an experiment that has no id yet.
        draft = Experiment(0, config.name, call.cases.caller.name, config_json, "")
        return {"experiment": await to_json(call, draft), "config": load(config_json), "warnings": []}
    experiment, more = await call.cases.experiments.create(
        config_json, await _take_code(call, parent_id), inherited.template,
        is_paused=not call.body.get("activate", True), forked_from=parent_id,
    )  # fmt: skip
    return await _answer(call, experiment, [*warnings, *more])


async def _take_code(call: Call, parent_id: int) -> str:
    """Returns the sha256 of the code: of the files that were sent, else of the experiment that is forked."""
    files = call.body.get("modelDefinition") or []
    if parent_id and not files:
        return (await call.cases.experiments.view(parent_id)).experiment.code_sha256
    archive, code_sha256 = await off_loop(pack_files, files)

    async def chunks() -> AsyncIterator[bytes]:
        yield archive

    return await call.cases.code.upload(code_sha256, chunks())


async def list_all(call: Call) -> Json:
    """Lists experiments, the oldest first unless the caller asks for ORDER_BY_DESC."""
    states, outcomes = states_named(call.query.getlist("states"))
    wanted = ExperimentFilter(
        labels=tuple(call.query.getlist("labels")),
        states=states,
        outcomes=outcomes,
        owners=tuple(call.query.getlist("users")),
        name_contains=call.query.get("name", ""),
    )
    project_id = call.count("projectId")
    project_ids = await call.cases.projects.select("", "", project_id) if project_id else None
    offset, limit = call.count("offset"), min(call.count("limit") or _MAX_PAGE, _MAX_PAGE)
    is_newest_first = call.query.get("orderBy") == "ORDER_BY_DESC"

    def read(skipped: int, count: int) -> tuple[list[Experiment], int]:
        return call.cases.experiments.list(
            count, 0, call.is_set("archived"), project_ids=project_ids, wanted=wanted, offset=skipped
        )

    if is_newest_first:
        shown, total = read(offset, limit)
    else:
        _, total = read(0, 1)
        end = total - offset
        shown = read(max(0, end - limit), min(limit, end))[0][::-1] if end > 0 else []
    projects = await _projects(call)
    experiments = [_describe(call, each, projects) for each in shown]
    return {"experiments": experiments, "pagination": pagination(offset, limit, len(shown), total)}


async def find(call: Call) -> Json:
    view = await call.cases.experiments.view(call.number("id"))
    described = await to_json(call, view.experiment)
    ahead = await call.cases.queue.list_tasks(view.experiment.id)
    places = [task.queue_place for task in ahead if task.queue_place]
    answer: Json = {"experiment": described, "config": described["config"]}
    if view.experiment.state is not State.TERMINAL:
        state = "STATE_SCHEDULED" if any(task.allocation is not None for task in ahead) else "STATE_QUEUED"
        answer["jobSummary"] = {"state": state, "jobsAhead": min(places, default=1) - 1}
    return answer


async def patch(call: Call) -> Json:
    """Changes texts, resources and the policy of checkpoints, one after another."""
    experiment_id = call.number("id")
    texts: Json = {
        name: str(call.body[name]) for name in ("name", "description", "notes") if call.body.get(name) is not None
    }
    labels = call.body.get("labels")
    experiment = (await call.cases.experiments.view(experiment_id)).experiment
    if texts or labels is not None:
        change = TextChange(
            **texts,
            add_labels=tuple(labels or ()),
            replaces_labels=labels is not None,
        )
        experiment = await _update(call, experiment_id, change)
    resources = {name: value for name, value in (call.body.get("resources") or {}).items() if value is not None}
    if resources:
        experiment = await _update(call, experiment_id, read_resources(resources))
    storage = read_storage(call.body.get("checkpointStorage"))
    if storage != RetentionChange():
        experiment = await _update(call, experiment_id, storage)
    return await _answer(call, experiment)


async def add_label(call: Call) -> Json:
    experiment = await _update(call, call.number("id"), TextChange(add_labels=(call.path["label"],)))
    return {"labels": list(experiment.labels)}


async def remove_label(call: Call) -> Json:
    experiment = await _update(call, call.number("id"), TextChange(remove_labels=(call.path["label"],)))
    return {"labels": list(experiment.labels)}


def _acting(action: ExperimentAction) -> Handler:
    async def act(call: Call) -> Json:
        await _update(call, call.number("id"), action)
        return {}

    return act


async def kill(call: Call) -> Json:
    await call.cases.experiments.kill(call.number("id"))
    return {}


async def archive(call: Call) -> Json:
    await call.cases.removals.archive(call.number("id"))
    return {}


async def unarchive(call: Call) -> Json:
    await call.cases.removals.unarchive(call.number("id"))
    return {}


async def delete(call: Call) -> Json:
    await call.cases.removals.delete(call.number("id"))
    return {}


async def resume(call: Call) -> Json:
    """Goes on with an ended experiment of one trial. overrideConfig: YAML or JSON."""
    overrides = await off_loop(_read_overrides, call.text("overrideConfig"))
    experiment, warnings = await call.cases.experiments.resume(to_number(call.body.get("id"), "id"), overrides)
    return {**await _answer(call, experiment, warnings), "numCompleted": 0}


async def move(call: Call) -> Json:
    project_id = to_number(call.body.get("destinationProjectId"), "destinationProjectId")
    await call.cases.projects.move_experiment(call.number("id"), project_id)
    return {}


async def model_definition(call: Call) -> Json:
    archive = b"".join([chunk async for chunk in call.cases.code.read(call.number("id"))])
    return {"b64Tgz": base64.b64encode(archive).decode()}


async def preview(call: Call) -> Json:
    """Counts the trials that a configuration would make, by their lengths."""
    given = call.body.get("config")
    is_read = isinstance(given, dict)
    config, _ = await (off_loop(read_config, given) if is_read else off_loop(parse_config, call.text("config")))
    found = await call.cases.experiments.preview_search(config.model_dump_json(), 0)
    unit = {"name": found.unit or "batches", "maxLength": not found.unit}
    if found.brackets:
        # Determined counts trials by the rung at which they end.
        lengths = Counter[int]()
        for bracket in found.brackets:
            reaching = [rung.expected_trials for rung in bracket.rungs] + [0]
            for rung, next_reaching in zip(bracket.rungs, reaching[1:], strict=True):
                lengths[rung.length] += rung.expected_trials - next_reaching
        counts = [(count, length) for length, count in sorted(lengths.items()) if count]
    else:
        counts = [(found.num_trials, found.max_total // max(1, found.num_trials))]
    trials = [{"count": count, "unit": {**unit, "value": length}} for count, length in counts]
    return {"summary": {"config": load(config.model_dump_json()), "trials": trials}}


async def to_json(call: Call, experiment: Experiment) -> Json:
    return _describe(call, experiment, await _projects(call))


async def _projects(call: Call) -> dict[int, ProjectView]:
    return {view.project.id: view for view in await call.cases.projects.list_projects()}


def _describe(call: Call, experiment: Experiment, projects: dict[int, ProjectView]) -> Json:
    """Returns v1Experiment."""
    config = load(experiment.config_json)
    # Only what is shown: a list may have a thousand experiments.
    settled = settle_values(config, *_SETTLED)
    home = projects.get(experiment.home_id)
    [progress] = call.cases.experiments.progress([experiment]) if experiment.id else [None]
    num_trials = call.cases.experiments.count_trials(experiment.id)
    described: Json = {
        "id": experiment.id,
        "name": experiment.name,
        "description": settled.description,
        "notes": experiment.notes,
        "labels": list(experiment.labels),
        "username": experiment.owner,
        "userId": call.authenticator.number_of_user(experiment.owner),
        "state": state_name(experiment.state, experiment.outcome, experiment.stop_kind),
        "archived": experiment.archived,
        "jobId": str(experiment.id),
        "numTrials": num_trials,
        "config": with_storage(config),
        "originalConfig": experiment.config_json,
        "projectId": experiment.home_id,
        "projectName": home.project.name if home else "",
        "projectOwnerId": call.authenticator.number_of_user(home.project.owner if home else ""),
        "workspaceId": home.project.workspace_id if home else 1,
        "workspaceName": home.workspace_name if home else "",
        "parentArchived": bool(home and home.is_archived),
        "resourcePool": settled.resources.pool_name,
        "searcherType": settled.searcher.name,
        "searcherMetric": settled.searcher.metric,
        "hyperparameters": dict(settled.hyperparameters),
        "startTime": start_instant(experiment.created_at),
        "unmanaged": False,
    }
    if experiment.ended_at:
        described["endTime"] = instant(experiment.ended_at)
        described["duration"] = int(experiment.ended_at - experiment.created_at)
    if experiment.forked_from:
        described["forkedFrom"] = experiment.forked_from
    if experiment.outcome is Outcome.COMPLETED:
        described["progress"] = 1.0
    elif progress is not None and progress.batches_total:
        described["progress"] = min(1.0, progress.batches_completed / progress.batches_total)
    return described


async def _update(call: Call, experiment_id: int, change: ExperimentChange) -> Experiment:
    return await call.cases.experiments.update(experiment_id, (change,))


async def _answer(call: Call, experiment: Experiment, warnings: list[str] | None = None) -> Json:
    described = await to_json(call, experiment)
    # Determined's own warnings are codes of an enumeration, so the sentences have a field of their own.
    return {"experiment": described, "config": described["config"], "warnings": [], "notices": warnings or []}


def _read_overrides(text: str) -> str:
    """Returns the leaves of the configuration by their dotted keys, as JSON."""
    values = parse_document(text).values if text.strip() else {}
    if not isinstance(values, dict):
        raise invalid("config.overrides", "the configuration that overrides is no mapping")

    def leaves(below: dict[str, Any], prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in below.items():
            is_section = isinstance(value, dict) and bool(value)
            found.update(leaves(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value})
        return found

    return json.dumps(leaves(values, ""))


ROUTES: Routes = (
    ("GET", "/api/v1/experiments", list_all),
    ("POST", "/api/v1/experiments", create),
    ("POST", "/api/v1/experiments/continue", resume),
    ("GET", "/api/v1/experiments/{id}", find),
    ("PATCH", "/api/v1/experiments/{id}", patch),
    ("DELETE", "/api/v1/experiments/{id}", delete),
    ("POST", "/api/v1/experiments/{id}/pause", _acting(ExperimentAction.PAUSE)),
    ("POST", "/api/v1/experiments/{id}/activate", _acting(ExperimentAction.ACTIVATE)),
    ("POST", "/api/v1/experiments/{id}/cancel", _acting(ExperimentAction.CANCEL)),
    ("POST", "/api/v1/experiments/{id}/kill", kill),
    ("POST", "/api/v1/experiments/{id}/archive", archive),
    ("POST", "/api/v1/experiments/{id}/unarchive", unarchive),
    ("POST", "/api/v1/experiments/{id}/move", move),
    ("GET", "/api/v1/experiments/{id}/model_def", model_definition),
    ("PUT", "/api/v1/experiments/{id}/labels/{label}", add_label),
    ("DELETE", "/api/v1/experiments/{id}/labels/{label}", remove_label),
    ("POST", "/api/v1/preview-hp-search", preview),
)
