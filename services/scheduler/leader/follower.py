"""Keeps the state of the cluster up to date in a standby scheduler, by a watch.

A standby that wins an election continues from this state and does not read etcd again, however large the state is. The
follower also prepares slow work of a term: it settles configurations, which are then cached, and loads the library
that draws hyperparameters. It writes nothing. `leadership.py` makes one follower for each campaign.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from gangline.domain.experiment import Experiment
from gangline.domain.state import State as Stage
from gangline.errors import GanglineError
from services.common import keys
from services.common.etcd import EtcdClient, Listing, WatchBatch
from services.scheduler.leader.continuation import warm_up_for, warm_up_if_drawn
from services.scheduler.state.codec import change_of
from services.scheduler.state.records import SchedulerState
from services.scheduler.state.state_store import load, state_of

_log = structlog.get_logger(__name__)

_RETRY_SECONDS = 0.5
# A watch that lags by more than this is given up, and everything is read from etcd.
CATCH_UP_SECONDS = 10.0


class Follower:
    """is_listed: set once the whole state was read."""

    def __init__(self, client: EtcdClient) -> None:
        self.is_listed = asyncio.Event()
        self._client = client
        self._state = SchedulerState()
        self._revision = 0
        self._advanced = asyncio.Event()

    async def run(self) -> None:
        """Follows the state until it is cancelled."""
        while True:
            try:
                await self._follow()
            except GanglineError as error:
                _log.warning("cannot follow the state, trying again", reason=error.message)
            except Exception:  # noqa: BLE001 - the top of a long-lived task
                # A standby that cannot follow never becomes ready, so the operator notices it.
                _log.exception("cannot follow the state, trying again")
            await asyncio.sleep(_RETRY_SECONDS)

    async def catch_up(self, epoch: int) -> SchedulerState:
        """Returns the state with which the leader of this epoch begins. The follower must not run on after it.

        The leader key itself was written at revision `epoch`, so the watch delivers that revision. All writes of
        earlier leaders have smaller revisions, and etcd refuses their later writes.
        """
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while self._revision < epoch:
                    self._advanced.clear()
                    await self._advanced.wait()
        except TimeoutError:
            _log.warning("the watch lags; reading the whole state from etcd", revision=self._revision, epoch=epoch)
            return await load(self._client)
        return self._state

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._client.list_watch(keys.ROOT)) as changes:
            async for change in changes:
                if isinstance(change, Listing):
                    self._state = state_of(change)
                    await warm_up_for(self._state)
                    self.is_listed.set()
                else:
                    await self._apply(change)
                self._revision = change.revision
                self._advanced.set()

    async def _apply(self, batch: WatchBatch) -> None:
        change = change_of(batch)
        self._state.apply(change, batch.revision)
        for experiment in change.all_of(Experiment):
            if experiment.state is not Stage.TERMINAL:
                await warm_up_if_drawn(experiment.config_json)
