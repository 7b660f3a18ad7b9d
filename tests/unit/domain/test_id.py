"""Ids in texts for users: an allocation is named by its trial."""

from __future__ import annotations

from gangline.domain.id import describe_allocation, describe_allocations, describe_trial


def test_allocations_are_named_by_their_trials() -> None:
    assert describe_allocation("7.1.2") == "trial 7.1, attempt 2"
    assert describe_allocations(["7.1.2", "8.1.1"]) == "trial 7.1 (attempt 2), trial 8.1 (attempt 1)"
    assert describe_trial("7.1") == "trial 7.1"
    # Tasks of the simulator's files have any name.
    assert describe_allocations(["big", "v1.2.x"]) == "big, v1.2.x"
    assert describe_trial("big") == "big"
