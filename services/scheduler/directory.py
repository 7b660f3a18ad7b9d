"""A mirror of who is alive and who leads, kept by watching etcd.

Standbys name the leader from it, and the leader tells runners which schedulers and gateways there are. It may lag by a
moment; nothing is decided from it.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from gangline import wire
from gangline.domain.resource import ServiceInstance
from gangline.errors import GanglineError
from services.common import keys
from services.common.etcd import EtcdClient, Listing

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 1.0


class Directory:
    """leader_epoch: of `leader`; 0 while nobody leads. changed: replaced by a new event whenever it is set, which is at
    each change of the leader or of the services; `Seat` sets it, too."""

    def __init__(self, client: EtcdClient) -> None:
        self.changed = asyncio.Event()
        self.leader: ServiceInstance | None = None
        self.leader_epoch = 0
        self._client = client
        self._instances: dict[str, ServiceInstance] = {}

    def addresses_of(self, kind: str) -> list[str]:
        """The gRPC addresses of all services of one kind, oldest first."""
        found = [instance for instance in self._instances.values() if instance.kind == kind and instance.grpc_address]
        return [instance.grpc_address for instance in sorted(found, key=lambda one: (one.started_at, one.id))]

    def schedulers_after(self, leader_address: str) -> list[str]:
        """The gRPC addresses of all schedulers, the leader's first."""
        return list(dict.fromkeys([leader_address, *self.addresses_of("scheduler")]))

    def notify(self) -> None:
        """Wakes all that wait for `changed`."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(keys.ALIVE))
            group.create_task(self._follow(keys.LEADER))

    async def _follow(self, prefix: str) -> None:
        while True:
            try:
                await self._mirror(prefix)
            except GanglineError as error:
                _log.warning("cannot watch, trying again", prefix=prefix, reason=error.message)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _mirror(self, prefix: str) -> None:
        async with contextlib.aclosing(self._client.list_watch(prefix)) as changes:
            async for change in changes:
                if isinstance(change, Listing):
                    self._forget(prefix)
                    for item in change.items:
                        self._set(item.key, item.value, item.create_revision)
                else:
                    for event in change.events:
                        self._set(event.key, event.value, event.create_revision)
                self.notify()

    def _forget(self, prefix: str) -> None:
        """Before a listing, which holds all that there is now."""
        for key in [known for known in (keys.LEADER, *self._instances) if known.startswith(prefix)]:
            self._set(key, None, 0)

    def _set(self, key: str, value: bytes | None, create_revision: int) -> None:
        instance = wire.decode(ServiceInstance, value) if value is not None else None
        if key == keys.LEADER:
            self.leader, self.leader_epoch = instance, create_revision
        elif instance is None:
            self._instances.pop(key, None)
        else:
            self._instances[key] = instance
