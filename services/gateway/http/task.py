"""Routes of tasks on slots: starting a command, a shell or a notebook, and the address of one that runs.

A task is an experiment of one trial. So the routes of experiments list, show and end it, and those of logs read it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field

from gangline.config import read_config
from gangline.config.task import plan_task
from gangline.config.yaml_document import parse_document
from gangline.domain import view
from gangline.domain.state import TaskKind
from gangline.errors import invalid
from services.gateway.http import model
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.shared.parsing import off_loop

router = APIRouter(prefix="/api/v1", tags=["tasks"], route_class=Route, responses=ERRORS)


class NewTask(
    model.Body,
    example={"kind": "COMMAND", "config": "entrypoint: [nvidia-smi, -L]\nresources: {slots: 1}\n"},
):
    """Starts a task."""

    kind: Annotated[TaskKind, Field(strict=False)]
    # settings of a command with Determined's names, as of `gangline cmd run --config-file`: YAML, or a JSON object
    config: str | dict[str, Any] = ""
    template: str | None = None  # template whose settings the configuration overrides
    code_sha256: str | None = None  # code that was uploaded before; a task without it has no files


class TaskAccess(Answer, record=view.TaskAccess, shows="is_ready path"): ...


class TaskAccessAnswer(Answer):
    access: TaskAccess


@router.post("/tasks")
async def start_task(body: NewTask, cases: KeyedCases) -> model.ExperimentAnswer:
    """Starts a command, a shell or a notebook on slots. The same Idempotency-Key starts nothing twice."""
    inherited = await cases.projects.inherit("", "", body.template or "", 0)
    values = await off_loop(_read_settings, body.config)
    config, config_warnings = await off_loop(read_config, plan_task(body.kind, values), inherited)
    code_sha256 = body.code_sha256
    if code_sha256 is None:
        archive = _empty_archive()
        code_sha256 = await cases.code.upload(hashlib.sha256(archive).hexdigest(), _once(archive))
    experiment, warnings = await cases.experiments.create(config.model_dump_json(), code_sha256, inherited.template)
    unique = list(dict.fromkeys([*config_warnings, *warnings]))
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment), warnings=unique)


@router.get("/tasks/{experiment_id}/access")
async def get_task_access(experiment_id: model.Int64, cases: Cases, response: Response) -> TaskAccessAnswer:
    """Returns the path of a notebook below the address of a gateway, with a token for a browser. For its owner and
    administrators. A shell is opened with `gangline shell open`."""
    response.headers["cache-control"] = "no-store"
    return TaskAccessAnswer.model_validate({"access": cases.tunnels.access(experiment_id)})


def _read_settings(config: str | dict[str, Any]) -> Mapping[str, Any]:
    """Raises GanglineError `config.*`."""
    values = (parse_document(config).values or {}) if isinstance(config, str) else config
    if not isinstance(values, Mapping):
        raise invalid("config.wrong_type", "the configuration is no mapping, such as resources: {slots: 1}")
    return values


@cache
def _empty_archive() -> bytes:
    """Returns a gzipped tar without files, always the same one."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressing, tarfile.open(fileobj=compressing, mode="w"):
        pass
    return packed.getvalue()


async def _once(archive: bytes) -> AsyncIterator[bytes]:
    yield archive
