"""The calls about models for the stand-in gateway. The tests of these calls themselves run real ones."""

# ruff: noqa: N802 - the names of the calls are those of the protos

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangline.v1 import registry_pb2 as pb
from tests.support.part_of_gateway import Servicer


class StandInModels(Servicer):
    """Every model that is asked for is the first one, and every version too. A change answers with it and changes
    nothing. The stand-in gateway provides the other members."""

    _answer: Callable[[str, Any, Callable[[], Any]], Any]

    def __init__(self) -> None:
        super().__init__()
        self.models: list[pb.ModelView] = []
        self.versions: list[pb.ModelVersionView] = []

    def ListModels(self, request: Any, context: Any) -> Any:
        answer = pb.ListModelsResponse(models=self.models, total=len(self.models))
        return self._answer("ListModels", context, lambda: answer)

    def GetModel(self, request: Any, context: Any) -> Any:
        return self._answer("GetModel", context, lambda: pb.GetModelResponse(model=self.models[0]))

    def ListModelVersions(self, request: Any, context: Any) -> Any:
        answer = pb.ListModelVersionsResponse(versions=self.versions, total=len(self.versions))
        return self._answer("ListModelVersions", context, lambda: answer)

    def GetModelVersion(self, request: Any, context: Any) -> Any:
        answer = pb.GetModelVersionResponse(version=self.versions[0])
        return self._answer("GetModelVersion", context, lambda: answer)

    def UpdateModel(self, request: Any, context: Any) -> Any:
        return self._answer("UpdateModel", context, lambda: pb.UpdateModelResponse(model=self.models[0].model))

    def UpdateModelVersion(self, request: Any, context: Any) -> Any:
        answer = pb.UpdateModelVersionResponse(version=self.versions[0].version)
        return self._answer("UpdateModelVersion", context, lambda: answer)

    def SetModelAlias(self, request: Any, context: Any) -> Any:
        return self._answer("SetModelAlias", context, lambda: pb.SetModelAliasResponse(model=self.models[0].model))
