"""Reads every revision of a cluster's state from etcd and checks on each what must always hold.

The records of the first revision are listed. The records of later revisions follow from the events of one watch: a list
of all records at each revision costs etcd and the test much more. It owns the checks of I1 (no slot in two live
allocations), I2 (a gang holds all of its slots or none) and I3 (a terminal state never changes). It uses etcd's stubs,
not our client, and needs no event loop.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import ServiceInstance
from gangline.domain.state import CheckpointState, State
from gangline.protocol.wire import decode
from services.common import keys
from services.common.etcd import KeyValue
from services.common.etcd.stub import DELETED, Operation, messages, methods_of
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


class StateHistory:
    """Begins with what is there when it is made; `revisions` reads all since then. Closed by its context.

    address: of etcd's clients. etcd may be killed and started again at the same address in between.
    """

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 500)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._methods: Any = methods_of(self._channel)
        self.first = self.current()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def current(self) -> int:
        return int(self._range(0, is_count=True).header.revision)

    def newest(self, kind: type[R]) -> list[R]:
        """The records of one type as they are now, for tests without a gateway that could be asked."""
        answer = self._range(0)
        return _revision(int(answer.header.revision), _decoded(answer.kvs)).all_of(kind)

    def has_service(self, kind: str) -> bool:
        """Whether a service of this kind is registered now."""
        return any(item.key.decode().startswith(keys.alive(kind, "")) for item in self._range(0).kvs)

    def revisions(self) -> Iterator[Revision]:
        """Yields every revision from the first to that of now, also those in which no record has changed."""
        last = self.current()
        record_by_key = _decoded(self._range(self.first).kvs)
        yield _revision(self.first, record_by_key)
        events_by_number = self._events(self.first + 1, last)
        for number in range(self.first + 1, last + 1):
            for event in events_by_number.get(number, ()):
                key = event.kv.key.decode()
                if event.type == DELETED:
                    record_by_key.pop(key, None)
                else:
                    record_by_key[key] = _decode(key, event.kv.value, int(event.kv.mod_revision))
            yield _revision(number, record_by_key)

    def _events(self, first: int, last: int) -> dict[int, list[Any]]:
        """Returns the events of our records by revision. first, last: revisions, both included."""
        events_by_number: dict[int, list[Any]] = {}
        if first > last:
            return events_by_number
        # All keys are watched, as the last revision need not have changed a record of ours.
        create = messages.WatchCreateRequest(key=b"\0", range_end=b"\0", start_revision=first)
        request = messages.WatchRequest(create_request=create)
        is_read = threading.Event()
        call = self._methods[Operation.WATCH](_until(is_read, request), timeout=20, wait_for_ready=True)
        try:
            for answer in call:
                assert not answer.canceled, f"revision {answer.compact_revision} and those before it are compacted"
                for event in answer.events:
                    if event.kv.key.startswith(keys.ROOT.encode()):
                        events_by_number.setdefault(int(event.kv.mod_revision), []).append(event)
                if answer.events and int(answer.events[-1].kv.mod_revision) >= last:
                    return events_by_number
        finally:
            is_read.set()
            call.cancel()
        raise AssertionError(f"the watch ended before revision {last}")

    def _range(self, revision: int, *, is_count: bool = False) -> Any:
        end = keys.ROOT[:-1] + chr(ord(keys.ROOT[-1]) + 1)
        query = messages.RangeRequest(
            key=keys.ROOT.encode(), range_end=end.encode(), revision=revision, count_only=is_count
        )
        return self._methods[Operation.RANGE](query, timeout=20, wait_for_ready=True)


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


def _until(is_read: threading.Event, request: Any) -> Iterator[Any]:
    """Yields the request. etcd ends a watch when its requests end, so they end after its answers are read."""
    yield request
    is_read.wait()


def _revision(number: int, record_by_key: Mapping[str, Any]) -> Revision:
    records = tuple(record for key, record in record_by_key.items() if key != keys.LEADER and record is not None)
    return Revision(number, records, record_by_key.get(keys.LEADER))


def _decoded(items: Iterable[Any]) -> dict[str, Any]:
    """Returns the records of a range by key."""
    return {item.key.decode(): _decode(item.key.decode(), item.value, int(item.mod_revision)) for item in items}


def _decode(key: str, value: bytes, revision: int) -> Any:
    if key == keys.LEADER:
        return decode(ServiceInstance, value)
    return record_of(KeyValue(key, value, revision, revision))
