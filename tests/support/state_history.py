"""Reads every revision of a cluster's state from etcd and checks on each what must always hold.

Owns the checks of I1 (no slot in two live allocations), I2 (a gang holds all of its slots or none) and I3 (a terminal
state never changes). It uses etcd's stubs, not our client, and needs no event loop.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import ServiceInstance
from gangline.domain.state import CheckpointState, State
from gangline.protocol.wire import decode
from services.common import keys
from services.common.etcd import KeyValue
from services.common.etcd.stub import Operation, messages, methods_of
from services.scheduler.state.codec import record_of

R = TypeVar("R")


@dataclass(frozen=True)
class Revision:
    """Holds the leader's records at one revision. leader: absent while there was no leader."""

    number: int
    records: tuple[Any, ...]
    leader: ServiceInstance | None

    def all_of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]


@dataclass
class StateHistory:
    """address: of etcd's clients. Begins with what is there now; `revisions` reads all since then."""

    address: str
    first: int = 0
    _decoded: dict[tuple[str, int], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = self.first or self.current()

    def current(self) -> int:
        return int(self._range(0).header.revision)

    def newest(self, kind: type[R]) -> list[R]:
        """The records of one type as they are now, for tests without a gateway that could be asked."""
        return self._read(self.current()).all_of(kind)

    def has_service(self, kind: str) -> bool:
        """Whether a service of this kind is registered now."""
        return any(item.key.decode().startswith(keys.alive(kind, "")) for item in self._range(0).kvs)

    def revisions(self) -> Iterator[Revision]:
        for number in range(self.first, self.current() + 1):
            yield self._read(number)

    def _read(self, number: int) -> Revision:
        leader, records = None, []
        for item in self._range(number).kvs:
            key, mod = item.key.decode(), int(item.mod_revision)
            if (key, mod) not in self._decoded:
                self._decoded[key, mod] = _decode(key, item.value, mod)
            record = self._decoded[key, mod]
            if key == keys.LEADER:
                leader = record
            elif record is not None:
                records.append(record)
        return Revision(number, tuple(records), leader)

    def _range(self, revision: int) -> Any:
        end = keys.ROOT[:-1] + chr(ord(keys.ROOT[-1]) + 1)
        query = messages.RangeRequest(key=keys.ROOT.encode(), range_end=end.encode(), revision=revision)
        with grpc.insecure_channel(self.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            methods: Any = methods_of(channel)
            return methods[Operation.RANGE](query, timeout=20)


def check_invariants(revisions: Iterable[Revision]) -> list[Revision]:
    """All of them, after I1, I2 and I3 were found to hold on each."""
    checked = []
    ended: dict[tuple[type, Any], Any] = {}
    for revision in revisions:
        _check_slots(revision)
        _check_terminal(revision, ended)
        checked.append(revision)
    return checked


def _check_slots(revision: Revision) -> None:
    config_by_id = {experiment.id: json.loads(experiment.config_json) for experiment in revision.all_of(Experiment)}
    allocations = revision.all_of(Allocation)
    held = Counter(slot for allocation in allocations for member in allocation.members for slot in member.slot_ids)
    twice = [slot for slot, count in held.items() if count > 1]
    assert not twice, f"I1 at revision {revision.number}: {twice} belong to two allocations of {allocations}"
    for allocation in allocations:
        wanted = config_by_id[allocation.experiment_id]["resources"]["slots_per_trial"]
        if allocation.full_slots:
            fewest = config_by_id[allocation.experiment_id]["resources"]["min_slots_per_trial"]
            assert fewest <= allocation.num_slots < allocation.full_slots == wanted, (
                f"I2 at revision {revision.number}: {allocation}"
            )
            continue
        assert allocation.num_slots == wanted, (
            f"I2 at revision {revision.number}: {allocation.num_slots} of {wanted}: {allocation}"
        )
    per_trial = Counter(allocation.trial_id for allocation in allocations)
    assert all(count == 1 for count in per_trial.values()), f"two allocations of one trial: {allocations}"


def _check_terminal(revision: Revision, ended: dict[tuple[type, Any], Any]) -> None:
    records: list[Experiment | Trial] = [*revision.all_of(Experiment), *revision.all_of(Trial)]
    for record in records:
        earlier = ended.get((type(record), record.id))
        assert earlier is None or (earlier.state, earlier.outcome) == (record.state, record.outcome), (
            f"I3 at revision {revision.number}: {earlier} became {record}"
        )
        if record.state is State.TERMINAL:
            ended[type(record), record.id] = record


def named_checkpoints(revisions: Iterable[Revision]) -> dict[str, Checkpoint]:
    """By id, every one that was in state at any time and was never marked for deletion."""
    newest = {checkpoint.id: checkpoint for revision in revisions for checkpoint in revision.all_of(Checkpoint)}
    return {
        checkpoint.id: checkpoint for checkpoint in newest.values() if checkpoint.state is CheckpointState.COMPLETED
    }


def _decode(key: str, value: bytes, revision: int) -> Any:
    if key == keys.LEADER:
        return decode(ServiceInstance, value)
    return record_of(KeyValue(key, value, revision, revision))
