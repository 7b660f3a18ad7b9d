"""Adds ended allocations to the history, from the trials' records in the mirror.

A trial's record names its newest ended attempts, so a gateway that was away while an attempt began and ended still
finds it. After each listing of etcd all trials are read, and afterwards the trials whose allocations have ended. One
task of this module lives as long as the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

import sqlalchemy as sa
import structlog

from gangline.domain.experiment import Trial
from gangline.domain.id import allocation_id
from gangline.domain.usage import AllocationUsage
from gangline.errors import unavailable
from services.common import keys
from services.gateway.history.usage import store_usage
from services.gateway.mirror import metrics
from services.gateway.mirror.cluster_state import ClusterState
from services.gateway.mirror.mirror import CLEANUP_NOTIFICATION, Watched

# Pause after each step, so that a burst of short allocations takes few transactions from trial runners' records.
PAUSE_SECONDS = 1.0
# Pause when nothing has ended.
IDLE_SECONDS = 3600.0

log = structlog.get_logger(__name__)


class UsageRecorder:
    """Records in the background. Call `start` and `stop` once each."""

    def __init__(self, mirror: Watched, engine: sa.Engine) -> None:
        self._mirror = mirror
        self._engine = engine
        self._lock = asyncio.Lock()
        # The state of which all trials have been read.
        self._scanned: ClusterState | None = None
        self._unstored: dict[str, AllocationUsage] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="usage")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def record(self) -> None:
        """Returns once every allocation that had ended in the mirror is in the history. Raises GanglineError
        `history.not_stored`; the next call stores what this one has not."""
        async with self._lock:
            state = self._mirror.state
            trial_ids = list(state.ended_trial_ids)
            state.ended_trial_ids.clear()
            trials = state.trials.all() if state is not self._scanned else _find_trials(state, trial_ids)
            self._unstored |= {record.allocation_id: record for record in _usages_of(state, trials)}
            self._scanned = state
            records = list(self._unstored.values())
            if records:
                await self._store(records)
                self._unstored.clear()

    async def _store(self, records: list[AllocationUsage]) -> None:
        try:
            await asyncio.to_thread(store_usage, self._engine, records)
        except sa.exc.DBAPIError as failure:
            metrics.USAGE_FAILURES.inc()
            raise unavailable(
                "history.not_stored", f"the usage cannot be stored now: {str(failure.orig).splitlines()[0]}"
            ) from failure

    async def _run(self) -> None:
        with self._mirror.changes.listen(CLEANUP_NOTIFICATION) as notification:
            while True:
                notification.clear()
                seconds = IDLE_SECONDS
                try:
                    await self.record()
                except Exception as failure:  # noqa: BLE001  top of a long-lived task: it is tried again
                    log.warning("usage could not be stored, trying again", reason=str(failure))
                    seconds = 0.0
                await asyncio.sleep(PAUSE_SECONDS)
                await notification.wait(seconds)


def _find_trials(state: ClusterState, trial_ids: Iterable[str]) -> Iterator[Trial]:
    for trial_id in trial_ids:
        trial = state.trials.find(keys.trial(trial_id))
        if trial is not None:
            yield trial


def _usages_of(state: ClusterState, trials: Iterable[Trial]) -> Iterator[AllocationUsage]:
    for trial in trials:
        experiment = state.experiments.find(keys.experiment(trial.experiment_id))
        if experiment is not None:
            for usage in trial.attempt_usages:
                own_id = allocation_id(trial.id, usage.attempt)
                yield AllocationUsage(own_id, trial.experiment_id, experiment.owner, usage)
