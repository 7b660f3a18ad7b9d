"""The mirror's state: what each key changes, and for which experiment."""

from __future__ import annotations

import json

from gangline.config.layer.secret_name import MASK
from gangline.domain.allocation import Allocation, Member, Request
from gangline.domain.experiment import Experiment, Project, ProjectDefaults, Trial, Workspace
from gangline.domain.resource import Counter, ServiceInstance
from gangline.domain.state import DeletionStage, State
from gangline.protocol import wire
from services.common import keys
from services.gateway.mirror.cluster_state import ClusterState


def allocation(attempt: int, state: State = State.RUNNING) -> Allocation:
    members = (Member("a1", 0, (f"a1/{attempt}",)),)
    return Allocation(f"7.1.{attempt}", "7.1", 7, attempt, 1, "default", members, state)


def put(state: ClusterState, key: str, record: object) -> set[int]:
    return state.apply(key, wire.encode(record))


def test_each_kind_of_record_touches_its_experiment() -> None:
    state = ClusterState()
    assert put(state, keys.experiment(7), Experiment(7, "n", "o", "{}", "")) == {7}
    assert put(state, keys.trial("7.1"), Trial("7.1", 7, 1)) == {7}
    assert put(state, keys.request("7.1"), Request("7.1", 7, "default", 1)) == {7}
    assert put(state, keys.allocation("7.1.1"), allocation(1)) == {7}
    assert state.apply(keys.request("7.1"), None) == {7}
    assert state.apply(keys.request("7.1"), None) == set()


def test_no_default_of_a_workspace_or_project_shows_a_secret() -> None:
    state = ClusterState()
    defaults = ProjectDefaults("gpu", '{"type": "s3", "bucket": "b", "secret_key": "s3cr3t"}', "base")
    put(state, keys.workspace(2), Workspace(2, "lab", defaults=defaults))
    put(state, keys.project(2), Project(2, 2, "vision", defaults=defaults))
    kept = [each.defaults for each in state.workspaces.all()] + [each.defaults for each in state.projects.all()]
    assert len(kept) == 2
    for shown in kept:
        storage = json.loads(shown.checkpoint_storage_json)
        assert storage == {"type": "s3", "bucket": "b", "secret_key": MASK}
        assert (shown.resource_pool, shown.template) == ("gpu", "base")
    plain = Workspace(3, "plain", defaults=ProjectDefaults(checkpoint_storage_json='{"save_trial_best":  2}'))
    put(state, keys.workspace(3), plain)
    assert state.workspaces.find(keys.workspace(3)) == plain


def test_trials_are_found_by_experiment_and_leave_with_their_key() -> None:
    state = ClusterState()
    for experiment_id, number in [(7, 1), (7, 2), (8, 1)]:
        put(state, keys.trial(f"{experiment_id}.{number}"), Trial(f"{experiment_id}.{number}", experiment_id, number))
    assert {trial.id for trial in state.trials.of(7)} == {"7.1", "7.2"}
    state.apply(keys.trial("7.2"), None)
    assert {trial.id for trial in state.trials.of(7)} == {"7.1"}
    assert list(state.trials.of(9)) == []


def test_live_allocation_is_the_newest_that_has_not_ended() -> None:
    state = ClusterState()
    put(state, keys.allocation("7.1.1"), allocation(1))
    put(state, keys.allocation("7.1.2"), allocation(2, State.STOPPING))
    put(state, keys.allocation("7.1.3"), allocation(3, State.TERMINAL))
    live = state.live_allocation("7.1")
    assert live is not None
    assert live.id == "7.1.2"
    assert state.allocation_id_by_slot_id() == {"a1/1": "7.1.1", "a1/2": "7.1.2"}


def test_a_removed_experiment_is_one_in_deletion_or_one_that_is_gone() -> None:
    state = ClusterState()
    put(state, keys.experiment(7), Experiment(7, "n", "o", "{}", ""))
    assert [number for number in range(10) if state.is_removed(number)] == []
    put(state, keys.NEXT_EXPERIMENT, Counter(9))
    put(state, keys.experiment(8), Experiment(8, "n", "o", "{}", "", deletion=DeletionStage.FILES))
    assert [number for number in range(10) if state.is_removed(number)] == [1, 2, 3, 4, 5, 6, 8]
    assert [experiment.id for experiment in state.deleting.values()] == [8]
    state.apply(keys.experiment(8), None)
    assert (list(state.deleting), state.is_removed(8)) == ([], True)


def test_an_experiment_that_cannot_be_read_is_not_taken_for_a_removed_one() -> None:
    """Otherwise its live runners would be told that they are over."""
    state = ClusterState()
    put(state, keys.NEXT_EXPERIMENT, Counter(9))
    state.apply(keys.experiment(7), b"\xff\xff no message")
    assert not state.is_removed(7)
    state.apply(keys.experiment(7), None)
    assert state.is_removed(7)


def test_trials_whose_allocations_have_ended_are_named() -> None:
    state = ClusterState()
    put(state, keys.allocation("7.1.1"), allocation(1))
    assert list(state.ended_trial_ids) == []
    state.apply(keys.allocation("7.1.1"), None)
    assert list(state.ended_trial_ids) == ["7.1"]


def test_leader_comes_and_goes() -> None:
    state = ClusterState()
    put(state, keys.LEADER, ServiceInstance("s1", "scheduler", "h:1"))
    assert state.leader is not None
    state.apply(keys.LEADER, None)
    assert state.leader is None


def test_unreadable_value_keeps_the_old_record_and_is_counted() -> None:
    state = ClusterState()
    put(state, keys.trial("7.1"), Trial("7.1", 7, 1))
    assert state.apply(keys.trial("7.1"), b"\xff\xff no message") == set()
    assert state.trials.find(keys.trial("7.1")) == Trial("7.1", 7, 1)
    assert state.num_unreadable == 1


def test_keys_of_a_newer_version_are_ignored() -> None:
    assert ClusterState().apply(keys.ROOT + "invented_later/abc", b"anything") == set()
