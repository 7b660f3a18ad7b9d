"""The calls of SchedulerService that change models, their versions and their aliases."""

from __future__ import annotations

import time
from typing import Any

import structlog

from gangline.domain.experiment import TextChange
from gangline.domain.named_kind import MODEL
from gangline.domain.registry import Model, ModelChange, ModelVersion, ModelVersionChange, version_id
from gangline.domain.state import ProjectAction
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import registry_pb2 as pb
from services.scheduler.service.access import require_cluster
from services.scheduler.service.project_change_calls import ProjectChangeCalls
from services.scheduler.state.records import get
from services.scheduler.transition.project.model_version import (
    AliasRequest,
    VersionRequest,
    change_version,
    set_alias,
    version_of_request,
)
from services.scheduler.transition.project.rule import Caller

_log = structlog.get_logger(__name__)


class RegistryChangeCalls(ProjectChangeCalls):
    """Base of the service."""

    async def UpdateModel(  # noqa: N802 - grpc's name
        self, request: pb.SchedulerServiceUpdateModelRequest, _context: Any
    ) -> pb.SchedulerServiceUpdateModelResponse:
        action = wire.enum_member(ProjectAction, request.action)
        wanted = _wanted(wire.from_proto(ModelChange, request.change))
        answer = await self._change(MODEL, request, action, key=request.model_id, wanted=wanted)
        return pb.SchedulerServiceUpdateModelResponse(**answer)

    async def UpdateModelVersion(  # noqa: N802 - grpc's name
        self, request: pb.SchedulerServiceUpdateModelVersionRequest, _context: Any
    ) -> pb.SchedulerServiceUpdateModelVersionResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        action = wire.enum_member(ProjectAction, request.action)
        if action is None:
            raise invalid("request.action", f"{request.action} is no action of a version that this version knows")
        asked = VersionRequest(
            action,
            Caller.of(request),
            time.time(),
            request.model_id,
            request.number,
            request.checkpoint_id,
            wire.from_proto(ModelVersionChange, request.change),
            tuple(request.aliases),
        )
        change = await term.store.commit_asked(lambda records: change_version(records, asked))
        if action is ProjectAction.CREATE:
            # A repeated request changes nothing, and is answered with what it has made before.
            made = next(change.all_of(ModelVersion), None)
            version = made or version_of_request(term.state, request.model_id, request.request_id)
        else:
            version = term.state.find(ModelVersion, version_id(request.model_id, request.number))
        _log.info(
            "version of a model is changed",
            model_id=request.model_id,
            number=version.number if version is not None else request.number,
            action=str(action),
            user=request.user,
        )
        message = wire.to_proto(version) if version is not None else None
        return pb.SchedulerServiceUpdateModelVersionResponse(version=message, revision=term.state.revision)

    async def SetModelAlias(  # noqa: N802 - grpc's name
        self, request: pb.SchedulerServiceSetModelAliasRequest, _context: Any
    ) -> pb.SchedulerServiceSetModelAliasResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        asked = AliasRequest(
            Caller.of(request),
            time.time(),
            request.model_id,
            request.alias,
            request.version,
            request.expected_version if request.HasField("expected_version") else None,
        )
        change = await term.store.commit_asked(lambda records: set_alias(records, asked))
        if change:
            _log.info(
                "alias of a model is set",
                model_id=request.model_id,
                alias=request.alias,
                version=request.version,
                user=request.user,
            )
        model = get(term.state, Model, request.model_id)
        return pb.SchedulerServiceSetModelAliasResponse(model=wire.to_proto(model), revision=term.state.revision)


def _wanted(change: ModelChange) -> dict[str, Any]:
    """Returns the fields that the change sets, by the names of the record's fields."""
    wanted: dict[str, Any] = {
        "name": change.name,
        "description": change.description,
        "notes": change.notes,
        "workspace_id": change.workspace,
        "metadata_json": change.metadata_json,
    }
    labels = TextChange(
        add_labels=change.add_labels, remove_labels=change.remove_labels, replaces_labels=change.replaces_labels
    )
    if labels != TextChange():
        wanted["labels"] = labels
    return {name: value for name, value in wanted.items() if value is not None}
