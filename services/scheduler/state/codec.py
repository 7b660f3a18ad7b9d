"""Maps records to their keys and values in etcd, and back. services.common.keys owns the keys themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangline.domain.access import UserGroup, WorkspaceRoles
from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Checkpoint, Experiment, Project, ProjectCounter, Template, Trial, Workspace
from gangline.domain.fusion import FusionRecord
from gangline.domain.quota import Quota, SlotUse
from gangline.domain.registry import Model, ModelVersion
from gangline.domain.resource import Agent, Cluster, Counter
from gangline.domain.search import Search, SearchLog
from gangline.domain.user import AccessToken, User, UserCounter
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
    AccessToken: keys.token,
    Quota: keys.quota,
    SlotUse: keys.slot_use,
    UserGroup: keys.group,
    WorkspaceRoles: keys.roles,
    FusionRecord: keys.fusion,
    Workspace: keys.workspace,
    Project: keys.project,
    Template: keys.template,
    Model: keys.model,
    ModelVersion: keys.model_version,
    Counter: lambda _: keys.NEXT_EXPERIMENT,
    ProjectCounter: lambda _: keys.NEXT_PROJECT,
    UserCounter: lambda _: keys.NEXT_USER,
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
    keys.TOKENS: AccessToken,
    keys.QUOTAS: Quota,
    keys.SLOT_USE: SlotUse,
    keys.GROUPS: UserGroup,
    keys.ROLES: WorkspaceRoles,
    keys.FUSION: FusionRecord,
    keys.WORKSPACES: Workspace,
    keys.PROJECTS: Project,
    keys.TEMPLATES: Template,
    keys.MODELS: Model,
    keys.MODEL_VERSIONS: ModelVersion,
    keys.NEXT_EXPERIMENT: Counter,
    keys.NEXT_PROJECT: ProjectCounter,
    keys.NEXT_USER: UserCounter,
    keys.CLUSTER: Cluster,
}
# Converts the rest of a key into the record's id. For all other kinds the rest of the key is the id.
_ID_OF_SUFFIX: dict[type[Any], Callable[[str], Id]] = {
    Experiment: int,
    Search: int,
    Workspace: int,
    Project: int,
    Model: int,
    AccessToken: int,
    WorkspaceRoles: int,
    Counter: lambda _: SINGLETON,
    ProjectCounter: lambda _: SINGLETON,
    UserCounter: lambda _: SINGLETON,
    Cluster: lambda _: SINGLETON,
}


def key_of(record_type: type[Any], record_id: Id) -> str:
    return _KEY_OF[record_type](record_id)


def operations_of(change: StateChange) -> list[Put | Delete]:
    """Returns the etcd operations that write this change."""
    puts = [Put(key_of(type(record), id_of(record)), wire.encode(record)) for record in change.puts]
    return [*puts, *(Delete(key_of(record_type, record_id)) for record_type, record_id in change.deletes)]


def record_of(item: KeyValue) -> Record | None:
    """Returns the record; None for keys that are not the leader's state (presence, election, records of a newer
    version).
    """
    parts = _split(item.key)
    if parts is None:
        return None
    record: Record = wire.decode(parts[0], item.value)
    return record


def change_of(batch: WatchBatch) -> StateChange:
    """Returns the change that one transaction made to the leader's state, as the watch reports it."""
    puts: list[Record] = []
    deletes: list[Reference] = []
    for event in batch.events:
        parts = _split(event.key)
        if parts is None:
            continue
        record_type, suffix = parts
        if event.value is None:
            deletes.append((record_type, _ID_OF_SUFFIX.get(record_type, str)(suffix)))
        else:
            puts.append(wire.decode(record_type, event.value))
    return StateChange(tuple(puts), tuple(deletes))


def _split(key: str) -> tuple[type[Any], str] | None:
    """Returns the kind of the record under this key and the rest of the key; None for keys of other things."""
    for prefix, record_type in _KIND_OF_PREFIX.items():
        if key.startswith(prefix):
            return record_type, key.removeprefix(prefix)
    return None
