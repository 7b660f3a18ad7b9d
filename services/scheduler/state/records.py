"""PURE: the leader's records, changes to them, and views on both.

Owns `Records` (read by transitions), `StateChange` (returned by them), `SchedulerState` (all records at one revision)
and `Draft` (records as they will be once a change is committed). A State changes in one way only: `apply`, which the
store calls after etcd accepted the change. Occupied slots are derived from the live allocations, never stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast, get_args

from gangline.domain.access import UserGroup, WorkspaceRoles
from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Checkpoint, Experiment, Project, ProjectCounter, Template, Trial, Workspace
from gangline.domain.fusion import FusionRecord
from gangline.domain.id import absent, allocation_id
from gangline.domain.quota import Quota, SlotUse
from gangline.domain.registry import Model, ModelVersion
from gangline.domain.resource import Agent, Cluster, Counter, count_deleted
from gangline.domain.search import Search, SearchLog
from gangline.domain.state import State
from gangline.domain.user import AccessToken, User, UserCounter
from services.scheduler.state.held_slots import ChangedSlots, Held, HeldSlots

Record = (
    Experiment
    | Trial
    | Search
    | SearchLog
    | Request
    | Allocation
    | Agent
    | Checkpoint
    | Counter
    | User
    | FusionRecord
    | Cluster
    | Workspace
    | Project
    | Template
    | Model
    | ModelVersion
    | ProjectCounter
    | AccessToken
    | UserCounter
    | Quota
    | SlotUse
    | UserGroup
    | WorkspaceRoles
)
Id = str | int
Reference = tuple[type[Any], Id]
R = TypeVar("R")

KINDS: tuple[type[Any], ...] = get_args(Record)
SINGLETON = "-"


def id_of(record: Record) -> Id:
    """Returns the id that is unique among records of its kind. Counter, Cluster, ProjectCounter and
    UserCounter exist once."""
    match record:
        case Request():
            return record.trial_id
        case Search() | WorkspaceRoles():
            return record.experiment_id if isinstance(record, Search) else record.workspace_id
        case User() | Template() | UserGroup():
            return record.name
        case FusionRecord():
            return record.key
        case Counter() | Cluster() | ProjectCounter() | UserCounter():
            return SINGLETON
        case _:
            return record.id


@dataclass(frozen=True)
class StateChange:
    """Holds the writes of a transition, applied all or not at all. Empty when there is nothing to do."""

    puts: tuple[Record, ...] = ()
    deletes: tuple[Reference, ...] = ()

    @property
    def num_operations(self) -> int:
        return len(self.puts) + len(self.deletes)

    def __bool__(self) -> bool:
        return self.num_operations > 0

    def all_of(self, record_type: type[R]) -> Iterator[R]:
        """Returns the records of one kind that the change puts."""
        return (record for record in self.puts if isinstance(record, record_type))

    def touches(self, *record_types: type[Any]) -> bool:
        return any(isinstance(record, record_types) for record in self.puts) or any(
            record_type in record_types for record_type, _ in self.deletes
        )


class Records(Protocol):
    """The interface through which a transition reads records."""

    def find(self, record_type: type[R], record_id: Id) -> R | None: ...

    def all_of(self, record_type: type[R]) -> Iterable[R]: ...

    def trials_of(self, experiment_id: int) -> list[Trial]:
        """Returns the experiment's trials, ordered by number."""
        ...

    def num_trials_of(self, experiment_id: int) -> int: ...

    def unended_trials_of(self, experiment_id: int) -> list[Trial]:
        """Returns the experiment's trials that are not TERMINAL, ordered by number. It costs no time for the others."""
        ...

    def allocations_on(self, agent_id: str) -> list[Allocation]:
        """Returns live allocations with a member on this agent, whether that member has ended or not."""
        ...

    def checkpoints_of(self, trial_id: str) -> list[Checkpoint]:
        """Returns the trial's checkpoints, ordered by id, also those that are being deleted."""
        ...

    def experiment_of_request(self, request_id: str) -> Experiment | None: ...

    def experiments_in_deletion(self) -> list[Experiment]: ...

    def has_deleted_code(self, code_sha256: str, num_deleted: int) -> bool:
        """Returns whether this code may have been deleted after `num_deleted` experiments had been. What was deleted
        before this leader's term may have had any code."""
        ...

    def experiments_beginning_from(self, checkpoint_id: str) -> list[Experiment]:
        """Returns the experiments whose trials begin from this checkpoint of another one, but for ended ones."""
        ...

    def versions_of_checkpoint(self, checkpoint_id: str) -> list[ModelVersion]:
        """Returns the versions of models that name this checkpoint, ordered by id."""
        ...

    def versions_of_model(self, model_id: int) -> list[ModelVersion]:
        """Returns the model's versions, in no particular order."""
        ...

    def held(self) -> Held:
        """Returns the slots of live allocations, by owner (name) and by project (id)."""
        ...


def get(records: Records, record_type: type[R], record_id: Id) -> R:
    """Returns the record. Raises GanglineError `<record type>.not_found`."""
    record = records.find(record_type, record_id)
    if record is None:
        raise absent(record_type.__name__.lower(), record_id)
    return record


def live_allocation_of(records: Records, trial: Trial) -> Allocation | None:
    """The attempt that holds slots now; None when the trial waits or has ended."""
    return records.find(Allocation, allocation_id(trial.id, trial.attempts)) if trial.attempts else None


def _number_of(trial: Trial) -> int:
    return trial.number


def _tables() -> dict[type[Any], dict[Id, Any]]:
    return {record_type: {} for record_type in KINDS}


def _sets() -> defaultdict[Any, set[Any]]:
    return defaultdict(set)


@dataclass
class SchedulerState:
    """All records at one revision. Only `apply` changes it."""

    revision: int = 0
    tables: dict[type[Any], dict[Id, Any]] = field(default_factory=_tables)
    _trial_ids: defaultdict[int, set[str]] = field(default_factory=_sets)
    _unended_ids: defaultdict[int, set[str]] = field(default_factory=_sets)
    _allocation_ids: defaultdict[str, set[str]] = field(default_factory=_sets)
    _checkpoint_ids: defaultdict[str, set[str]] = field(default_factory=_sets)
    _experiment_ids: dict[str, int] = field(default_factory=dict)
    _deleting_ids: set[int] = field(default_factory=set)
    # By the sha256 of its code, how many experiments were deleted when the last one with this code was.
    _deleted_code: dict[str, int] = field(default_factory=dict)
    _num_deleted_before: int = 0
    _beginning_ids: defaultdict[str, set[int]] = field(default_factory=_sets)
    _version_ids: defaultdict[str, set[str]] = field(default_factory=_sets)  # by the checkpoint that they name
    _model_version_ids: defaultdict[int, set[str]] = field(default_factory=_sets)
    _held: HeldSlots = field(default_factory=HeldSlots)
    num_changes: int = 0  # number of changes of experiments' records since the state was made
    _changed: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(records: Iterable[Record], revision: int = 0) -> SchedulerState:
        state = SchedulerState()
        state.apply(StateChange(puts=tuple(records)), revision)
        state._num_deleted_before = state._num_deleted
        return state

    @property
    def _num_deleted(self) -> int:
        return count_deleted(self.find(Counter, SINGLETON), self.count(Experiment))

    def all_of(self, record_type: type[R]) -> Iterable[R]:
        return cast("Iterable[R]", self.tables[record_type].values())

    def count(self, record_type: type[Any]) -> int:
        return len(self.tables[record_type])

    def find(self, record_type: type[R], record_id: Id) -> R | None:
        return cast("R | None", self.tables[record_type].get(record_id))

    def trials_of(self, experiment_id: int) -> list[Trial]:
        trials = [self.tables[Trial][trial_id] for trial_id in self._trial_ids[experiment_id]]
        return sorted(trials, key=_number_of)

    def num_trials_of(self, experiment_id: int) -> int:
        return len(self._trial_ids.get(experiment_id, ()))

    def unended_trials_of(self, experiment_id: int) -> list[Trial]:
        trials = [self.tables[Trial][trial_id] for trial_id in self._unended_ids.get(experiment_id, ())]
        return sorted(trials, key=_number_of)

    def allocations_on(self, agent_id: str) -> list[Allocation]:
        return [self.tables[Allocation][record_id] for record_id in sorted(self._allocation_ids[agent_id])]

    def checkpoints_of(self, trial_id: str) -> list[Checkpoint]:
        return [
            self.tables[Checkpoint][checkpoint_id] for checkpoint_id in sorted(self._checkpoint_ids.get(trial_id, ()))
        ]

    def experiment_of_request(self, request_id: str) -> Experiment | None:
        experiment_id = self._experiment_ids.get(request_id)
        return None if experiment_id is None else self.find(Experiment, experiment_id)

    def experiments_in_deletion(self) -> list[Experiment]:
        return [self.tables[Experiment][experiment_id] for experiment_id in sorted(self._deleting_ids)]

    def has_deleted_code(self, code_sha256: str, num_deleted: int) -> bool:
        return max(self._num_deleted_before, self._deleted_code.get(code_sha256, 0)) > num_deleted

    def experiments_beginning_from(self, checkpoint_id: str) -> list[Experiment]:
        experiments = (self.find(Experiment, key) for key in sorted(self._beginning_ids.get(checkpoint_id, ())))
        return [item for item in experiments if item is not None and item.state is not State.TERMINAL]

    def versions_of_checkpoint(self, checkpoint_id: str) -> list[ModelVersion]:
        return [self.tables[ModelVersion][key] for key in sorted(self._version_ids.get(checkpoint_id, ()))]

    def versions_of_model(self, model_id: int) -> list[ModelVersion]:
        return [self.tables[ModelVersion][key] for key in self._model_version_ids.get(model_id, ())]

    def held(self) -> Held:
        return self._held

    def changed_since(self, num_changes: int) -> Iterator[int]:
        """Yields the experiments of which a record changed after the count of changes was `num_changes`, the latest
        first.
        """
        for experiment_id in reversed(self._changed):
            if self._changed[experiment_id] <= num_changes:
                return
            yield experiment_id

    def apply(self, change: StateChange, revision: int) -> None:
        """Applies a committed change. revision: at which etcd holds the change."""
        for record in change.puts:
            self.tables[type(record)][id_of(record)] = record
            self._note_change(record)
            self._index(record)
        for record_type, record_id in change.deletes:
            record = self.tables[record_type].pop(record_id, None)
            self._note_change(record)
            self._unindex(record)
        self.revision = max(self.revision, revision)

    def _note_change(self, record: Record | None) -> None:
        """Moves the record's experiment to the end of `_changed`, which is ordered by the latest change."""
        experiment_id = record.id if isinstance(record, Experiment) else getattr(record, "experiment_id", None)
        if experiment_id is not None:
            self.num_changes += 1
            self._changed.pop(experiment_id, None)
            self._changed[experiment_id] = self.num_changes

    def _index(self, record: Record) -> None:
        match record:
            case Trial():
                self._trial_ids[record.experiment_id].add(record.id)
                if record.state is State.TERMINAL:
                    self._unended_ids[record.experiment_id].discard(record.id)
                else:
                    self._unended_ids[record.experiment_id].add(record.id)
            case Allocation():
                for member in record.members:
                    self._allocation_ids[member.agent_id].add(record.id)
                self._held.put_allocation(record, self.find(Experiment, record.experiment_id))
            case Checkpoint():
                self._checkpoint_ids[record.trial_id].add(record.id)
            case Search():
                if record.source_checkpoint_id:
                    self._beginning_ids[record.source_checkpoint_id].add(record.experiment_id)
            case ModelVersion():
                self._version_ids[record.checkpoint_id].add(record.id)
                self._model_version_ids[record.model_id].add(record.id)
            case Experiment():
                self._held.put_experiment(record)
                if record.request_id:
                    self._experiment_ids[record.request_id] = record.id
                if record.is_deleting:
                    self._deleting_ids.add(record.id)

    def _unindex(self, record: Record | None) -> None:
        match record:
            case Trial():
                self._trial_ids[record.experiment_id].discard(record.id)
                self._unended_ids[record.experiment_id].discard(record.id)
            case Allocation():
                for member in record.members:
                    self._allocation_ids[member.agent_id].discard(record.id)
                self._held.remove_allocation(record)
            case Checkpoint():
                self._checkpoint_ids[record.trial_id].discard(record.id)
            case Search():
                if record.source_checkpoint_id:
                    self._beginning_ids[record.source_checkpoint_id].discard(record.experiment_id)
            case ModelVersion():
                self._version_ids[record.checkpoint_id].discard(record.id)
                self._model_version_ids[record.model_id].discard(record.id)
            case Experiment():
                self._trial_ids.pop(record.id, None)
                self._unended_ids.pop(record.id, None)
                self._experiment_ids.pop(record.request_id, None)
                self._deleting_ids.discard(record.id)
                self._deleted_code.update(dict.fromkeys(record.code_sha256s, self._num_deleted))


class Draft:
    """Shows records as they will be: transitions that belong together read one another's effects here."""

    def __init__(self, base: Records) -> None:
        self._base = base
        self._puts: dict[Reference, Record] = {}
        self._deletes: dict[Reference, None] = {}

    def put(self, record: Record) -> None:
        """Adds the record; an unchanged record is not written."""
        reference = (type(record), id_of(record))
        if self.find(*reference) == record:
            return
        self._deletes.pop(reference, None)
        self._puts[reference] = record

    def delete(self, record_type: type[Any], record_id: Id) -> None:
        if self.find(record_type, record_id) is None:
            return
        self._puts.pop((record_type, record_id), None)
        if self._base.find(record_type, record_id) is not None:
            self._deletes[record_type, record_id] = None

    def add(self, change: StateChange) -> None:
        for record in change.puts:
            self.put(record)
        for record_type, record_id in change.deletes:
            self.delete(record_type, record_id)

    @property
    def change(self) -> StateChange:
        return StateChange(tuple(self._puts.values()), tuple(self._deletes))

    def find(self, record_type: type[R], record_id: Id) -> R | None:
        reference = (record_type, record_id)
        if reference in self._puts:
            return cast("R", self._puts[reference])
        return None if reference in self._deletes else self._base.find(record_type, record_id)

    def all_of(self, record_type: type[R]) -> Iterable[R]:
        new = {reference[1]: record for reference, record in self._puts.items() if reference[0] is record_type}
        for record in self._base.all_of(record_type):
            record_id = id_of(cast("Record", record))
            if record_id not in new and (record_type, record_id) not in self._deletes:
                yield record
        yield from cast("Iterable[R]", new.values())

    def trials_of(self, experiment_id: int) -> list[Trial]:
        return self._with_puts(self._base.trials_of(experiment_id), experiment_id)

    def num_trials_of(self, experiment_id: int) -> int:
        num_new = sum(self._base.find(Trial, trial.id) is None for trial in self._put_trials(experiment_id))
        deleted = (self._base.find(Trial, trial_id) for kind, trial_id in self._deletes if kind is Trial)
        num_deleted = sum(trial is not None and trial.experiment_id == experiment_id for trial in deleted)
        return self._base.num_trials_of(experiment_id) + num_new - num_deleted

    def unended_trials_of(self, experiment_id: int) -> list[Trial]:
        trials = self._with_puts(self._base.unended_trials_of(experiment_id), experiment_id)
        return [trial for trial in trials if trial.state is not State.TERMINAL]

    def _with_puts(self, base: list[Trial], experiment_id: int) -> list[Trial]:
        """Returns these trials as they will be, with the new ones and without the deleted ones, ordered by number."""
        trials = {trial.id: trial for trial in base}
        trials |= {trial.id: trial for trial in self._put_trials(experiment_id)}
        kept = (trial for trial in trials.values() if (Trial, trial.id) not in self._deletes)
        return sorted(kept, key=_number_of)

    def _put_trials(self, experiment_id: int) -> Iterator[Trial]:
        trials = (record for record in self._puts.values() if isinstance(record, Trial))
        return (trial for trial in trials if trial.experiment_id == experiment_id)

    def allocations_on(self, agent_id: str) -> list[Allocation]:
        there = {allocation.id: allocation for allocation in self._base.allocations_on(agent_id)}
        new = (record for record in self._puts.values() if isinstance(record, Allocation))
        there |= {a.id: a for a in new if any(member.agent_id == agent_id for member in a.members)}
        return [there[record_id] for record_id in sorted(there) if (Allocation, record_id) not in self._deletes]

    def checkpoints_of(self, trial_id: str) -> list[Checkpoint]:
        there = {checkpoint.id: checkpoint for checkpoint in self._base.checkpoints_of(trial_id)}
        new = (record for record in self._puts.values() if isinstance(record, Checkpoint))
        there |= {checkpoint.id: checkpoint for checkpoint in new if checkpoint.trial_id == trial_id}
        return [
            there[checkpoint_id] for checkpoint_id in sorted(there) if (Checkpoint, checkpoint_id) not in self._deletes
        ]

    def experiment_of_request(self, request_id: str) -> Experiment | None:
        for record in self._puts.values():
            if isinstance(record, Experiment) and record.request_id == request_id:
                return record
        experiment = self._base.experiment_of_request(request_id)
        return None if experiment is None else self.find(Experiment, experiment.id)

    def experiments_in_deletion(self) -> list[Experiment]:
        experiment_ids = {experiment.id for experiment in self._base.experiments_in_deletion()}
        experiment_ids |= {record.id for record in self._puts.values() if isinstance(record, Experiment)}
        experiments = (self.find(Experiment, experiment_id) for experiment_id in sorted(experiment_ids))
        return [experiment for experiment in experiments if experiment is not None and experiment.is_deleting]

    def has_deleted_code(self, code_sha256: str, num_deleted: int) -> bool:
        deleted = (self._base.find(Experiment, record_id) for kind, record_id in self._deletes if kind is Experiment)
        if any(experiment is not None and code_sha256 in experiment.code_sha256s for experiment in deleted):
            return True
        return self._base.has_deleted_code(code_sha256, num_deleted)

    def experiments_beginning_from(self, checkpoint_id: str) -> list[Experiment]:
        ids = {experiment.id for experiment in self._base.experiments_beginning_from(checkpoint_id)}
        new = (record for record in self._puts.values() if isinstance(record, Search))
        ids |= {search.experiment_id for search in new if search.source_checkpoint_id == checkpoint_id}
        experiments = (self.find(Experiment, experiment_id) for experiment_id in sorted(ids))
        return [item for item in experiments if item is not None and item.state is not State.TERMINAL]

    def versions_of_checkpoint(self, checkpoint_id: str) -> list[ModelVersion]:
        before = self._base.versions_of_checkpoint(checkpoint_id)
        return sorted(
            self._versions(before, lambda version: version.checkpoint_id == checkpoint_id), key=attrgetter("id")
        )

    def versions_of_model(self, model_id: int) -> list[ModelVersion]:
        return self._versions(self._base.versions_of_model(model_id), lambda version: version.model_id == model_id)

    def _versions(self, before: list[ModelVersion], is_wanted: Callable[[ModelVersion], bool]) -> list[ModelVersion]:
        """Returns the wanted versions, of which the base has those before."""
        new = (record for record in self._puts.values() if isinstance(record, ModelVersion))
        there = {version.id: version for version in before}
        there |= {version.id: version for version in new if is_wanted(version)}
        return [version for key, version in there.items() if (ModelVersion, key) not in self._deletes]

    def held(self) -> Held:
        puts, find = self._puts.values(), self._base.find
        new = [each for each in puts if isinstance(each, Allocation) and find(Allocation, each.id) is None]
        gone = [find(Allocation, key) for record_type, key in self._deletes if record_type is Allocation]
        begun = [(allocation, self.find(Experiment, allocation.experiment_id)) for allocation in new]
        ended = [(each, find(Experiment, each.experiment_id)) for each in gone if each is not None]
        return ChangedSlots(self._base.held(), begun, ended)
