"""The scheduler's records of tensor fusion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.fusion import LIFETIME_SECONDS, FusionRecord
from gangline.errors import GanglineError
from services.common import keys
from services.common.etcd import KeyValue
from services.scheduler.state.codec import operations_of, record_of
from services.scheduler.state.records import SchedulerState, StateChange
from services.scheduler.transition.fusion import (
    MOST_BUCKETS,
    MOST_RECORDS,
    check_fusion_key,
    fusion_forgotten,
    fusion_found,
)

_FOUND = FusionRecord("ab12-cd34", "a model", (1000, 2000), 2.0, 1.5, 4, 24, 0.001, 1e8, 32, "wire_ratio=1.0", 3000)


def _state(*records: FusionRecord) -> SchedulerState:
    state = SchedulerState()
    state.apply(StateChange(records), 1)
    return state


def test_record_is_kept_for_the_trial_that_says_so() -> None:
    lying = replace(_FOUND, trial_id="9.9", created_at=1e12)
    change = fusion_found(_state(), lying, "7.1", now=100.0)
    assert change.puts == (replace(_FOUND, trial_id="7.1", created_at=100.0),)


def test_record_comes_back_from_etcd() -> None:
    (put,) = operations_of(StateChange((_FOUND,)))
    assert put.key == keys.FUSION + _FOUND.key
    assert record_of(KeyValue(put.key, put.value, 1, 1)) == _FOUND  # type: ignore[union-attr]  # it is a Put


@pytest.mark.parametrize("bad", [{"key": "../users/admin"}, {"key": ""}, {"bucket_bytes": (1,) * (MOST_BUCKETS + 1)}])
def test_what_cannot_be_kept_is_left_out(bad: dict[str, object]) -> None:
    assert not fusion_found(_state(), replace(_FOUND, **bad), "7.1", now=100.0)  # type: ignore[arg-type]  # by name


def test_newer_record_of_a_key_replaces_the_older_one() -> None:
    state = _state(replace(_FOUND, created_at=50.0))
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
