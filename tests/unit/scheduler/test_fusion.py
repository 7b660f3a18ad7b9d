"""The scheduler's records of tensor fusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.domain.experiment import Experiment
from gangline.domain.fusion import LIFETIME_SECONDS, FusionRecord, owned_key, recall
from gangline.errors import GanglineError
from services.common import keys
from services.common.etcd import KeyValue
from services.scheduler.state.codec import operations_of, record_of
from services.scheduler.state.records import SchedulerState, StateChange
from services.scheduler.transition.fusion import (
    MOST_BUCKETS,
    MOST_OF_OWNER,
    MOST_RECORDS,
    check_fusion_key,
    fusion_doubted,
    fusion_forgotten,
    fusion_found,
)

_FOUND = FusionRecord("ab12-cd34", "a model", (1000, 2000), 2.0, 1.5, 4, 24, 0.001, 1e8, 32, "wire_ratio=1.0", 3000)


# Experiment 7 is ann's, as is 8; 9 is bob's.
_OWNERS = {7: "ann", 8: "ann", 9: "bob"}


def _state(*records: FusionRecord) -> SchedulerState:
    state = SchedulerState()
    experiments = (Experiment(number, "e", owner, "{}", "0") for number, owner in _OWNERS.items())
    state.apply(StateChange((*experiments, *records)), 1)
    return state


def _of(owner: str, **changes: Any) -> FusionRecord:
    """The record as the scheduler keeps it for a trial of this user."""
    return replace(_FOUND, key=owned_key(_FOUND.key, owner), **changes)


def test_record_is_kept_for_the_trial_that_says_so() -> None:
    lying = replace(_FOUND, trial_id="9.9", created_at=1e12)
    change = fusion_found(_state(), lying, "7.1", now=100.0)
    assert change.puts == (_of("ann", trial_id="7.1", created_at=100.0),)


def test_trial_changes_and_forgets_records_of_its_own_user_alone() -> None:
    state = _state(_of("ann", trial_id="7.1"))
    change = fusion_found(state, replace(_FOUND, steps=1), "9.1", now=100.0)
    assert [record.key for record in change.all_of(FusionRecord)] == [owned_key(_FOUND.key, "bob")]
    # Nor does it by the whole key of another user's record.
    assert not fusion_found(state, _of("ann", steps=1), "9.1", now=100.0)
    assert not fusion_doubted(state, _FOUND.key, "9.1")
    assert not fusion_doubted(state, owned_key(_FOUND.key, "ann"), "9.1")
    assert fusion_doubted(state, _FOUND.key, "8.1").deletes == ((FusionRecord, owned_key(_FOUND.key, "ann")),)


def test_record_of_an_earlier_version_is_forgotten_by_its_own_user() -> None:
    state = _state(replace(_FOUND, trial_id="7.1"))
    assert not fusion_doubted(state, _FOUND.key, "9.1")
    assert fusion_doubted(state, _FOUND.key, "8.1").deletes == ((FusionRecord, _FOUND.key),)


def test_own_record_counts_before_newer_ones_of_others() -> None:
    own, other, earlier = _of("ann", steps=1), _of("bob", steps=2, created_at=9.0), replace(_FOUND, steps=3)
    unlike = replace(_FOUND, key="ff-00")
    for user, steps in (("ann", 1), ("bob", 2), ("cyd", 2)):
        (found,) = recall([own, other, earlier, unlike], "ab12", user)
        assert (found.key, found.steps) == (_FOUND.key, steps)
    assert recall([earlier], "ab12", "ann") == [earlier]


def test_records_of_one_user_crowd_out_their_own_first() -> None:
    many = [
        replace(_FOUND, key=owned_key(f"ab-{number:x}", "bob"), created_at=10.0 + number)
        for number in range(MOST_OF_OWNER)
    ]
    change = fusion_found(_state(_of("ann", created_at=1.0), *many), _FOUND, "9.1", now=500.0)
    assert change.deletes == ((FusionRecord, many[0].key),)


def test_record_comes_back_from_etcd() -> None:
    (put,) = operations_of(StateChange((_FOUND,)))
    assert put.key == keys.FUSION + _FOUND.key
    assert record_of(KeyValue(put.key, put.value, 1, 1)) == _FOUND  # type: ignore[union-attr]  # it is a Put


@pytest.mark.parametrize("bad", [{"key": "../users/admin"}, {"key": ""}, {"bucket_bytes": (1,) * (MOST_BUCKETS + 1)}])
def test_what_cannot_be_kept_is_left_out(bad: dict[str, object]) -> None:
    assert not fusion_found(_state(), replace(_FOUND, **bad), "7.1", now=100.0)  # type: ignore[arg-type]  # by name


def test_newer_record_of_a_key_replaces_the_older_one() -> None:
    state = _state(_of("ann", created_at=50.0))
    change = fusion_found(state, replace(_FOUND, steps=30), "7.1", now=100.0)
    assert [record.steps for record in change.all_of(FusionRecord)] == [30]
    assert change.deletes == ()


def test_too_old_and_too_many_records_make_room() -> None:
    old = replace(_FOUND, key="00-00", created_at=1.0)
    fresh = [
        replace(_FOUND, key=f"ab-{number:x}", created_at=LIFETIME_SECONDS + number) for number in range(MOST_RECORDS)
    ]
    change = fusion_found(_state(old, *fresh), _FOUND, "7.1", now=LIFETIME_SECONDS + 2000)
    assert {key for _, key in change.deletes} == {"00-00", "ab-0"}


def test_forgetting_what_is_not_there_changes_nothing() -> None:
    assert fusion_forgotten(_state(_FOUND), _FOUND.key).deletes == ((FusionRecord, _FOUND.key),)
    assert not fusion_forgotten(_state(), _FOUND.key)


def test_key_that_is_none_is_refused() -> None:
    check_fusion_key(_FOUND.key)
    with pytest.raises(GanglineError, match="no key of a fusion record"):
        check_fusion_key("users/admin")
