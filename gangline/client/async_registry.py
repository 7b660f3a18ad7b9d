"""The twin of gangline.client.registry for asyncio.

Written by scripts/generate_async_client.py from registry.py. Change that file, then run `make async-client`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from gangline.client.async_cluster_calls import AsyncClusterCalls
from gangline.client.call_message import new_request_id
from gangline.domain.document import check_document
from gangline.domain.registry import (
    Model,
    ModelChange,
    ModelFilter,
    ModelVersion,
    ModelVersionChange,
    ModelVersionView,
    ModelView,
)
from gangline.domain.state import ProjectAction
from gangline.protocol.wire import enum_number, from_proto, to_proto
from gangline.v1 import registry_pb2 as pb

_EVERY_MODEL = ModelFilter()
_NO_CHANGE = ModelChange()
_NO_VERSION_CHANGE = ModelVersionChange()


class ModelSettings(TypedDict, total=False):
    """What users write about a model. An absent one stays as it is."""

    description: str | None
    notes: str | None  # Markdown
    workspace: str | None  # the name of its workspace
    metadata: Mapping[str, Any] | None  # replaces all metadata
    add_labels: Sequence[str]
    remove_labels: Sequence[str]


class AsyncRegistryMethods(AsyncClusterCalls):
    """Base of Client. A change of None leaves a value as it is.

    A version is named by its number, or by an alias where one is read. Changes raise GanglineError `model.*`, and
    `auth.not_owner` for users who are neither the model's owner nor administrators.
    """

    async def list_models(
        self, limit: int = 50, offset: int = 0, wanted: ModelFilter = _EVERY_MODEL
    ) -> list[ModelView]:
        """Returns models, by name. limit: 0 for all. offset: how many to leave out at the beginning. wanted: conditions
        on them."""
        request = pb.ListModelsRequest(filter=to_proto(wanted), limit=limit, offset=offset)
        answer = await self._connection.call(self._stub.ListModels, request)
        return [from_proto(ModelView, message) for message in answer.models]

    async def find_model(self, name: str) -> ModelView:
        """Returns a model. Raises GanglineError `model.not_found`, with the nearest name."""
        answer = await self._connection.call(self._stub.GetModel, pb.GetModelRequest(name=name))
        return from_proto(ModelView, answer.model)

    async def create_model(
        self, name: str, *, request_id: str | None = None, **settings: Unpack[ModelSettings]
    ) -> Model:
        """Creates a model. settings: as in `ModelSettings`."""
        return await self._change_model(ProjectAction.CREATE, name, request_id, _change_of(name, **settings))

    async def edit_model(
        self,
        name: str,
        *,
        new_name: str | None = None,
        request_id: str | None = None,
        **settings: Unpack[ModelSettings],
    ) -> Model:
        """Changes a model. settings: as in `ModelSettings`."""
        return await self._change_model(ProjectAction.EDIT, name, request_id, _change_of(new_name, **settings))

    async def archive_model(self, name: str, request_id: str | None = None) -> Model:
        """Keeps new versions out of it."""
        return await self._change_model(ProjectAction.ARCHIVE, name, request_id)

    async def unarchive_model(self, name: str, request_id: str | None = None) -> Model:
        """Lets new versions into it again."""
        return await self._change_model(ProjectAction.UNARCHIVE, name, request_id)

    async def delete_model(self, name: str, request_id: str | None = None) -> None:
        """Deletes it. Raises GanglineError `model.not_empty` while it has versions."""
        await self._change_model(ProjectAction.DELETE, name, request_id)

    async def list_model_versions(
        self, name: str = "", limit: int = 50, offset: int = 0, *, checkpoint_id: str = ""
    ) -> list[ModelVersionView]:
        """Returns the versions of a model, the newest first; those of all models for an empty name. limit: 0 for all.
        checkpoint_id: only versions that name this checkpoint; empty for all."""
        model_id = (await self.find_model(name)).model.id if name else 0
        request = pb.ListModelVersionsRequest(
            model_id=model_id, checkpoint_id=checkpoint_id, limit=limit, offset=offset
        )
        answer = await self._connection.call(self._stub.ListModelVersions, request)
        return [from_proto(ModelVersionView, message) for message in answer.versions]

    async def find_model_version(self, name: str, version: int | str) -> ModelVersionView:
        """Returns a version. version: its number, or an alias such as "champion". Raises GanglineError
        `model.no_version`, `model.no_alias`."""
        request = pb.GetModelVersionRequest(model_id=(await self.find_model(name)).model.id)
        if isinstance(version, str):
            request.alias = version
        else:
            request.number = version
        answer = await self._connection.call(self._stub.GetModelVersion, request)
        return from_proto(ModelVersionView, answer.version)

    async def register_model_version(
        self,
        name: str,
        checkpoint_id: str,
        *,
        version_name: str | None = None,
        notes: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        aliases: Sequence[str] = (),
        request_id: str | None = None,
    ) -> ModelVersion:
        """Registers a checkpoint as the next version of a model. The checkpoint is kept as long as the version exists.
        aliases: point at the new version from then on."""
        change = ModelVersionChange(version_name, notes, _text(metadata))
        request = pb.UpdateModelVersionRequest(checkpoint_id=checkpoint_id, aliases=aliases)
        return await self._change_version(ProjectAction.CREATE, name, request, request_id, change)

    async def edit_model_version(
        self,
        name: str,
        version: int,
        *,
        version_name: str | None = None,
        notes: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> ModelVersion:
        """Changes the name, the notes or the metadata of a version."""
        change = ModelVersionChange(version_name, notes, _text(metadata))
        request = pb.UpdateModelVersionRequest(number=version)
        return await self._change_version(ProjectAction.EDIT, name, request, request_id, change)

    async def delete_model_version(self, name: str, version: int, request_id: str | None = None) -> None:
        """Deletes a version, but not its checkpoint. Raises GanglineError `model.aliased` while an alias points at
        it."""
        await self._change_version(ProjectAction.DELETE, name, pb.UpdateModelVersionRequest(number=version), request_id)

    async def set_model_alias(
        self,
        name: str,
        alias: str,
        version: int,
        expected_version: int | None = None,
        request_id: str | None = None,
    ) -> Model:
        """Points an alias at a version. expected_version: at which it has to point before, 0 for none; None for any.
        Raises GanglineError `model.alias_moved`."""
        request = pb.SetModelAliasRequest(
            request_id=request_id or new_request_id(),
            model_id=(await self.find_model(name)).model.id,
            alias=alias,
            version=version,
            expected_version=expected_version,
        )
        return from_proto(Model, (await self._connection.call(self._stub.SetModelAlias, request)).model)

    async def remove_model_alias(
        self, name: str, alias: str, expected_version: int | None = None, request_id: str | None = None
    ) -> Model:
        """Removes an alias; one that is not there changes nothing. expected_version: as in `set_model_alias`."""
        return await self.set_model_alias(name, alias, 0, expected_version, request_id)

    async def _change_model(
        self, action: ProjectAction, name: str, request_id: str | None, change: ModelChange = _NO_CHANGE
    ) -> Model:
        """Returns an empty record for a deletion."""
        request = pb.UpdateModelRequest(request_id=request_id or new_request_id(), change=to_proto(change))
        request.action = enum_number(action)  # type: ignore[assignment]  # an enum's number is what protobuf takes
        if action is not ProjectAction.CREATE:
            request.model_id = (await self.find_model(name)).model.id
        return from_proto(Model, (await self._connection.call(self._stub.UpdateModel, request)).model)

    async def _change_version(
        self,
        action: ProjectAction,
        name: str,
        request: pb.UpdateModelVersionRequest,
        request_id: str | None,
        change: ModelVersionChange = _NO_VERSION_CHANGE,
    ) -> ModelVersion:
        """Returns an empty record for a deletion. request: says which version, or what a new one is made of."""
        request.request_id = request_id or new_request_id()
        request.model_id = (await self.find_model(name)).model.id
        request.action = enum_number(action)  # type: ignore[assignment]  # as above
        request.change.CopyFrom(to_proto(change))
        return from_proto(ModelVersion, (await self._connection.call(self._stub.UpdateModelVersion, request)).version)


def _change_of(
    name: str | None,
    *,
    description: str | None = None,
    notes: str | None = None,
    workspace: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    add_labels: Sequence[str] = (),
    remove_labels: Sequence[str] = (),
) -> ModelChange:
    """Raises TypeError for a setting that there is not."""
    return ModelChange(name, description, notes, workspace, _text(metadata), tuple(add_labels), tuple(remove_labels))


def _text(metadata: Mapping[str, Any] | None) -> str | None:
    """Raises GanglineError `document.invalid`."""
    if metadata is None:
        return None
    text = json.dumps(dict(metadata), ensure_ascii=False)
    check_document(text, "the metadata")
    return text
