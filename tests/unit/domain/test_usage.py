"""The slots that an allocation uses, the part of it in a period, and the sums of a report."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member, Timeline
from gangline.domain.state import UsageGroup
from gangline.domain.usage import MAX_ENDING, AllocationUsage, AttemptUsage, UsageEntry, add_up, entry_of, usage_of

_ALLOCATION = Allocation(
    "7.1.2", "7.1", 7, 2, 1, "default", (Member("a1", 0, ("a1/0", "a1/GPU-5f")), Member("a2", 1, ("a2/MIG-1",))),
    created_at=100.0,
)  # fmt: skip
_RECORD = AllocationUsage("7.1.2", 7, "ann", AttemptUsage(2, "default", 1, 2, 100.0, 160.0))


def test_slots_count_by_kind_from_the_placement_to_the_end() -> None:
    assert usage_of(_ALLOCATION, 160.0) == _RECORD.usage


def test_an_attempt_keeps_its_timeline_and_a_short_ending() -> None:
    timeline = Timeline(queued_at=90.0, placed_at=100.0, ranks_up_at=103.0)
    usage = usage_of(replace(_ALLOCATION, timeline=timeline), 160.0, "RuntimeError: " + "x" * 1000)
    assert usage.timeline == timeline
    assert (usage.ending[:14], len(usage.ending)) == ("RuntimeError: ", MAX_ENDING)


@pytest.mark.parametrize(
    ("since", "until", "seconds"),
    [(0, 1000, 60), (110, 1000, 50), (0, 110, 10), (120, 130, 10), (160, 1000, 0), (0, 100, 0), (100, 160, 60)],
)
def test_usage_is_cut_at_the_borders_of_the_period(since: float, until: float, seconds: float) -> None:
    entry = entry_of(_RECORD, UsageGroup.OWNER, since, until)
    assert entry == (UsageEntry("ann", seconds, 2 * seconds, 1) if seconds else None)


def test_periods_that_follow_one_another_add_up_to_the_whole() -> None:
    borders = [0.0, 99.0, 101.5, 130.0, 159.0, 161.0, 900.0]
    parts = [
        entry
        for since, until in itertools.pairwise(borders)
        if (entry := entry_of(_RECORD, UsageGroup.OWNER, since, until)) is not None
    ]
    assert sum(part.slot_seconds for part in parts) == 180.0


@pytest.mark.parametrize(
    ("by", "key"), [(UsageGroup.OWNER, "ann"), (UsageGroup.POOL, "default"), (UsageGroup.EXPERIMENT, "7")]
)
def test_each_group_has_its_key(by: UsageGroup, key: str) -> None:
    entry = entry_of(_RECORD, by, 0, 1000)
    assert entry is not None
    assert entry.key == key


def test_the_largest_sum_comes_first_and_ids_sort_as_numbers() -> None:
    entries = [UsageEntry("10", 1, 0, 1), UsageEntry("9", 0, 1, 1), UsageEntry("2", 3, 2, 1), UsageEntry("2", 1, 0, 1)]
    assert add_up(entries) == (UsageEntry("2", 4, 2, 2), UsageEntry("9", 0, 1, 1), UsageEntry("10", 1, 0, 1))
