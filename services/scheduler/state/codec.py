"""Maps records to their keys and values in etcd, and back. services.common.keys owns the keys themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.fusion import FusionRecord
from gangline.domain.resource import Agent, Cluster, Counter, User
from gangline.domain.search import Search, SearchLog
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import Delete, KeyValue, Put, WatchBatch
from services.scheduler.state.records import SINGLETON, Id, Record, Reference, StateChange, id_of

_KEY_OF: dict[type[Any], Callable[[Any], str]] = {
    Experiment: keys.experiment,
    Trial: keys.trial,
    Search: keys.search,
    SearchLog: keys.search_log,
    Request: keys.request,
    Allocation: keys.allocation,
    Agent: keys.agent,
    Checkpoint: keys.checkpoint,
    User: keys.user,
    FusionRecord: keys.fusion,
    Counter: lambda _: keys.NEXT_EXPERIMENT,
    Cluster: lambda _: keys.CLUSTER,
}
_KIND_OF_PREFIX: dict[str, type[Any]] = {
    keys.EXPERIMENTS: Experiment,
    keys.TRIALS: Trial,
    keys.SEARCHES: Search,
    keys.SEARCH_LOGS: SearchLog,
    keys.REQUESTS: Request,
    keys.ALLOCATIONS: Allocation,
    keys.AGENTS: Agent,
    keys.CHECKPOINTS: Checkpoint,
    keys.USERS: User,
    keys.FUSION: FusionRecord,
    keys.NEXT_EXPERIMENT: Counter,
    keys.CLUSTER: Cluster,
}
# Converts the rest of a key into the record's id. For all other kinds the rest of the key is the id.
_ID_OF_SUFFIX: dict[type[Any], Callable[[str], Id]] = {
    Experiment: int,
    Search: int,
    Counter: lambda _: SINGLETON,
    Cluster: lambda _: SINGLETON,
}


def key_of(kind: type[Any], record_id: Id) -> str:
    return _KEY_OF[kind](record_id)


def operations_of(change: StateChange) -> list[Put | Delete]:
    """Returns the etcd operations that write this change."""
    puts = [Put(key_of(type(record), id_of(record)), wire.encode(record)) for record in change.puts]
    return [*puts, *(Delete(key_of(kind, record_id)) for kind, record_id in change.deletes)]


def record_of(item: KeyValue) -> Record | None:
    """Returns the record; None for keys that are not the leader's state (presence, election, records of a newer
    version).
    """
    found = _split(item.key)
    if found is None:
        return None
    record: Record = wire.decode(found[0], item.value)
    return record


def change_of(batch: WatchBatch) -> StateChange:
    """Returns the change that one transaction made to the leader's state, as the watch reports it."""
    puts: list[Record] = []
    deletes: list[Reference] = []
    for event in batch.events:
        found = _split(event.key)
        if found is None:
            continue
        kind, suffix = found
        if event.value is None:
            deletes.append((kind, _ID_OF_SUFFIX.get(kind, str)(suffix)))
        else:
            puts.append(wire.decode(kind, event.value))
    return StateChange(tuple(puts), tuple(deletes))


def _split(key: str) -> tuple[type[Any], str] | None:
    """Returns the kind of the record under this key and the rest of the key; None for keys of other things."""
    for prefix, kind in _KIND_OF_PREFIX.items():
        if key.startswith(prefix):
            return kind, key.removeprefix(prefix)
    return None
