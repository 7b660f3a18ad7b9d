"""The times and ranks that a user types for logs, and the time at the head of each line."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gangline.cli.logs import _format_second, format_instant, parse_ranks, parse_time
from gangline.errors import GanglineError

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's zone is one hour ahead of UTC, and half an hour more."""
    monkeypatch.setenv("TZ", "XYZ-1:30")
    time.tzset()
    _format_second.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    _format_second.cache_clear()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", NOW - 30),
        ("10m", NOW - 600),
        (" 2 h ", NOW - 7200),
        ("1d", NOW - 86400),
        ("1w", NOW - 604800),
        ("0s", NOW),
        ("1970-01-01T01:30", 0.0),
        ("1970-01-01 01:30:00.5", 0.5),
        ("1970-01-01", -5400.0),
        ("1970-01-01T00:00:00Z", 0.0),
        ("1970-01-01T02:00:00+02:00", 0.0),
        ("19700101T000000Z", 0.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time("--since", text, NOW) == seconds


def test_no_time_is_given() -> None:
    assert parse_time("--since", "", NOW) is None


@pytest.mark.parametrize(
    "text",
    [
        *("yesterday", "10", "10x", "-5m", "1.5h", "2026-13-01", "2026-11-23T25:00", "9999999999d", "٣m"),
        *("\x1b[2J\n10m", " ", "\udcff"),
    ],
)
def test_bad_time_is_one_line_that_names_the_option(text: str) -> None:
    with pytest.raises(GanglineError) as failure:
        parse_time("--until", text, NOW)
    assert failure.value.code == "logs.time"
    assert failure.value.message.startswith("--until '")
    assert "is no time; write an age such as 30s, 10m, 2h or 1d, or an ISO time such as" in failure.value.message
    assert failure.value.message.isprintable()


def test_ranks() -> None:
    assert parse_ranks(["0"]) == (0,)
    assert parse_ranks(["3", "0,2", "3"]) == (3, 0, 2)
    assert parse_ranks([]) == ()


@pytest.mark.parametrize("text", ["x", "-1", "1.0", "0,", "", "9" * 10, "٣", "0-3"])
def test_bad_rank(text: str) -> None:
    with pytest.raises(GanglineError, match="is no rank; ranks are numbers from 0"):
        parse_ranks([text])


def test_instant_is_in_the_users_zone() -> None:
    assert format_instant(0.0) == "1970-01-01 01:30:00.000"
    assert format_instant(1001.001) == "1970-01-01 01:46:41.001"
    assert format_instant(59.9996) == "1970-01-01 01:31:00.000"
    assert format_instant(-0.25) == "1970-01-01 01:29:59.750"
    for impossible in (1e300, float("nan"), float("inf")):
        assert format_instant(impossible) == "-----------------------"
