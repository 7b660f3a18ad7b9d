"""From standby to leader and back, for as long as the process lives."""

from __future__ import annotations

import asyncio

import structlog

from gangline.errors import GanglineError
from services.common.election import Election, Leadership
from services.common.etcd import EtcdClient
from services.scheduler.seat import Seat
from services.scheduler.store import load
from services.scheduler.term import Conditions, Term

_log = structlog.get_logger(__name__)


async def reign(client: EtcdClient, election: Election, seat: Seat, conditions: Conditions) -> None:
    """Until cancelled. A term that ends, for whatever reason, is followed by the next campaign; on cancellation the
    leader resigns, so that a standby takes over at once."""
    while True:
        leadership = await election.campaign()
        try:
            await _lead(client, leadership, seat, conditions)
        except GanglineError as error:
            _log.warning("the term ended with an error", epoch=leadership.epoch, reason=error.message)
        finally:
            seat.leave()
            await election.resign(leadership)


async def _lead(client: EtcdClient, leadership: Leadership, seat: Seat, conditions: Conditions) -> None:
    term = Term(leadership, await load(client), conditions)
    on_open = asyncio.Event()
    running = asyncio.create_task(term.run(on_open), name="term")
    opened = asyncio.create_task(on_open.wait())
    try:
        await asyncio.wait({running, opened}, return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            seat.take(term)
        await running
    finally:
        opened.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
