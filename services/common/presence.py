"""Registers a service in etcd under a lease and keeps the lease alive.

Owns one key `alive/<kind>/<id>` under a lease of its own, written again whenever etcd has ended the lease. The gateway
reads these keys to list services and the targets of Prometheus. It decides nothing: `election.py` elects the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from gangline.domain.resource import ServiceInstance
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Put

_log = structlog.get_logger(__name__)

# A service that died without revoking its lease stays listed for at most this time.
TTL_SECONDS = 10.0
# Heartbeats of the lease. They coincide with other work that is due in whole seconds (timer_grid.py).
BEAT_SECONDS = 3.0
_RETRY_SECONDS = 1.0


@contextlib.asynccontextmanager
async def announce(
    client: EtcdClient, instance: ServiceInstance, ttl_seconds: float = TTL_SECONDS
) -> AsyncIterator[None]:
    """Registers the service: the key exists when the context begins and is gone when it has ended. Waits for an etcd
    that is away at the start; raises when etcd refuses."""
    is_announced = asyncio.Event()
    announcing = asyncio.create_task(_announce(client, instance, ttl_seconds, is_announced), name="presence")
    waiting = asyncio.create_task(is_announced.wait())
    try:
        await asyncio.wait({announcing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if announcing.done():
            await announcing
        yield
    finally:
        for task in (announcing, waiting):
            task.cancel()
        await asyncio.wait({announcing, waiting})


async def _announce(
    client: EtcdClient, instance: ServiceInstance, ttl_seconds: float, is_announced: asyncio.Event
) -> None:
    key = keys.alive(instance.kind, instance.id)
    while True:
        try:
            async with client.keep_lease(ttl_seconds, min(BEAT_SECONDS, ttl_seconds / 3)) as lease:
                await client.commit([Put(key, wire.encode(instance), lease.id)])
                is_announced.set()
                await lease.lost.wait()
        except GanglineError as error:
            # At the start the service must learn of a refusal; later it retries.
            if not is_announced.is_set() and error.kind is not ErrorKind.UNAVAILABLE:
                raise
            _log.warning("cannot announce yet", key=key, reason=error.message)
            await asyncio.sleep(_RETRY_SECONDS)
