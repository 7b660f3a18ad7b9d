"""Times as users type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gangline.errors import GanglineError
from gangline.when import check_period, parse_when

_NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-30", datetime(2026, 1, 30, tzinfo=UTC)),
        ("2026-01-30T14:30", datetime(2026, 1, 30, 14, 30, tzinfo=UTC)),
        ("2026-01-30 14:30:05", datetime(2026, 1, 30, 14, 30, 5, tzinfo=UTC)),
        ("2026-01-30T14:30Z", datetime(2026, 1, 30, 14, 30, tzinfo=UTC)),
        ("2026-01-30T14:30+02:00", datetime(2026, 1, 30, 14, 30, tzinfo=timezone(timedelta(hours=2)))),
        ("90s", datetime(2026, 1, 31, 11, 58, 30, tzinfo=UTC)),
        ("30m", datetime(2026, 1, 31, 11, 30, tzinfo=UTC)),
        ("1.5h", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
        ("7d", datetime(2026, 1, 24, 12, 0, tzinfo=UTC)),
        ("2w", datetime(2026, 1, 17, 12, 0, tzinfo=UTC)),
    ],
)
def test_dates_times_and_ages(text: str, at: datetime) -> None:
    assert parse_when(text, _NOW, "--since", UTC) == at.timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "7", "7y", "-7d", "7 d", "2026-13-01", "2026-02-30", "9" * 30 + "d"])
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_when(text, _NOW, "--since", UTC)
    assert (caught.value.code, caught.value.message) == (
        "usage.when",
        f"--since {text!r} is no time; give a date or a time such as 2026-01-31 or 2026-01-31T14:00, or an age such as "
        "7d, 12h or 30m",
    )


@pytest.mark.parametrize(
    ("since", "until", "word"),
    [(5.0, 5.0, "ends before"), (6.0, 5.0, "ends before"), (10.0, 12.0, "future"), (float("nan"), 5.0, "future"),
     (1.0, float("nan"), "ends before")],
)  # fmt: skip
def test_a_period_without_time_is_refused(since: float, until: float, word: str) -> None:
    with pytest.raises(GanglineError) as caught:
        check_period(since, until, 10.0)
    assert caught.value.code == "usage.period"
    assert word in caught.value.message
    check_period(1.0, 20.0, 10.0)
