"""Finds out whether etcd can be written to, and says in one sentence why not.

Owns the examination: a linearizable read proves a quorum; when none is answered, every member is asked for its own
status. It rotates no endpoint and retries nothing. Used through `EtcdClient.examine` and `HealthWatch`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
import structlog

from gangline.domain.resource import EtcdHealth
from gangline.errors import GanglineError
from services.common.etcd.connection import EtcdConnection
from services.common.etcd.session import EtcdSession
from services.common.etcd.stub import Operation, messages
from services.common.timer_grid import seconds_until_due

_log = structlog.get_logger(__name__)

# Time limit of each of the two rounds of an examination.
PROBE_SECONDS = 0.75
# Period of the examinations of HealthWatch while etcd is available, and while it is not.
WATCH_SECONDS = 3.0
OUTAGE_WATCH_SECONDS = 1.0
# Never written. It has a prefix that a user of etcd who is restricted to Gangline's keys may read.
PROBE_KEY = b"/gangline/v1/probe"


async def examine(session: EtcdSession, seconds: float = PROBE_SECONDS) -> EtcdHealth:
    """Examines etcd. Takes at most twice `seconds`."""
    connections = session.rotation.all()
    if await _reads(session, session.rotation.current, seconds):
        return EtcdHealth(num_members=len(connections), num_answering=len(connections))
    reads = [_reads(session, connection, seconds) for connection in connections]
    answers = [_answers(connection, seconds) for connection in connections]
    results = await asyncio.gather(*reads, *answers)
    can_read, num_answering = any(results[: len(reads)]), sum(results[len(reads) :])
    if can_read:
        return EtcdHealth(num_members=len(connections), num_answering=num_answering)
    problem = word_problem([connection.endpoint for connection in connections], num_answering)
    return EtcdHealth(False, len(connections), num_answering, problem)


def word_problem(endpoints: list[str], num_answering: int) -> str:
    """Returns one sentence for an etcd that answers no linearizable read."""
    count, quorum = len(endpoints), len(endpoints) // 2 + 1
    ending = "nothing can be submitted or changed"
    if not num_answering:
        where = ", ".join(endpoints)
        return f"etcd does not answer ({where}); {ending} until {_some(quorum, count)} again"
    if count == 1:
        return f"etcd at {endpoints[0]} answers but serves no reads, so it has no quorum; {ending} until it has one"
    if num_answering < quorum:
        verb = "answers" if num_answering == 1 else "answer"
        return f"etcd has no quorum: {num_answering} of {count} members {verb}; {ending} until {quorum} do"
    return f"etcd has no leader, though {num_answering} of {count} members answer; {ending} until they have elected one"


def _some(quorum: int, count: int) -> str:
    return "it answers" if count == 1 else f"{quorum} of its {count} members answer"


class HealthWatch:
    """Examines etcd every few seconds. health: the result of the newest examination."""

    def __init__(self, examine_etcd: Callable[[], Awaitable[EtcdHealth]]) -> None:
        self.health = EtcdHealth()
        self._examine = examine_etcd

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._take(await self._examine())
            period_seconds = WATCH_SECONDS if self.health.is_available else OUTAGE_WATCH_SECONDS
            await asyncio.sleep(seconds_until_due(period_seconds, time.monotonic()))

    def _take(self, health: EtcdHealth) -> None:
        before = self.health
        since = before.since if health.is_available == before.is_available else time.time()
        self.health = EtcdHealth(health.is_available, health.num_members, health.num_answering, health.problem, since)
        if health.is_available and not before.is_available:
            _log.info("etcd is available again")
        elif health.problem and health.problem != before.problem:
            _log.warning("etcd is not available", problem=health.problem)


async def _reads(session: EtcdSession, connection: EtcdConnection, seconds: float) -> bool:
    """Returns whether a linearizable read works. etcd checks permissions only after it has confirmed its quorum, so a
    denied read works too."""
    request = messages.RangeRequest(key=PROBE_KEY, keys_only=True)
    try:
        async with asyncio.timeout(seconds):
            await session.ask(connection, Operation.RANGE, request, seconds)
    except (TimeoutError, GanglineError):
        return False
    except grpc.RpcError as failure:
        return failure.code() is grpc.StatusCode.PERMISSION_DENIED
    return True


async def _answers(connection: EtcdConnection, seconds: float) -> bool:
    """Returns whether the member answers at all. The call carries no metadata: with "hasleader" a member without a
    leader would refuse it."""
    try:
        await connection.methods[Operation.STATUS](messages.StatusRequest(), timeout=seconds)
    except grpc.RpcError as failure:
        return failure.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True
