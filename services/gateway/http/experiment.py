"""Routes of experiments, trials and code."""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field

from gangline.config import ExperimentConfig, named_home, parse_config, read_config
from gangline.config.parse import NOTHING_INHERITED
from gangline.domain.experiment import ExperimentFilter, Inheritance
from gangline.domain.state import ExperimentAction, Outcome, State, TaskKind
from gangline.errors import invalid
from gangline.protocol.rpc import CHUNK_BYTES
from services.gateway.http import model, queue_model
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.page import ExperimentPage, Limit, Offset, TrialPage, describe_page
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.bundle import UserCases
from services.gateway.usecase.experiment import ExperimentChange
from services.gateway.usecase.shared.following import begin
from services.gateway.usecase.shared.parsing import off_loop


@dataclass(frozen=True, slots=True)
class ExperimentQuery:
    """Selects experiments, with the names of Determined's parameters."""

    labels: Annotated[list[str], Query(default_factory=list)]
    states: Annotated[list[State | Outcome], Query(default_factory=list)]
    users: Annotated[list[str], Query(default_factory=list)]
    # The API's names are in camel case.
    taskKinds: Annotated[list[TaskKind], Query(default_factory=list)]  # noqa: N815
    name: Annotated[str, Query()] = ""

    def to_filter(self) -> ExperimentFilter:
        return ExperimentFilter(
            labels=tuple(self.labels),
            states=tuple(value for value in self.states if isinstance(value, State)),
            outcomes=tuple(value for value in self.states if isinstance(value, Outcome)),
            owners=tuple(self.users),
            name_contains=self.name,
            task_kinds=tuple(self.taskKinds),
        )


IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]
router = APIRouter(prefix="/api/v1", route_class=Route, responses=ERRORS)

# A multiple of four characters, so that each part is valid base64 by itself.
_PART_CHARACTERS = 4 << 20


@router.post("/experiments", tags=["experiments"])
async def create_experiment(
    body: model.CreateExperiment,
    cases: Cases,
    idempotency_key: IdempotencyKey = None,
) -> model.ExperimentAnswer:
    """Creates an experiment from its configuration and its code. The same request id, in the body or as the header
    Idempotency-Key, gives the same experiment again, also after an answer was lost."""
    cases = cases.with_request_id(_one_request_id(body.request_id, idempotency_key))
    inherited = await _inherit(body, cases)
    config, config_warnings = await _read(body.config, inherited)
    if body.project_id:
        config = config.model_copy(update={"workspace": inherited.workspace, "project": inherited.project})
    code_sha256 = await _take_code(body, cases)
    experiment, warnings = await cases.experiments.create(
        config.model_dump_json(),
        code_sha256,
        inherited.template,
        is_paused=not body.activate,
        forked_from=body.forked_from or 0,
    )
    # Both sides check the configuration, so they may give the same warning.
    unique = list(dict.fromkeys([*config_warnings, *warnings]))
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment), warnings=unique)


@router.get("/experiments", tags=["experiments"])
async def list_experiments(
    cases: Cases,
    *,
    limit: model.Int64 = 0,
    beforeId: model.Int64 = 0,  # noqa: N803  the API's names are in camel case
    requestId: str = "",  # noqa: N803  as above
    archived: bool | None = None,
    workspace: str = "",
    project: str = "",
    projectId: model.Int64 = 0,  # noqa: N803  as above
    offset: Offset = 0,
    wanted: Annotated[ExperimentQuery, Depends()],
) -> ExperimentPage:
    """Lists experiments, the newest first. limit: 50 when absent, at most 1000. beforeId: only those with a smaller
    id. requestId: only the one that this request made; 404 when it certainly made none so far, 503 while that
    cannot be known. labels, states, users, name: all of the labels, one of the states or outcomes, one of the
    users, part of the name. taskKinds: tasks of these kinds in place of trainings. archived: only archived ones, or
    only the others; both when absent. workspace, project: names; projectId in place of them. offset counts from the
    newest; experiments that are created meanwhile shift it, but not beforeId."""
    if requestId:
        found = [await cases.experiments.find(requestId)]
        return ExperimentPage.model_validate({"experiments": found, "pagination": describe_page(0, limit, 1, 1)})
    project_ids = await cases.projects.select(workspace, project, projectId)
    listed, total = cases.experiments.list(
        limit, beforeId, archived, project_ids=project_ids, wanted=wanted.to_filter(), offset=offset
    )
    pagination = describe_page(offset, limit, len(listed), total)
    return ExperimentPage.model_validate({"experiments": listed, "pagination": pagination})


@router.get("/experiments/{experiment_id}", tags=["experiments"])
async def get_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentView:
    return model.ExperimentView.model_validate(await cases.experiments.view(experiment_id))


@router.patch("/experiments/{experiment_id}", tags=["experiments"])
async def patch_experiment(
    experiment_id: model.Int64, body: queue_model.PatchExperiment, cases: Cases
) -> model.ExperimentAnswer:
    """Changes the experiment's resources while it lives, or at any time its name, description, notes and labels, or
    what it keeps. Checkpoints that a new policy does not keep are deleted; `preview-gc` lists them before."""
    return await _change(cases, experiment_id, body.change())


@router.post("/experiments/{experiment_id}/kill", tags=["experiments"])
async def kill_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentAnswer:
    """Ends the experiment at once. A second call changes nothing."""
    experiment = await cases.experiments.kill(experiment_id)
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))


@router.post("/experiments/{experiment_id}/pause", tags=["experiments"])
async def pause_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentAnswer:
    """Pauses the experiment: its trials checkpoint and give their slots back; none starts before it is activated."""
    return await _change(cases, experiment_id, ExperimentAction.PAUSE)


@router.post("/experiments/{experiment_id}/activate", tags=["experiments"])
async def activate_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentAnswer:
    """Activates a paused experiment: its trials continue from their checkpoints."""
    return await _change(cases, experiment_id, ExperimentAction.ACTIVATE)


@router.post("/experiments/{experiment_id}/cancel", tags=["experiments"])
async def cancel_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentAnswer:
    """Cancels the experiment: its trials checkpoint, then it ends."""
    return await _change(cases, experiment_id, ExperimentAction.CANCEL)


@router.post("/preview-hp-search", tags=["experiments"])
async def preview_search(body: model.PreviewSearch, cases: Cases) -> model.SearchPreview:
    """Returns the trials that a configuration would make."""
    config, _ = await _read(body.config)
    preview = await cases.experiments.preview_search(config.model_dump_json(), body.limit)
    return model.SearchPreview.model_validate(preview)


@router.post("/trials/{trial_id}/kill", tags=["trials"])
async def kill_trial(trial_id: str, cases: Cases) -> model.TrialAnswer:
    """Kills one trial; the others of its experiment continue."""
    trial = await cases.experiments.kill_trial(trial_id)
    return model.TrialAnswer(trial=model.Trial.model_validate(trial))


@router.get("/experiments/{experiment_id}/trials", tags=["trials"])
async def list_trials(
    experiment_id: model.Int64,
    cases: Cases,
    *,
    offset: Offset = 0,
    limit: Limit = 0,
) -> TrialPage:
    """Lists the trials of an experiment by their numbers."""
    trials, total = await cases.experiments.view_trials(experiment_id, offset, limit)
    pagination = describe_page(offset, limit, len(trials), total)
    return TrialPage.model_validate({"trials": trials, "pagination": pagination})


@router.get("/trials/{trial_id}", tags=["trials"])
async def get_trial(trial_id: str, cases: Cases) -> model.TrialView:
    return model.TrialView.model_validate(await cases.experiments.view_trial(trial_id))


@router.get("/experiments/{experiment_id}/code", tags=["code"], response_class=StreamingResponse)
async def download_code(
    experiment_id: model.Int64, cases: Cases, version: Annotated[int, Query(ge=0)] = 0
) -> StreamingResponse:
    """Returns the experiment's code, a gzipped tar. `version` counts from 1, the code with which it was created; 0 is
    the present code. For its owner and administrators."""
    chunks = await begin(cases.code.read(experiment_id, version))
    return StreamingResponse(chunks, media_type="application/gzip")


@router.put("/code/{code_sha256}", tags=["code"])
async def upload_code(code_sha256: str, request: Request, cases: Cases) -> model.CodeAnswer:
    """Stores the code folder: the body is a gzipped tar of it, and the path names the archive's sha256."""
    return model.CodeAnswer(code_sha256=await cases.code.upload(code_sha256, request.stream()))


def _one_request_id(in_body: str | None, in_header: str | None) -> str | None:
    """Returns the request id of the body or the header; None without one. Raises GanglineError `request.two_ids`."""
    if in_body and in_header and in_body != in_header:
        raise invalid("request.two_ids", "requestId and the header Idempotency-Key differ; send one of them")
    return in_body or in_header or None


async def _change(cases: UserCases, experiment_id: model.Int64, change: ExperimentChange) -> model.ExperimentAnswer:
    experiment = await cases.experiments.update(experiment_id, (change,))
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))


async def _read(
    config: str | dict[str, Any], inherited: Inheritance = NOTHING_INHERITED
) -> tuple[ExperimentConfig, list[str]]:
    return await off_loop(parse_config if isinstance(config, str) else read_config, config, inherited)


async def _inherit(body: model.CreateExperiment, cases: UserCases) -> Inheritance:
    """Returns the project of the new experiment, and the settings of workspace, project and template."""
    workspace, project = await off_loop(named_home, body.config)
    return await cases.projects.inherit(workspace, project, body.template or "", body.project_id or 0)


async def _take_code(body: model.CreateExperiment | ContinueBody, cases: UserCases) -> str:
    """Returns the sha256 of the code, which is stored now or was before."""
    if (body.code_archive is None) == (body.code_sha256 is None):
        raise invalid("code.one_of", "give the code either as codeArchive (a gzipped tar in base64) or as codeSha256")
    if body.code_sha256 is not None:
        return body.code_sha256
    archive = await off_loop(_decode, body.code_archive or "")
    return await cases.code.upload(await off_loop(_sha256, archive), _chunks(archive))


def _decode(text: str) -> bytes:
    """Decodes base64 in parts, because no other thread runs while one part is decoded."""
    archive = bytearray()
    try:
        for start in range(0, len(text), _PART_CHARACTERS):
            part = text[start : start + _PART_CHARACTERS]
            if "=" in part and start + len(part) < len(text):
                raise ValueError("it goes on after its padding")
            archive += binascii.a2b_base64(part, strict_mode=True)
    except ValueError as failure:
        raise invalid("code.corrupt", f"codeArchive is no base64 ({failure})") from failure
    return bytes(archive)


def _sha256(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


async def _chunks(archive: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(archive), CHUNK_BYTES):
        yield archive[start : start + CHUNK_BYTES]


class DeletionAnswer(Answer):
    experiment: model.Experiment | None  # null once it has been deleted


@router.delete("/experiments/{experiment_id}", tags=["experiments"])
async def delete_experiment(experiment_id: model.Int64, cases: Cases) -> DeletionAnswer:
    """Deletes an ended experiment with its checkpoints, TensorBoard files, logs, metrics, and its code where no other
    experiment has the same. `experiment` is null once it has been deleted. A second call changes nothing."""
    experiment = await cases.removals.delete(experiment_id)
    return DeletionAnswer.model_validate({"experiment": experiment})


class ContinueBody(model.Body, example={"overrides": {"searcher.max_length.batches": 2000}}):
    """Continues an experiment, with other code if one of codeArchive and codeSha256 is given."""

    # new values of the configuration by dotted keys, such as {"searcher.max_length.batches": 200}
    overrides: dict[str, Any] = Field(default_factory=dict)
    code_archive: str | None = None  # gzipped tar, in base64
    code_sha256: str | None = None  # code that was uploaded before


@router.post("/experiments/{experiment_id}/continue", tags=["experiments"])
async def continue_experiment(
    experiment_id: model.Int64, body: ContinueBody, cases: KeyedCases
) -> model.ExperimentAnswer:
    """Goes on with the trial of an ended experiment, from its newest checkpoint. For experiments of one trial."""
    has_code = body.code_archive is not None or body.code_sha256 is not None
    code_sha256 = await _take_code(body, cases) if has_code else ""
    experiment, warnings = await cases.experiments.resume(experiment_id, json.dumps(body.overrides), code_sha256)
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment), warnings=warnings)


@router.post("/experiments/{experiment_id}/archive", tags=["experiments"])
async def archive_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentAnswer:
    """Takes an ended experiment out of listings; nothing else changes."""
    experiment = await cases.removals.archive(experiment_id)
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))


@router.post("/experiments/{experiment_id}/unarchive", tags=["experiments"])
async def unarchive_experiment(experiment_id: model.Int64, cases: Cases) -> model.ExperimentAnswer:
    """Shows an archived experiment in listings again."""
    experiment = await cases.removals.unarchive(experiment_id)
    return model.ExperimentAnswer(experiment=model.Experiment.model_validate(experiment))
