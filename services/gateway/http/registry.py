"""Routes and JSON of models, their versions and their aliases."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AliasPath, Field

from gangline.domain import registry
from gangline.domain.registry import ModelChange, ModelFilter, ModelVersionChange, ModelVersionView, ModelView
from gangline.domain.state import ProjectAction
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer, Document
from services.gateway.http.model import Body, Int64, label_change
from services.gateway.http.page import Limit, Offset, Pagination, describe_page
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.bundle import UserCases

router = APIRouter(prefix="/api/v1", tags=["models"], route_class=Route, responses=ERRORS)


class ModelAlias(Answer, record=registry.ModelAlias): ...


class ModelRow(
    Answer,
    record=ModelView,
    shows="id=model.id name=model.name description=model.description labels=model.labels username=model.owner "
    "archived=model.archived workspace_id=model.workspace_id workspace_name created_at=model.created_at "
    "updated_at=model.updated_at num_versions newest_version aliases=model.aliases",
):
    """Shows a model in a list, without its notes and its metadata."""


class Model(ModelRow):
    """Joins a model with its workspace and its versions' numbers."""

    notes: str = Field(validation_alias=AliasPath("model", "notes"))  # Markdown
    metadata: Document = Field(validation_alias=AliasPath("model", "metadata_json"))


class ModelVersionRow(
    Answer,
    record=ModelVersionView,
    shows="model_id=version.model_id model_name number=version.number name=version.name has_notes=version.has_notes "
    "aliases checkpoint_id=version.checkpoint_id trial_id=version.trial_id experiment_id=version.experiment_id "
    "total_batches=version.batches_completed metrics=version.metrics_json username=version.owner "
    "created_at=version.created_at",
):
    """Shows a version in a list, without its notes and its metadata."""


class ModelVersion(ModelVersionRow):
    """Joins a version with its model."""

    notes: str = Field(validation_alias=AliasPath("version", "notes"))  # Markdown
    metadata: Document = Field(validation_alias=AliasPath("version", "metadata_json"))


class ModelAnswer(Answer):
    model: Model


class ModelList(Answer):
    models: list[ModelRow]
    pagination: Pagination


class ModelVersionAnswer(Answer):
    version: ModelVersion


class ModelVersionList(Answer):
    versions: list[ModelVersionRow]
    pagination: Pagination


class Removed(Answer):
    pass


class ModelBody(Body, example={"name": "mnist", "description": "digits", "labels": ["vision"]}):
    """Describes a new model."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None  # Markdown
    workspace: str | None = None  # name of the workspace; Uncategorized for a new model that names none
    metadata: dict[str, Any] | None = None  # replaces all metadata
    labels: list[str] | None = None  # all of them


class ModelPatch(ModelBody, example={"description": "digits", "addLabels": ["vision"], "removeLabels": ["draft"]}):
    """Absent fields stay as they are."""

    add_labels: list[str] = Field(default_factory=list)  # a label that is there already stays
    remove_labels: list[str] = Field(default_factory=list)  # a label that is not there is no error


class ModelVersionBody(Body, example={"name": "first good one", "notes": "trained on *all* data"}):
    """Absent fields stay as they are."""

    name: str | None = None
    notes: str | None = None  # Markdown
    metadata: dict[str, Any] | None = None  # replaces all metadata


class NewModelVersion(
    ModelVersionBody, example={"checkpointUuid": "2b1b6f4e-0d0a-4c1c-9a55-9f0c0a8f1d11", "aliases": ["champion"]}
):
    """Names the checkpoint to register."""

    checkpoint_uuid: str
    aliases: list[str] = Field(default_factory=list)  # aliases that point at the new version from then on


class AliasBody(Body, example={"version": 3, "expectedVersion": 2}):
    version: Int64
    expected_version: Int64 | None = None  # version at which it has to point before, 0 for none; any if absent


@router.get("/models")
async def list_models(
    cases: Cases,
    *,
    name: Annotated[str, Query(description="Only models whose name contains this, whatever the case")] = "",
    exact: Annotated[bool, Query(description="Only the model whose whole name is `name`")] = False,
    workspace: Annotated[str, Query(description="Only models of the workspace of this name")] = "",
    username: Annotated[str, Query(description="Only models of this user")] = "",
    labels: Annotated[list[str], Query(description="Only models with all of these labels")] = [],  # noqa: B006 - FastAPI copies it
    archived: bool | None = None,
    offset: Offset = 0,
    limit: Limit = 0,
) -> ModelList:
    """Lists models by name, without notes and metadata. archived: only archived ones, or only the others."""
    wanted = ModelFilter(name, workspace, username, tuple(labels), archived)
    views, total = await cases.registry.list_models(wanted, offset, limit, is_exact=exact)
    return ModelList.model_validate({"models": views, "pagination": describe_page(offset, limit, len(views), total)})


@router.get("/models/{model_id}")
async def get_model(model_id: Int64, cases: Cases) -> ModelAnswer:
    return await _model_answer(cases, model_id)


@router.post("/models")
async def post_model(body: ModelBody, cases: KeyedCases) -> ModelAnswer:
    """Creates a model. The same Idempotency-Key creates nothing twice."""
    created = await cases.registry.update_model(ProjectAction.CREATE, change=_change(body))
    return await _model_answer(cases, created.id if created is not None else 0)


@router.patch("/models/{model_id}")
async def patch_model(model_id: Int64, body: ModelPatch, cases: KeyedCases) -> ModelAnswer:
    """Changes a model. `addLabels` and `removeLabels` leave the labels that others set meanwhile; `labels` replaces
    all."""
    change = replace(_change(body), **label_change(body.labels, body.add_labels, body.remove_labels))
    await cases.registry.update_model(ProjectAction.EDIT, model_id, change)
    return await _model_answer(cases, model_id)


@router.delete("/models/{model_id}")
async def delete_model(model_id: Int64, cases: KeyedCases) -> Removed:
    """Deletes a model without versions."""
    await cases.registry.update_model(ProjectAction.DELETE, model_id)
    return Removed()


@router.post("/models/{model_id}/archive")
async def archive_model(model_id: Int64, cases: KeyedCases) -> ModelAnswer:
    """Keeps new versions out of the model."""
    await cases.registry.update_model(ProjectAction.ARCHIVE, model_id)
    return await _model_answer(cases, model_id)


@router.post("/models/{model_id}/unarchive")
async def unarchive_model(model_id: Int64, cases: KeyedCases) -> ModelAnswer:
    await cases.registry.update_model(ProjectAction.UNARCHIVE, model_id)
    return await _model_answer(cases, model_id)


@router.get("/models/{model_id}/versions")
async def list_model_versions(
    model_id: Int64, cases: Cases, *, offset: Offset = 0, limit: Limit = 0
) -> ModelVersionList:
    """Lists the versions of a model without notes and metadata, the newest first."""
    views, total = await cases.registry.list_versions(model_id, "", offset, limit)
    return ModelVersionList.model_validate(
        {"versions": views, "pagination": describe_page(offset, limit, len(views), total)}
    )


@router.get("/model-versions")
async def list_versions(
    cases: Cases,
    *,
    checkpoint_id: Annotated[str, Query(alias="checkpointId", description="Only versions of this checkpoint")] = "",
    offset: Offset = 0,
    limit: Limit = 0,
) -> ModelVersionList:
    """Lists the versions of all models without notes and metadata, by model, the newest first."""
    views, total = await cases.registry.list_versions(None, checkpoint_id, offset, limit)
    return ModelVersionList.model_validate(
        {"versions": views, "pagination": describe_page(offset, limit, len(views), total)}
    )


@router.get("/models/{model_id}/versions/{number}")
async def get_model_version(model_id: Int64, number: Int64, cases: Cases) -> ModelVersionAnswer:
    return await _version_answer(cases, model_id, number)


@router.get("/models/{model_id}/aliases/{alias}")
async def get_aliased_version(model_id: Int64, alias: str, cases: Cases) -> ModelVersionAnswer:
    """Shows the version at which an alias points."""
    view = await cases.registry.find_version(model_id, alias=alias)
    return ModelVersionAnswer(version=ModelVersion.model_validate(view))


@router.post("/models/{model_id}/versions")
async def post_model_version(model_id: Int64, body: NewModelVersion, cases: KeyedCases) -> ModelVersionAnswer:
    """Registers a checkpoint as the next version. The checkpoint is kept as long as the version exists. The same
    Idempotency-Key registers nothing twice."""
    made = await cases.registry.update_version(
        ProjectAction.CREATE,
        model_id,
        change=_version_change(body),
        checkpoint_id=body.checkpoint_uuid,
        aliases=tuple(body.aliases),
    )
    return await _version_answer(cases, model_id, made.number if made is not None else 0)


@router.patch("/models/{model_id}/versions/{number}")
async def patch_model_version(
    model_id: Int64, number: Int64, body: ModelVersionBody, cases: KeyedCases
) -> ModelVersionAnswer:
    await cases.registry.update_version(ProjectAction.EDIT, model_id, number, _version_change(body))
    return await _version_answer(cases, model_id, number)


@router.delete("/models/{model_id}/versions/{number}")
async def delete_model_version(model_id: Int64, number: Int64, cases: KeyedCases) -> Removed:
    """Deletes a version at which no alias points. Its checkpoint stays until something else deletes it."""
    await cases.registry.update_version(ProjectAction.DELETE, model_id, number)
    return Removed()


@router.put("/models/{model_id}/aliases/{alias}")
async def put_model_alias(model_id: Int64, alias: str, body: AliasBody, cases: KeyedCases) -> ModelAnswer:
    """Points an alias at a version. Version 0 removes the alias."""
    await cases.registry.set_alias(model_id, alias, body.version, body.expected_version)
    return await _model_answer(cases, model_id)


@router.delete("/models/{model_id}/aliases/{alias}")
async def delete_model_alias(model_id: Int64, alias: str, cases: KeyedCases) -> ModelAnswer:
    """Removes an alias. Removing one that is not there changes nothing."""
    await cases.registry.set_alias(model_id, alias, 0)
    return await _model_answer(cases, model_id)


def _change(body: ModelBody) -> ModelChange:
    return ModelChange(
        name=body.name,
        description=body.description,
        notes=body.notes,
        workspace=body.workspace,
        metadata_json=_text(body.metadata),
        **label_change(body.labels, [], []),
    )


def _version_change(body: ModelVersionBody) -> ModelVersionChange:
    return ModelVersionChange(body.name, body.notes, _text(body.metadata))


def _text(metadata: dict[str, Any] | None) -> str | None:
    return None if metadata is None else json.dumps(metadata, ensure_ascii=False)


async def _model_answer(cases: UserCases, model_id: int) -> ModelAnswer:
    return ModelAnswer(model=Model.model_validate(await cases.registry.find_model(model_id=model_id)))


async def _version_answer(cases: UserCases, model_id: int, number: int) -> ModelVersionAnswer:
    return ModelVersionAnswer(version=ModelVersion.model_validate(await cases.registry.find_version(model_id, number)))
