"""A change is read back from the watch as it was written, whatever kinds of records it holds."""

from __future__ import annotations

import pytest

from gangline.domain.resource import Agent, Counter
from services.common import keys
from services.common.etcd import Event, Put, WatchBatch
from services.scheduler.state.codec import change_of, key_of, operations_of
from services.scheduler.state.records import KINDS, SINGLETON, Id, StateChange

SINGLETONS: dict[str, Id] = dict.fromkeys(("Counter", "Cluster", "ProjectCounter", "UserCounter"), SINGLETON)
IDS: dict[str, Id] = {"Experiment": 7, "Search": 7, "SearchLog": "7/1", "Workspace": 7, "Project": 7, "AccessToken": 7}
IDS |= {"Model": 7, "WorkspaceRoles": 7}
IDS |= SINGLETONS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_deletions_name_the_record_by_its_id(kind: type) -> None:
    record_id = IDS.get(kind.__name__, "7.1/x")
    event = Event(key_of(kind, record_id), None, 5, 0)
    assert change_of(WatchBatch(5, (event,))) == StateChange(deletes=((kind, record_id),))


def test_records_come_back_and_other_keys_are_left_out() -> None:
    change = StateChange(puts=(Agent("a1"), Counter(3)))
    writes = [operation for operation in operations_of(change) if isinstance(operation, Put)]
    events = [Event(write.key, write.value, 5, 5) for write in writes]
    events += [Event(keys.LEADER, b"", 5, 5), Event(keys.alive("gateway", "g1"), None, 5, 0)]
    assert change_of(WatchBatch(5, tuple(events))) == change
