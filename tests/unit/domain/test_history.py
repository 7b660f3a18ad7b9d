"""Filters of logs: one line of error for each value that cannot be carried out, and no error for the others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gangline.domain.history import LogFilter, check_filter, check_ranks_exist, levels_from, parse_level
from gangline.domain.state import LogLevel
from gangline.errors import GanglineError
from gangline.protocol import wire


def test_any_sensible_filter_is_accepted() -> None:
    check_filter(LogFilter())
    check_filter(LogFilter(-1.0, 0.0, (0, 2**31 - 1), tuple(LogLevel), ("a1", "猫"), "(?i)x|猫"))
    check_filter(LogFilter(since=5.0, until=5.0))


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (LogFilter(since=math.nan), "logs.time"),
        (LogFilter(until=math.inf), "logs.time"),
        (LogFilter(since=2.0, until=1.0), "logs.order"),
        (LogFilter(ranks=(-1,)), "logs.rank"),
        (LogFilter(ranks=(2**31,)), "logs.rank"),
        (LogFilter(ranks=("0",)), "logs.rank"),  # type: ignore[arg-type]
        (LogFilter(ranks=tuple(range(501))), "logs.too_many"),
        (LogFilter(agent_ids=("",)), "logs.agent"),
        (LogFilter(agent_ids=("a" * 300,)), "logs.agent"),
        (LogFilter(agent_ids=("\udcff",)), "logs.agent"),
        (LogFilter(agent_ids=("a",) * 501), "logs.too_many"),
        (LogFilter(pattern="x" * 1001), "logs.pattern"),
        (LogFilter(pattern="\udcff"), "logs.pattern"),
        (LogFilter(pattern=None), "logs.pattern"),  # type: ignore[arg-type]
        (LogFilter(agent_ids=(5,)), "logs.agent"),  # type: ignore[arg-type]
    ],
)
def test_filter_that_cannot_be_carried_out(wanted: LogFilter, code: str) -> None:
    with pytest.raises(GanglineError) as failure:
        check_filter(wanted)
    assert failure.value.code == code
    assert len(failure.value.message) < 200
    assert failure.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("debug", LogLevel.DEBUG),
        ("Warning", LogLevel.WARNING),
        ("warn", LogLevel.WARNING),
        ("LOG_LEVEL_ERROR", LogLevel.ERROR),
        ("fatal", LogLevel.CRITICAL),
        (" crit ", LogLevel.CRITICAL),
    ],
)
def test_names_of_levels(text: str, level: LogLevel) -> None:
    assert parse_level(text) is level


def test_unknown_level_names_all() -> None:
    with pytest.raises(GanglineError, match="'loud' is no level; use one of debug, info, warning, error, critical"):
        parse_level("loud")


def test_least_level_selects_the_more_severe_ones() -> None:
    assert levels_from(LogLevel.ERROR) == (LogLevel.ERROR, LogLevel.CRITICAL)
    assert levels_from(LogLevel.DEBUG) == ()


def test_rank_beyond_the_slots() -> None:
    check_ranks_exist((0, 3), 4, "trial 7.1")
    for num_ranks, last in ((4, "ranks 0 to 3"), (1, "rank 0 only")):
        with pytest.raises(GanglineError, match=f"there is no rank 4: trial 7.1 has {last}"):
            check_ranks_exist((0, 4), num_ranks, "trial 7.1")


def test_filter_crosses_the_wire() -> None:
    for wanted in (LogFilter(), LogFilter(0.0, 1.5, (0, 3), (LogLevel.INFO, LogLevel.CRITICAL), ("a1",), "x+")):
        assert wire.from_proto(LogFilter, wire.to_proto(wanted)) == wanted


def test_level_of_a_newer_version_is_left_out() -> None:
    message: Any = wire.to_proto(LogFilter(levels=(LogLevel.ERROR,)))
    message.levels.append(99)
    assert wire.from_proto(LogFilter, message).levels == (LogLevel.ERROR,)
