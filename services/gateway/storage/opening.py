"""Opens the storage at the start of a gateway, as the one that the cluster has used before.

Owns the key in etcd with the marker of the cluster's storage. The first gateway that finds or makes the marker file of
a folder writes it there, and it stays. So a gateway that meets another folder, or an empty mount point, knows that this
is not the storage. It starts all the same, because most of its calls need no storage; the others are refused until the
right folder is there.
"""

from __future__ import annotations

import asyncio

import structlog

from gangline.domain.storage.storage_fault import AWAY
from gangline.errors import GanglineError
from services.common import keys
from services.common.concurrency import until_available
from services.common.etcd import EtcdClient, Guard, Put
from services.gateway.mirror.cluster_state import ClusterState
from services.gateway.storage.storage import Storage

log = structlog.get_logger(__name__)


async def open_storage(client: EtcdClient, state: ClusterState, storage: Storage) -> None:
    """Settles the storage's marker. Raises GanglineError `storage.*` for a storage that takes nothing, and for a folder
    that is not the cluster's where nobody knows the marker."""
    found = await until_available(lambda: client.get(keys.STORAGE), "etcd")
    # A gateway of an earlier version may have announced a marker, and written no key.
    known = found.value.decode() if found is not None else _announced(state)
    if not await asyncio.to_thread(_settle, storage, known, is_used=bool(state.experiments)):
        return
    if found is not None or not storage.marker:
        return
    put, absent = Put(keys.STORAGE, storage.marker.encode()), Guard(keys.STORAGE, 0)
    claim = await until_available(lambda: client.commit([put], [absent]), "etcd")
    if not claim.is_committed:
        # Another gateway was first.
        await asyncio.to_thread(_settle, storage, claim.found[0].value.decode(), is_used=True)


def _settle(storage: Storage, known: str, *, is_used: bool) -> bool:
    """Returns whether the storage is there and takes files."""
    try:
        storage.settle_marker(is_used, known)
        storage.probe()
    except GanglineError as error:
        if not known or error.code != AWAY:
            raise
        log.warning("starts without the storage", reason=error.message)
        return False
    return True


def _announced(state: ClusterState) -> str:
    gateways = [each for each in state.instances.all() if each.storage_marker]
    return min(gateways, key=lambda each: each.started_at).storage_marker if gateways else ""
