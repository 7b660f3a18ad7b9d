"""Follows what changes in the whole cluster, after a revision of etcd, and the reports of some trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from gangline.domain.history import StoredMetrics
from gangline.domain.id import experiment_id_of
from services.common import keys
from services.gateway.history.reader import Reader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.change_log import Entry, Topic
from services.gateway.mirror.cluster_state import ClusterState
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
        """Returns what `ChangeLog.since` returns, without entries of experiments and models that the caller does not
        see. A move of experiments into other projects, where they may be seen or not, counts as a change of homes."""
        entries, state = self._mirror.log.since(revision), self._mirror.state
        if entries is None or state.whole is state:
            return entries
        return [
            ((Topic.HOME, key), at) if topic is Topic.MOVED else ((topic, key), at)
            for (topic, key), at in entries
            if self._sees(state, topic, key)
        ]

    def _sees(self, state: ClusterState, topic: Topic, key: int | str) -> bool:
        """Returns True also for what is there no more, because the caller may have seen it."""
        if topic in (Topic.EXPERIMENT, Topic.TRIALS, Topic.TRIAL):
            record_key = keys.experiment(int(str(key).partition(".")[0]))
            return state.whole.experiments.find(record_key) is None or state.experiments.find(record_key) is not None
        if topic is Topic.MODEL:
            record_key = keys.model(int(key))
            return state.whole.models.find(record_key) is None or state.models.find(record_key) is not None
        return True

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

    def seen_trials(self, trial_ids: Sequence[str]) -> tuple[str, ...]:
        """Returns those of these trials that the caller sees at this moment."""
        trials = self._mirror.state.trials
        return tuple(trial_id for trial_id in trial_ids if trials.find(keys.trial(trial_id)) is not None)

    async def metrics(self, trial_ids: Sequence[str], after_id: int, limit: int) -> list[StoredMetrics]:
        return await self._reader.metrics_of(trial_ids, after_id, limit)

    async def newest_metrics_id(self) -> int:
        return await self._reader.newest_metrics_id()
