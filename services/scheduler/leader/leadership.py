"""Makes this process a standby, a leader and a standby again, for as long as it lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from gangline.errors import GanglineError
from services.common.concurrency import cancel
from services.common.election import Election, Leadership
from services.common.etcd import EtcdClient
from services.scheduler.leader.follower import Follower
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.leader.term import Term, TermContext
from services.scheduler.state.records import SchedulerState

_log = structlog.get_logger(__name__)


async def run_leadership(
    client: EtcdClient,
    election: Election,
    leader_status: LeaderStatus,
    context: TermContext,
    patience_seconds: float,
) -> None:
    """Campaigns and leads until it is cancelled. After each term, however it ended, the next campaign follows. On
    cancellation the leader resigns, so that a standby takes over at once.

    patience_seconds: how long a standby tries to connect to the leader before it counts as ready without that.
    """
    while True:
        async with _standing_by(client, election, leader_status, patience_seconds) as follower:
            leadership = await election.campaign()
            state = await _catch_up(election, leadership, follower)
        if state is None:
            continue
        try:
            await _lead(leadership, state, leader_status, context)
        except GanglineError as error:
            _log.warning("the term ended with an error", epoch=leadership.epoch, reason=error.message)
        finally:
            leader_status.leave()
            await election.resign(leadership)


@contextlib.asynccontextmanager
async def _standing_by(
    client: EtcdClient, election: Election, leader_status: LeaderStatus, patience_seconds: float
) -> AsyncIterator[Follower]:
    """Follows the state while the context lasts."""
    follower = Follower(client)
    tasks = [
        asyncio.create_task(follower.run(), name="follower"),
        asyncio.create_task(_prepare(election, follower, leader_status, patience_seconds), name="standing by"),
    ]
    try:
        yield follower
    finally:
        await cancel(*tasks)


async def _catch_up(election: Election, leadership: Leadership, follower: Follower) -> SchedulerState | None:
    """Returns the state with which the term begins; None when it cannot be read, and then leadership is given up."""
    try:
        return await follower.catch_up(leadership.epoch)
    except GanglineError as error:
        _log.warning("the state cannot be read", epoch=leadership.epoch, reason=error.message)
        await election.resign(leadership)
        return None
    except BaseException:
        await election.resign(leadership)
        raise


async def _prepare(
    election: Election, follower: Follower, leader_status: LeaderStatus, patience_seconds: float
) -> None:
    """Marks this process as ready once it can take over at once."""
    await follower.is_listed.wait()
    while not election.is_connected.is_set():
        try:
            async with asyncio.timeout(patience_seconds):
                await election.is_connected.wait()
        except TimeoutError:
            if leader_status.leader.address:
                _log.warning(
                    "cannot connect to the leader, so a fail-over will have to wait for its lease; let the schedulers "
                    "reach one another's --listen port",
                    address=leader_status.leader.address,
                )
                break
    _log.info("ready to take over", leader=leader_status.leader.address)
    leader_status.is_ready.set()


async def _lead(
    leadership: Leadership, state: SchedulerState, leader_status: LeaderStatus, context: TermContext
) -> None:
    term = Term(leadership, state, context)
    on_open = asyncio.Event()
    running = asyncio.create_task(term.run(on_open), name="term")
    opened = asyncio.create_task(on_open.wait())
    try:
        await asyncio.wait({running, opened}, return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            leader_status.take(term)
        await running
    finally:
        await cancel(opened, running)
