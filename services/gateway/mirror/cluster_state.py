"""The cluster's state as the gateway last saw it: etcd's keys as domain records, indexed for the views.

It applies what it is given and knows neither etcd's client nor time; mirror.py feeds it. A value that cannot be read
(written by a newer version, or damaged) leaves the record as it was and is counted, so one bad key hides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from gangline.config.layer.secret import hide_default_secrets, hide_secrets
from gangline.domain.access import UserGroup, WorkspaceRoles
from gangline.domain.allocation import Allocation, Reason, Request
from gangline.domain.experiment import Checkpoint, Experiment, Project, Template, Trial, Workspace
from gangline.domain.fusion import FusionRecord
from gangline.domain.quota import Quota, SlotUse
from gangline.domain.registry import Model, ModelVersion
from gangline.domain.resource import Agent, Cluster, Counter, ServiceInstance, count_deleted
from gangline.domain.search import Search
from gangline.domain.state import CheckpointState, State
from gangline.domain.user import AccessToken, User
from gangline.protocol import wire
from services.common import keys
from services.gateway.mirror.change_log import Entry, Topic

T = TypeVar("T")


class RecordTable(Generic[T]):
    """Holds the records under one prefix, by key and by group.

    group_of: None when no view asks by group. keep: makes the form that is kept.
    """

    def __init__(
        self,
        prefix: str,
        record_type: type[T],
        group_of: Callable[[T], Hashable] | None = None,
        keep: Callable[[T], T] = lambda record: record,
    ) -> None:
        self.prefix = prefix
        self._record_type = record_type
        self._group_of = group_of
        self._keep = keep
        self._by_key: dict[str, T] = {}
        self._by_group: dict[Hashable, dict[str, T]] = {}

    def find(self, key: str) -> T | None:
        return self._by_key.get(key)

    def all(self) -> Iterable[T]:
        """Returns all records in no particular order."""
        return self._by_key.values()

    def of(self, group: Hashable) -> Iterable[T]:
        return self._by_group.get(group, {}).values()

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, key: str, value: bytes) -> tuple[T | None, T]:
        """Stores a record; returns the one before and the new one. Raises when the value cannot be read."""
        record = self._keep(wire.decode(self._record_type, value))
        before = self.remove(key)
        self._by_key[key] = record
        if self._group_of is not None:
            self._by_group.setdefault(self._group_of(record), {})[key] = record
        return before, record

    def remove(self, key: str) -> T | None:
        record = self._by_key.pop(key, None)
        if record is not None and self._group_of is not None:
            group = self._group_of(record)
            members = self._by_group[group]
            del members[key]
            if not members:
                del self._by_group[group]
        return record


class ClusterState:
    """Holds every shelf. Readers on the event loop see all of a transaction or none: a batch is applied without
    awaiting.

    marked: the checkpoints whose files are to be deleted, by key. deleting: the experiments that are being deleted, by
    key. num_ended_allocations: since this state was made. ended_trial_ids: the trials whose allocations have ended
    since then; the recorder of usage empties it.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.num_unreadable = 0
        self.num_ended_allocations = 0
        self.ended_trial_ids: dict[str, None] = {}
        self.marked: dict[str, Checkpoint] = {}
        self.deleting: dict[str, Experiment] = {}
        self.experiments = RecordTable(keys.EXPERIMENTS, Experiment, keep=hide_secrets)
        self.trials = RecordTable(keys.TRIALS, Trial, lambda trial: trial.experiment_id)
        self.searches = RecordTable(keys.SEARCHES, Search)
        self.requests = RecordTable(keys.REQUESTS, Request)
        self.allocations = RecordTable(keys.ALLOCATIONS, Allocation, lambda allocation: allocation.trial_id)
        self.agents = RecordTable(keys.AGENTS, Agent)
        self.checkpoints = RecordTable(keys.CHECKPOINTS, Checkpoint, lambda checkpoint: checkpoint.experiment_id)
        self.users = RecordTable(keys.USERS, User, lambda user: user.id)
        self.tokens = RecordTable(keys.TOKENS, AccessToken, lambda token: token.token_sha256)
        self.quotas = RecordTable(keys.QUOTAS, Quota)
        self.slot_use = RecordTable(keys.SLOT_USE, SlotUse)
        self.fusion = RecordTable(keys.FUSION, FusionRecord)
        self.workspaces = RecordTable(keys.WORKSPACES, Workspace, keep=hide_default_secrets)
        self.projects = RecordTable(keys.PROJECTS, Project, keep=hide_default_secrets)
        self.templates = RecordTable(keys.TEMPLATES, Template, keep=hide_secrets)
        self.models = RecordTable(keys.MODELS, Model)
        self.model_versions = RecordTable(keys.MODEL_VERSIONS, ModelVersion, lambda version: version.model_id)
        self.groups = RecordTable(keys.GROUPS, UserGroup)
        self.roles = RecordTable(keys.ROLES, WorkspaceRoles)
        # What each caller sees (`sight.py`), made from these tables.
        self.sights: dict[Hashable, Any] = {}
        self._tables_of_sights: tuple[RecordTable[Any], ...] = (
            self.users, self.groups, self.roles, self.workspaces, self.projects,
        )  # fmt: skip
        self.instances = RecordTable(keys.ALIVE, ServiceInstance)
        # Keys whose present value cannot be read.
        self._unreadable_keys: set[str] = set()
        self._leader = RecordTable(keys.LEADER, ServiceInstance)
        self._cluster = RecordTable(keys.CLUSTER, Cluster)
        self._next_experiment = RecordTable(keys.NEXT_EXPERIMENT, Counter)
        self._shelves: tuple[RecordTable[Any], ...] = (
            self.experiments, self.trials, self.searches, self.requests, self.allocations, self.agents,
            self.checkpoints, self.users, self.tokens, self.fusion, self.workspaces, self.projects, self.templates,
            self.models, self.model_versions, self.groups, self.roles, self.instances, self._leader, self._cluster,
            self._next_experiment, self.quotas, self.slot_use,
        )  # fmt: skip

    @property
    def whole(self) -> ClusterState:
        """Returns the state without what a caller does not see left out."""
        return self

    @property
    def pseudonyms(self) -> Mapping[str, str]:
        """Returns the numbers that stand for trials that a caller does not see, by the trials' ids."""
        return {}

    def hide_ids(self, text: str) -> str:
        """Returns the text without the ids of what a caller does not see."""
        return text

    def hide(self, reason: Reason) -> Reason:
        """Returns the reason without the names of what a caller does not see."""
        return reason

    def unreadable_suffixes(self, prefix: str) -> list[str]:
        """Returns the rest of each key under this prefix whose present value cannot be read."""
        return [key.removeprefix(prefix) for key in self._unreadable_keys if key.startswith(prefix)]

    @property
    def leader(self) -> ServiceInstance | None:
        return self._leader.find(keys.LEADER)

    @property
    def num_deleted_experiments(self) -> int:
        """Returns how many experiments there were and are no more."""
        num_unreadable = sum(
            key.startswith(self.experiments.prefix) and self.experiments.find(key) is None
            for key in self._unreadable_keys
        )
        counter = self._next_experiment.find(keys.NEXT_EXPERIMENT)
        return count_deleted(counter, len(self.experiments) + num_unreadable)

    @property
    def cluster(self) -> Cluster | None:
        return self._cluster.find(keys.CLUSTER)

    def find(self, key: str) -> object:
        """Returns the record of a key; None without one."""
        table = self._table_of(key)
        return table.find(key) if table is not None else None

    def _table_of(self, key: str) -> RecordTable[Any] | None:
        return next((table for table in self._shelves if key.startswith(table.prefix)), None)

    def apply(self, key: str, value: bytes | None) -> set[int]:
        """Applies one key (value None: deleted). Returns the ids of the experiments whose view it changes."""
        table = self._table_of(key)
        if table is None:
            return set()
        if table in self._tables_of_sights:
            self.sights.clear()
        if value is None:
            self._unreadable_keys.discard(key)
            self.marked.pop(key, None)
            self.deleting.pop(key, None)
            self.num_ended_allocations += table is self.allocations
            removed = table.remove(key)
            if isinstance(removed, Allocation):
                self.ended_trial_ids[removed.trial_id] = None
            return _experiment_ids((removed,))
        try:
            # Nothing is changed before the value has been decoded.
            before, record = table.put(key, value)
        except (DecodeError, ValueError):
            self.num_unreadable += 1
            self._unreadable_keys.add(key)
            return set()
        self._unreadable_keys.discard(key)
        if isinstance(record, Checkpoint) and record.state is CheckpointState.DELETING:
            self.marked[key] = record
        if isinstance(record, Experiment) and record.is_deleting:
            self.deleting[key] = record
        return _experiment_ids((before, record))

    def is_removed(self, experiment_id: int) -> bool:
        """Returns whether the experiment is being deleted, or was. Ids are never reused, and an experiment appears in
        the same transaction as the next id."""
        key = keys.experiment(experiment_id)
        experiment = self.experiments.find(key)
        if experiment is not None:
            return experiment.is_deleting
        if key in self._unreadable_keys:
            return False
        counter = self._next_experiment.find(keys.NEXT_EXPERIMENT)
        return counter is not None and 0 < experiment_id < counter.next_value

    def is_paused(self, experiment_id: int) -> bool:
        """Returns whether the experiment is paused: its requests have no place in the queue."""
        experiment = self.experiments.find(keys.experiment(experiment_id))
        return experiment is not None and experiment.state is State.PAUSED

    def live_allocation(self, trial_id: str) -> Allocation | None:
        """Returns the newest allocation of the trial that has not ended."""
        live = (allocation for allocation in self.allocations.of(trial_id) if allocation.state is not State.TERMINAL)
        return max(live, key=lambda allocation: allocation.attempt, default=None)

    def allocation_id_by_slot_id(self) -> Mapping[str, str]:
        return {
            slot_id: allocation.id
            for allocation in self.allocations.all()
            if allocation.state is not State.TERMINAL
            for member in allocation.members
            for slot_id in member.slot_ids
        }


def _experiment_ids(records: Iterable[object]) -> set[int]:
    """Returns the ids of the experiments that these records belong to."""
    experiment_ids: set[int] = set()
    for record in records:
        if isinstance(record, Experiment):
            experiment_ids.add(record.id)
        elif isinstance(record, (Trial, Search, Request, Allocation, Checkpoint)):
            experiment_ids.add(record.experiment_id)
    return experiment_ids


def entries_of(records: Iterable[object]) -> set[Entry]:
    """Returns the entries of the change log for a change of these records."""
    entries: set[Entry] = set()
    homes: set[int] = set()
    for record in records:
        if isinstance(record, Trial):
            entries |= {(Topic.TRIAL, record.id), (Topic.EXPERIMENT, record.experiment_id)}
        elif isinstance(record, Request | Allocation):
            entries |= {(Topic.TRIAL, record.trial_id), (Topic.EXPERIMENT, record.experiment_id)}
            if isinstance(record, Allocation):
                entries |= {(Topic.AGENT, member.agent_id) for member in record.members}
        elif isinstance(record, Experiment):
            entries |= {(Topic.TRIALS, record.id), (Topic.EXPERIMENT, record.id)}
            homes.add(record.home_id)
        elif isinstance(record, Agent):
            entries.add((Topic.AGENT, record.id))
        elif isinstance(record, Workspace | Project):
            entries.add((Topic.HOME, type(record).__name__))
        elif isinstance(record, Model):
            entries.add((Topic.MODEL, record.id))
        elif isinstance(record, ModelVersion):
            entries.add((Topic.MODEL, record.model_id))
        else:
            entries |= {(Topic.EXPERIMENT, experiment_id) for experiment_id in _experiment_ids((record,))}
    if len(homes) > 1:
        entries.add((Topic.MOVED, "experiment"))
    return entries
