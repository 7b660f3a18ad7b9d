"""Mirrors the live services and the leader by watching etcd.

Standbys name the leader from it. The leader sends runners the addresses of schedulers and gateways from it. The mirror
may lag, so no decision depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from gangline.domain.resource import ServiceInstance
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Listing

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 1.0


class Directory:
    """leader_epoch: the epoch of `leader`; 0 while there is no leader. storage_marker: of the oldest registered
    gateway that names one, so that a gateway which opens another folder later changes nothing. It stays while no
    gateway is registered. changed: set at each change of the leader or of the services, and then replaced by a new
    event; `LeaderStatus` sets it, too.
    """

    def __init__(self, client: EtcdClient) -> None:
        self.changed = asyncio.Event()
        self.leader: ServiceInstance | None = None
        self.leader_epoch = 0
        self.storage_marker = ""
        self._client = client
        self._instances: dict[str, ServiceInstance] = {}

    def addresses_of(self, service_kind: str) -> list[str]:
        """Returns the gRPC addresses of all services of one kind, oldest first."""
        instances = [
            instance for instance in self._instances.values() if instance.kind == service_kind and instance.grpc_address
        ]
        return [instance.grpc_address for instance in sorted(instances, key=_age)]

    def has_gateway_since(self, at: float) -> bool:
        """Returns whether a gateway is registered that was there at this time already."""
        return any(instance.kind == "gateway" and instance.started_at <= at for instance in self._instances.values())

    def http_address_of(self, service_kind: str) -> str:
        """Returns the HTTP address of the oldest service of one kind; empty if there is none."""
        instances = [each for each in self._instances.values() if each.kind == service_kind and each.http_address]
        oldest = min(instances, key=_age, default=None)
        return oldest.http_address if oldest is not None else ""

    def schedulers_after(self, leader_address: str) -> list[str]:
        """Returns the gRPC addresses of all schedulers, the leader's first."""
        return list(dict.fromkeys([leader_address, *self.addresses_of("scheduler")]))

    def notify(self) -> None:
        """Wakes all tasks that wait for `changed`."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Mirrors etcd until it is cancelled."""
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
        """Removes all entries under the prefix. Called before a listing is applied, which contains every entry that
        exists now.
        """
        for key in [key for key in (keys.LEADER, *self._instances) if key.startswith(prefix)]:
            self._set(key, None, 0)

    def _set(self, key: str, value: bytes | None, create_revision: int) -> None:
        instance = wire.decode(ServiceInstance, value) if value is not None else None
        if key == keys.LEADER:
            self.leader, self.leader_epoch = instance, create_revision
        elif instance is None:
            self._instances.pop(key, None)
        else:
            self._instances[key] = instance
        named = [each for each in self._instances.values() if each.storage_marker]
        if named:
            self.storage_marker = min(named, key=_age).storage_marker


def _age(instance: ServiceInstance) -> tuple[float, str]:
    """Returns the key by which services are ordered, the oldest first."""
    return instance.started_at, instance.id
