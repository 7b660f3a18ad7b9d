"""When a submit counts as the repetition of an earlier one, whatever the clock does."""

from __future__ import annotations

from dataclasses import replace

from gangline.cli.creation.repetition import (
    CREATED_SECONDS,
    MAX_ENTRIES,
    OPEN_SECONDS,
    MachineTime,
    SubmitEntry,
    age_of,
    begun,
    created,
    failed,
    find_earlier,
    living,
)

NOW = MachineTime(wall=1_000_000.0, boot=500.0, boot_id="b1")
OPEN = SubmitEntry("digest", "c1", "r1", NOW.wall, NOW.boot, NOW.boot_id)


def _later(seconds: float, step: float = 0.0, boot_id: str = "b1") -> MachineTime:
    """step: how far the wall clock was set meanwhile."""
    return MachineTime(NOW.wall + seconds + step, NOW.boot + seconds, boot_id)


def test_an_open_submit_is_found_for_a_day_and_a_created_one_for_a_minute() -> None:
    created_entries = created([OPEN], "r1", 7, NOW)
    for entries, limit in (([OPEN], OPEN_SECONDS), (created_entries, CREATED_SECONDS)):
        assert find_earlier(living(entries, _later(limit - 1)), "digest", "c1") is not None
        assert find_earlier(living(entries, _later(limit + 1)), "digest", "c1") is None


def test_only_the_same_content_on_the_same_cluster_counts() -> None:
    assert find_earlier([OPEN], "another", "c1") is None
    assert find_earlier([OPEN], "digest", "c2") is None
    assert find_earlier([OPEN], "digest", "") == OPEN


def test_a_step_of_the_clock_changes_no_age_within_one_boot() -> None:
    created_entries = created([OPEN], "r1", 7, NOW)
    for step in (-90_000.0, 90_000.0):
        assert age_of(created_entries[0], _later(30, step)) == 30
        assert living(created_entries, _later(30, step))
        assert not living(created_entries, _later(90, step))


def test_an_entry_from_the_future_of_another_boot_expires_all_the_same() -> None:
    future = replace(OPEN, wall=NOW.wall + 1e6, boot_id="b0", experiment_id=7)
    (kept,) = living([future], NOW)
    assert age_of(kept, NOW) == 0
    assert not living([kept], _later(CREATED_SECONDS + 1))


def test_a_request_that_two_commands_have_sent_stays_open_when_one_of_them_failed() -> None:
    assert failed([OPEN], "r1") == []
    shared = begun([OPEN], replace(OPEN, num_commands=2))
    assert failed(shared, "r1") == shared
    assert len(shared) == 1


def test_the_newest_of_the_same_content_counts_and_the_list_stays_short() -> None:
    many = [replace(OPEN, request_id=f"r{number}") for number in range(MAX_ENTRIES + 20)]
    kept = living(many, NOW)
    assert len(kept) == MAX_ENTRIES
    entry = find_earlier(kept, "digest", "c1")
    assert entry is not None
    assert entry.request_id == f"r{MAX_ENTRIES + 19}"
