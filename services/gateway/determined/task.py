"""Commands, shells and notebooks in Determined's form. Each is an experiment of one trial that is marked as a task.

The client takes an id for whole only if it is a number, a dot and a UUID. So the id of a task is the number of its
experiment and a code that only its owner and administrators see; the tunnel of a shell needs it. Other callers get
zeros, and every call but that of the tunnel takes any code. In the list of all tasks, trials too, the code is the
trial's own number.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

from gangline.config import read_config
from gangline.config.task import plan_task
from gangline.domain.experiment import Experiment, ExperimentFilter, ResourceChange
from gangline.domain.id import parse_trial_id, trial_id
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import Outcome, State, TaskKind
from gangline.domain.view import TrialView
from gangline.errors import invalid, not_found
from services.gateway.determined.call import Call, Handler, Routes, instant, page_of, start_instant
from services.gateway.determined.model_definition import pack_files
from services.gateway.determined.values import Json, load, to_number
from services.gateway.usecase.shared.parsing import off_loop

_STATES = {
    State.QUEUED: "STATE_QUEUED",
    State.PAUSED: "STATE_QUEUED",
    State.STARTING: "STATE_STARTING",
    State.RUNNING: "STATE_RUNNING",
    State.STOPPING: "STATE_TERMINATING",
    State.TERMINAL: "STATE_TERMINATED",
}
_ID = re.compile(r"(\d{1,18})(?:\.[0-9a-f-]{1,36})?")
_MAX_PAGE = 1000
# So long the answer to the start of a shell waits for the shell.
_ACCOUNT_SECONDS = 20.0
_NO_CODE = str(uuid.UUID(int=0))
# The code of a task is random, so it never begins like this.
_LISTED = re.compile("0{8}-0{4}-0{4}-0{4}-([0-9a-f]{12})")


def experiment_of(text: str) -> int:
    """Returns the number of the experiment that the id of a task or of a trial begins with. Raises GanglineError
    `task.not_found`."""
    match = _ID.fullmatch(text)
    if match is None:
        raise not_found("task.not_found", f"{text[:60]!r} is the id of no task; list them with: det task list")
    return to_number(match.group(1), "id")


def trial_of(text: str) -> str:
    """Returns the id of the trial that a task's id stands for; the id of a trial stands for itself."""
    number = experiment_of(text)
    _, _, rest = text.partition(".")
    if rest.isdecimal() and len(rest) < len(_NO_CODE):
        return text
    listed = _LISTED.fullmatch(rest)
    return trial_id(number, max(1, int(listed.group(1), 16)) if listed is not None else 1)


def listed_id(trial: str) -> str:
    """Returns the id of a trial in the list of tasks, which `trial_of` reads."""
    experiment_id, number = parse_trial_id(trial)
    return f"{experiment_id}.{uuid.UUID(int=number)}"


def launching(kind: TaskKind) -> Handler:
    async def launch(call: Call) -> Json:
        """Starts a task. With `preview` it only returns the configuration."""
        command = call.body.get("config") or {}
        if not isinstance(command, dict):
            raise invalid("request.invalid", "config is no mapping")
        workspace_id = to_number(call.body.get("workspaceId") or 1, "workspaceId")
        if workspace_id != 1:
            raise invalid("task.workspace", f"{kind.lower()}s are in no workspace here; leave the workspace out")
        template = call.text("templateName") or call.text("template_name")
        inherited = await call.cases.projects.inherit("", "", template, 0)
        config, _ = await off_loop(read_config, plan_task(kind, _without_dashes(command)), inherited)
        config_json = config.model_dump_json()
        if call.body.get("preview"):
            draft = Experiment(0, config.name, call.cases.caller.name, config_json, "", task_kind=kind)
            return {kind.lower(): describe(call, draft), "config": load(config_json), "warnings": []}
        experiment, _ = await call.cases.experiments.create(config_json, await _take_files(call), inherited.template)
        if kind is TaskKind.SHELL:
            # The client takes the account of the shell from this answer alone.
            await call.cases.tunnels.wait_ready(experiment.id, _ACCOUNT_SECONDS)
        return {kind.lower(): describe(call, experiment), "config": load(experiment.config_json), "warnings": []}

    return launch


def _without_dashes(command: Json) -> Json:
    """Drops the `--` before a command, which the client passes on as if it were the program."""
    entrypoint = command.get("entrypoint")
    is_marked = isinstance(entrypoint, list) and len(entrypoint) > 1 and entrypoint[0] == "--"
    return {**command, "entrypoint": entrypoint[1:]} if is_marked and isinstance(entrypoint, list) else command


async def _take_files(call: Call) -> str:
    archive, code_sha256 = await off_loop(pack_files, call.body.get("files") or [])

    async def chunks() -> AsyncIterator[bytes]:
        yield archive

    return await call.cases.code.upload(code_sha256, chunks())


def listing(kind: TaskKind) -> Handler:
    async def list_tasks(call: Call) -> Json:
        """Lists tasks, ended ones too, the oldest first."""
        wanted = ExperimentFilter(owners=tuple(call.query.getlist("users")), task_kinds=(kind,))
        experiments, _ = call.cases.experiments.list(_MAX_PAGE, wanted=wanted)
        shown, pagination = page_of(experiments[::-1], call)
        return {f"{kind.lower()}s": [describe(call, each) for each in shown], "pagination": pagination}

    return list_tasks


def finding(kind: TaskKind) -> Handler:
    async def find(call: Call) -> Json:
        experiment = (await _find(call, kind)).experiment
        return {kind.lower(): describe(call, experiment), "config": load(experiment.config_json)}

    return find


def killing(kind: TaskKind) -> Handler:
    async def kill(call: Call) -> Json:
        number = (await _find(call, kind)).experiment.id
        experiment = await call.cases.experiments.kill(number)
        return {kind.lower(): describe(call, experiment)}

    return kill


def prioritizing(kind: TaskKind) -> Handler:
    async def set_priority(call: Call) -> Json:
        number = (await _find(call, kind)).experiment.id
        change = ResourceChange(priority=to_number(call.body.get("priority"), "priority"))
        experiment = await call.cases.experiments.update(number, (change,))
        return {kind.lower(): describe(call, experiment)}

    return set_priority


async def _find(call: Call, kind: TaskKind) -> Any:
    number = experiment_of(call.path["id"])
    view = await call.cases.experiments.view(number)
    if view.experiment.task_kind is not kind:
        raise not_found(
            "task.not_found", f"experiment {number} is no {kind.lower()}; list them with: det {kind.lower()} list"
        )
    return view


async def find_task(call: Call) -> Json:
    """Returns v1GetTaskResponse, of a trial too. A client waits for `isReady`."""
    view = await call.cases.experiments.view_trial(trial_of(call.path["task"]))
    experiment = (await call.cases.experiments.view(view.trial.experiment_id)).experiment
    task: Json = {
        "taskId": call.path["task"],
        "taskType": f"TASK_TYPE_{experiment.task_kind or 'TRIAL'}",
        "startTime": start_instant(view.trial.created_at),
        "allocations": [_describe_allocation(call, view, experiment)] if view.allocation is not None else [],
    }
    if view.trial.ended_at:
        task["endTime"] = instant(view.trial.ended_at)
    return {"task": task}


def _describe_allocation(call: Call, view: TrialView, experiment: Experiment) -> Json:
    assert view.allocation is not None
    is_served = experiment.task_kind in (TaskKind.SHELL, TaskKind.NOTEBOOK)
    is_ready = call.cases.tunnels.is_ready(experiment.id) if is_served else view.allocation.state is State.RUNNING
    return {
        "allocationId": view.allocation.id,
        "taskId": view.trial.id,
        "slots": view.allocation.num_slots,
        "state": _STATES[view.allocation.state],
        "isReady": is_ready,
        "startTime": start_instant(view.allocation.created_at),
    }


def describe(call: Call, experiment: Experiment) -> Json:
    """Returns v1Command, v1Shell or v1Notebook."""
    config = load(experiment.config_json)
    described: Json = {
        "id": f"{experiment.id}.{call.cases.tunnels.code_of(experiment) or _NO_CODE}",
        "jobId": str(experiment.id),
        "description": experiment.name,
        "username": experiment.owner,
        "displayName": experiment.owner,
        "userId": call.authenticator.number_of_user(experiment.owner),
        "resourcePool": settle_values(config).resources.pool_name,
        "startTime": start_instant(experiment.created_at),
        "state": _STATES[experiment.state],
        "workspaceId": 1,
        "exitStatus": _exit_status(experiment),
    }
    if experiment.task_kind is TaskKind.NOTEBOOK and experiment.id:
        is_own = call.cases.caller.owns(experiment.owner)
        described["serviceAddress"] = call.cases.tunnels.path_of(experiment.id) if is_own else ""
    if experiment.task_kind is TaskKind.SHELL and experiment.id:
        described |= _describe_access(call, experiment)
    return described


def _describe_access(call: Call, experiment: Experiment) -> Json:
    """Returns how a shell is opened, to its owner and administrators."""
    if not call.cases.caller.owns(experiment.owner):
        return {"agentUserGroup": {"user": ""}}
    access = call.cases.tunnels.access(experiment.id)
    return {"privateKey": access.private_key, "publicKey": "", "agentUserGroup": {"user": access.user}}


def _exit_status(experiment: Experiment) -> str:
    if experiment.state is not State.TERMINAL:
        return ""
    return "success" if experiment.outcome is Outcome.COMPLETED else experiment.reason


_PLURALS = {TaskKind.COMMAND: "commands", TaskKind.NOTEBOOK: "notebooks", TaskKind.SHELL: "shells"}
ROUTES: Routes = (
    *(
        route
        for kind, plural in _PLURALS.items()
        for route in (
            ("POST", f"/api/v1/{plural}", launching(kind)),
            ("GET", f"/api/v1/{plural}", listing(kind)),
            ("GET", f"/api/v1/{plural}/{{id}}", finding(kind)),
            ("POST", f"/api/v1/{plural}/{{id}}/kill", killing(kind)),
            ("POST", f"/api/v1/{plural}/{{id}}/set_priority", prioritizing(kind)),
        )
    ),
    ("GET", "/api/v1/tasks/{task}", find_task),
)
