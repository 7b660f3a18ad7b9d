"""Models, their versions and their aliases: lists, finds and changes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from gangline.config.layer.lookup import find_named, unknown_id
from gangline.config.layer.registry_check import check_alias, check_version_change, no_version
from gangline.domain.experiment import DEFAULT_WORKSPACE_ID
from gangline.domain.id import absent, find_by_prefix
from gangline.domain.named_kind import DEFAULT_WORKSPACE, MODEL, WORKSPACE
from gangline.domain.registry import (
    Model,
    ModelChange,
    ModelFilter,
    ModelVersion,
    ModelVersionChange,
    ModelVersionView,
    ModelView,
    version_id,
)
from gangline.domain.state import ProjectAction
from gangline.errors import ErrorKind, GanglineError, not_found
from gangline.protocol import wire
from gangline.v1 import registry_pb2 as pb
from services.common import keys
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.project import number_of_action
from services.gateway.usecase.shared.confirming import find_confirmed

_NO_CHANGE = ModelChange()
_NO_VERSION_CHANGE = ModelVersionChange()


class Registry:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader

    async def list_models(
        self, wanted: ModelFilter, offset: int = 0, limit: int = 0, *, is_exact: bool = False
    ) -> tuple[list[ModelView], int]:
        """Returns a page of the models that match, by name, and how many match. limit: 0 for all. is_exact: only the
        model whose whole name is that of the filter. Raises GanglineError `workspace.not_found`."""
        chosen_id = 0
        if is_exact:
            # Another gateway may have created it, or given it this name.
            try:
                await self._named(wanted.name_contains)
            except GanglineError as error:
                if error.kind is not ErrorKind.NOT_FOUND:
                    raise
        if wanted.workspace:
            workspace = await find_confirmed(
                self._mirror,
                lambda: find_named(WORKSPACE, wanted.workspace, self._mirror.state.workspaces.all()),
                keys.NEXT_PROJECT,
            )
            chosen_id = workspace.id
        models = sorted(
            (
                model
                for model in self._mirror.state.models.all()
                if wanted.matches(model)
                and chosen_id in (0, model.workspace_id)
                and not (is_exact and model.name != wanted.name_contains)
            ),
            key=lambda model: (model.name.casefold(), model.name),
        )
        return self._view_models(models[offset : offset + limit if limit else None]), len(models)

    async def find_model(self, name: str = "", model_id: int | None = None) -> ModelView:
        """Returns a model. model_id: in place of the name. Raises GanglineError `model.not_found`."""
        model = await self._named(name) if model_id is None else await self._model(model_id)
        return self._view_models([model])[0]

    def find_models(self, model_ids: Iterable[int]) -> list[ModelView]:
        """Returns those of these models that exist, by id."""
        found = (self._mirror.state.models.find(keys.model(model_id)) for model_id in sorted(model_ids))
        return self._view_models([model for model in found if model is not None])

    async def list_versions(
        self, model_id: int | None = None, checkpoint_id: str = "", offset: int = 0, limit: int = 0
    ) -> tuple[list[ModelVersionView], int]:
        """Returns a page of versions by model, the newest first, and how many there are. model_id: None for all models.
        checkpoint_id: only those that name it. Raises GanglineError `model.not_found`."""
        table = self._mirror.state.model_versions
        if model_id is not None:
            await self._model(model_id)
        versions = sorted(
            (
                version
                for version in (table.all() if model_id is None else table.of(model_id))
                if checkpoint_id in ("", version.checkpoint_id)
            ),
            key=lambda version: (version.model_id, -version.number),
        )
        shown = versions[offset : offset + limit if limit else None]
        return [self._view_version(version) for version in shown], len(versions)

    async def find_version(self, model_id: int, number: int = 0, alias: str = "") -> ModelVersionView:
        """Returns a version. alias: in place of the number. Raises GanglineError `model.not_found`,
        `model.no_version`, `model.no_alias`."""
        model = await self._model(model_id)

        def find() -> ModelVersion:
            present = self._mirror.state.models.find(keys.model(model_id)) or model
            wanted = present.version_of(alias) if alias else number
            version = self._mirror.state.model_versions.find(keys.model_version(version_id(model_id, wanted)))
            if version is not None:
                return version
            if not alias:
                raise no_version(model.name, number)
            names = ", ".join(each.name for each in present.aliases)
            has = f"it has {names}" if names else "it has none"
            raise not_found(
                "model.no_alias",
                f"model {model.name!r} has no alias {alias[:100]!r}; {has}; set it with: gangline model alias "
                f"{shlex.quote(model.name)} ALIAS VERSION",
            )

        return self._view_version(await find_confirmed(self._mirror, find, keys.model(model_id)))

    async def update_model(
        self, action: ProjectAction | None, model_id: int = 0, change: ModelChange = _NO_CHANGE
    ) -> Model | None:
        """Creates, edits, archives, unarchives or deletes a model. Returns None when it has been deleted."""
        request = pb.SchedulerServiceUpdateModelRequest(
            action=number_of_action(action),
            model_id=model_id,
            change=wire.to_proto(change),
            is_admin=self._caller.is_admin,
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UpdateModel, request)
        return wire.from_proto(Model, answer.model) if answer.HasField("model") else None

    async def update_version(
        self,
        action: ProjectAction | None,
        model_id: int,
        number: int = 0,
        change: ModelVersionChange = _NO_VERSION_CHANGE,
        *,
        checkpoint_id: str = "",
        aliases: Sequence[str] = (),
    ) -> ModelVersion | None:
        """Registers, edits or deletes a version. checkpoint_id, aliases: of a new version. Returns None when it has
        been deleted."""
        check_version_change(change)
        if action is ProjectAction.CREATE:
            self._check_whole_id(checkpoint_id)
        for alias in aliases:
            check_alias(alias)
        request = pb.SchedulerServiceUpdateModelVersionRequest(
            action=number_of_action(action),
            model_id=model_id,
            number=number,
            checkpoint_id=checkpoint_id,
            change=wire.to_proto(change),
            aliases=aliases,
            is_admin=self._caller.is_admin,
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UpdateModelVersion, request)
        return wire.from_proto(ModelVersion, answer.version) if answer.HasField("version") else None

    async def set_alias(self, model_id: int, alias: str, version: int, expected_version: int | None = None) -> Model:
        """Points an alias at a version; 0 removes it. expected_version: at which it has to point before, 0 for none;
        None for any."""
        request = pb.SchedulerServiceSetModelAliasRequest(
            model_id=model_id,
            alias=alias,
            version=version,
            expected_version=expected_version,
            is_admin=self._caller.is_admin,
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.SetModelAlias, request)
        return wire.from_proto(Model, answer.model)

    def _check_whole_id(self, checkpoint_id: str) -> None:
        """Refuses a part of an id, with the ids that begin with it. The leader refuses one that does not exist."""
        table = self._mirror.state.checkpoints
        if table.find(keys.checkpoint(checkpoint_id)) is None:
            near = find_by_prefix(checkpoint_id, (checkpoint.id for checkpoint in table.all()))
            if near or not checkpoint_id:
                raise absent("checkpoint", checkpoint_id, near)

    async def _model(self, model_id: int) -> Model:
        def find() -> Model:
            model = self._mirror.state.models.find(keys.model(model_id)) if model_id > 0 else None
            if model is None:
                raise unknown_id(MODEL, model_id)
            return model

        return await find_confirmed(self._mirror, find, keys.NEXT_PROJECT)

    async def _named(self, name: str) -> Model:
        return await find_confirmed(
            self._mirror, lambda: find_named(MODEL, name, self._mirror.state.models.all()), keys.NEXT_PROJECT
        )

    def _view_models(self, models: Sequence[Model]) -> list[ModelView]:
        state = self._mirror.state
        names = {DEFAULT_WORKSPACE_ID: DEFAULT_WORKSPACE.name}
        names |= {workspace.id: workspace.name for workspace in state.workspaces.all()}
        views = []
        for model in models:
            numbers = [version.number for version in state.model_versions.of(model.id)]
            views.append(ModelView(model, names.get(model.workspace_id, ""), len(numbers), max(numbers, default=0)))
        return views

    def _view_version(self, version: ModelVersion) -> ModelVersionView:
        model = self._mirror.state.models.find(keys.model(version.model_id))
        name, aliases = (model.name, model.aliases_of(version.number)) if model is not None else ("", ())
        return ModelVersionView(version, name, aliases)
