"""Months in UTC, and the count of slot-hours over their ends."""

from __future__ import annotations

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gangline.domain.quota import (
    QuotaChange,
    QuotaView,
    SlotUse,
    check_quota_change,
    check_quota_kind,
    counted_month,
    format_hours,
    month_of,
    month_start,
    never_allowed,
    next_month_start,
    user_subject,
    with_ended,
)
from gangline.errors import GanglineError

ADA = user_subject("ada")
NOVEMBER = month_start("2026-11")
DECEMBER = month_start("2026-12")


@given(at=st.integers(-(10**9), 10**10))
def test_months_are_those_of_utc(at: int) -> None:
    month = month_of(at)
    assert month == datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
    assert month_start(month) <= at < next_month_start(month)
    assert month_of(month_start(month)) == month
    assert month_of(next_month_start(month) - 1) == month


def test_ends_within_a_month_add_up() -> None:
    use = with_ended(None, ADA, 4, NOVEMBER + 10, NOVEMBER + 110)
    assert use == SlotUse(ADA, "2026-11", 400.0)
    assert with_ended(use, ADA, 1, NOVEMBER, NOVEMBER + 50).slot_seconds == 450.0


def test_a_run_over_the_end_of_a_month_counts_its_part_in_the_new_one() -> None:
    use = SlotUse(ADA, "2026-11", 1000.0)
    assert with_ended(use, ADA, 2, DECEMBER - 500, DECEMBER + 30) == SlotUse(ADA, "2026-12", 60.0)
    assert with_ended(use, ADA, 2, DECEMBER - 500, DECEMBER) == SlotUse(ADA, "2026-12", 0.0)


def test_a_leader_whose_clock_is_behind_goes_on_in_the_recorded_month() -> None:
    use = SlotUse(ADA, "2026-12", 60.0)
    assert counted_month(use, DECEMBER - 1) == "2026-12"
    assert with_ended(use, ADA, 2, DECEMBER - 500, DECEMBER - 1) == use


def test_a_clock_that_was_set_back_counts_nothing_negative() -> None:
    assert with_ended(None, ADA, 2, NOVEMBER + 500, NOVEMBER + 100).slot_seconds == 0.0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (QuotaChange(), "quota.nothing"),
        (QuotaChange(10_000_001), "quota.value"),
        (QuotaChange(slot_hours=float("nan")), "quota.value"),
        (QuotaChange(slot_hours=float("inf")), "quota.value"),
        (QuotaChange(slot_hours=1e11), "quota.value"),
    ],
)
def test_values_that_are_no_quota(change: QuotaChange, code: str) -> None:
    with pytest.raises(GanglineError) as failure:
        check_quota_change(change)
    assert failure.value.code == code


def test_kinds_and_lines() -> None:
    with pytest.raises(GanglineError, match="of a user or a workspace, not of a 'pool'"):
        check_quota_kind("pool")
    line = "would need 16 slots, user ada may have 8; ask an administrator"
    assert never_allowed(16, "user ada", 8, "slots") == f"{line}, or set slots to at most 8"
    assert never_allowed(16, "user ada", 0, "slots") == line.replace("8", "0")
    assert [format_hours(hours) for hours in (8.0, 8.5, 0.0004, 100.0, 1 / 3)] == ["8", "8.5", "0", "100", "0.333"]


def test_what_is_left_is_never_negative() -> None:
    over = QuotaView(ADA, "ada", 8, 100.0, held_slots=12, used_hours=101.0)
    assert (over.left_slots, over.left_hours) == (0, 0.0)
    assert (QuotaView().left_slots, QuotaView().left_hours) == (None, None)
