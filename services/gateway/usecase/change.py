"""Follows what changes in the whole cluster, after a revision of etcd, and the reports of some trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from gangline.domain.history import StoredMetrics
from gangline.domain.id import experiment_id_of
from services.gateway.history.reader import Reader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.change_log import Entry
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.notification import Notification
from services.gateway.usecase.shared.following import Following
from services.gateway.usecase.shared.view import Views


class Changes:
    def __init__(self, caller: Caller, mirror: Watched, views: Views, reader: Reader, *, following: Following) -> None:
        self._caller = caller
        self._mirror = mirror
        self._views = views
        self._reader = reader
        self._following = following

    @property
    def revision(self) -> int:
        return self._mirror.state.revision

    @property
    def is_alone(self) -> bool:
        """Whether this is the only gateway, so that it learns of every new report by itself."""
        return sum(instance.kind == "gateway" for instance in self._mirror.state.instances.all()) < 2

    def since(self, revision: int) -> list[tuple[Entry, int]] | None:
        """Returns what `ChangeLog.since` returns."""
        return self._mirror.log.since(revision)

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Returns what `Mirror.wait_for_revision` returns."""
        return await self._mirror.wait_for_revision(revision, seconds)

    def listen(self, trial_ids: Collection[str]) -> AbstractContextManager[Notification]:
        return self._following.listen_to_all({experiment_id_of(trial_id) for trial_id in trial_ids})

    async def wait(self, notification: Notification, seconds: float) -> None:
        await self._following.wait(notification, seconds)

    async def check_trials(self, trial_ids: Collection[str]) -> None:
        """Raises GanglineError `trial.not_found`."""
        for trial_id in trial_ids:
            await self._views.confirm(trial_id=trial_id)
            self._views.trial(trial_id)

    async def metrics(self, trial_ids: Sequence[str], after_id: int, limit: int) -> list[StoredMetrics]:
        return await self._reader.metrics_of(trial_ids, after_id, limit)

    async def newest_metrics_id(self) -> int:
        return await self._reader.newest_metrics_id()
