"""`gangline experiment logs` and `gangline trial logs`: each line's head, and the options that select lines."""

from __future__ import annotations

import json
import time

import pytest

from gangline.domain.history import LogFilter
from gangline.domain.state import LogLevel
from gangline.errors import invalid
from gangline.protocol.wire import from_proto
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_log


def asked(gateway: StandInGateway) -> LogFilter:
    return from_proto(LogFilter, gateway.log_requests[-1].filter)


def test_each_line_has_time_level_and_source(cli: Cli, gateway: StandInGateway) -> None:
    for number, level in enumerate((*LogLevel, "UNSPECIFIED"), 1):
        gateway.logs.append(make_log(number, "text", rank=number, level=level))
        gateway.logs[-1].at += number / 1000
    gateway.logs.append(make_log(9, "two\nlines", rank=None))
    assert cli("experiment", "logs", "1").out.splitlines() == [
        "1970-01-01 00:16:41.001 DEBUG [1.1 rank 1] text",
        "1970-01-01 00:16:42.002 INFO  [1.1 rank 2] text",
        "1970-01-01 00:16:43.003 WARN  [1.1 rank 3] text",
        "1970-01-01 00:16:44.004 ERROR [1.1 rank 4] text",
        "1970-01-01 00:16:45.005 CRIT  [1.1 rank 5] text",
        "1970-01-01 00:16:46.006 INFO  [1.1 rank 6] text",
        "1970-01-01 00:16:49.000 INFO  [1.1 runner] two",
        "1970-01-01 00:16:49.000 INFO  [1.1 runner] lines",
    ]
    entry = json.loads(cli("experiment", "logs", "1", "--tail", "4", "--json").out.splitlines()[0])
    assert (entry["level"], entry["at"]) == ("ERROR", 1004.004)


def test_time_that_is_none_is_dashes(cli: Cli, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(1, "text")]
    gateway.logs[0].at = 1e300
    assert cli("trial", "logs", "1.1").out == "----------------------- INFO  [1.1 rank 0] text\n"


@pytest.mark.parametrize("command", [("experiment", "logs", "1"), ("trial", "logs", "1.1")])
def test_options_reach_the_gateway(cli: Cli, gateway: StandInGateway, command: tuple[str, ...]) -> None:
    gateway.logs = [make_log(1, "text")]
    options = ["--until", "2026-11-23T09:00:00.5", "--rank", "0", "--rank", "2,3", "--agent", "a1", "--agent", "a2"]
    before = time.time()
    ran = cli(*command, "--since", "5000d", *options, "--level", "warning", "--grep", "loss (nan|inf)", "--tail", "7")
    assert (ran.status, ran.err) == (0, "")
    wanted = asked(gateway)
    assert wanted.since == pytest.approx(before - 5000 * 86400, abs=20)
    assert wanted == LogFilter(
        wanted.since,
        1795424400.5,
        (0, 2, 3),
        (LogLevel.WARNING, LogLevel.ERROR, LogLevel.CRITICAL),
        ("a1", "a2"),
        "loss (nan|inf)",
    )
    assert gateway.log_requests[-1].tail == 7


def test_age_counts_from_the_start_of_the_command(cli: Cli, gateway: StandInGateway) -> None:
    """Else the lines of a stream would change when it resumes."""
    gateway.logs = [make_log(n, f"line {n}") for n in range(1, 4)]
    gateway.break_after = 1
    assert len(cli("experiment", "logs", "1", "-f", "--since", "9999d").out.splitlines()) == 3
    first, second = (from_proto(LogFilter, request.filter) for request in gateway.log_requests)
    assert first == second


def test_no_match_is_a_warning(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("experiment", "logs", "1", "--grep", "nothing")
    assert (ran.status, ran.out, ran.err) == (0, "", "warning: no line of experiment 1 matches\n")
    assert cli("trial", "logs", "1.1", "--rank", "0").err == "warning: no line of trial 1.1 matches\n"
    assert cli("experiment", "logs", "1").err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--since", "yesterday"],
            "--since 'yesterday' is no time; write an age such as 30s, 10m, 2h or 1d, or an ISO",
        ),
        (["--until", "\x1b[2J"], "--until '\\x1b[2J' is no time; "),
        (["--since", "2026-11-23", "--until", "2026-11-22"], "since is later than until, so no line could match"),
        (["--since", "10m", "--until", "2h"], "since is later than until, so no line could match"),
        (["--rank", "x"], "--rank 'x' is no rank; ranks are numbers from 0, as in 0 or 0,2"),
        (["--rank", "-1"], "--rank '-1' is no rank; "),
        (["--level", "loud"], "'loud' is no level; use one of debug, info, warning, error, critical"),
        (["--level", "\x1b[2J"], "'\\x1b[2J' is no level; "),
        (["--agent", "\udcff"], "'\\udcff' is no agent's id; list them with: gangline agent list"),
        (["--grep", "x" * 100_000], "the pattern has 100000 characters, at most 1000 are allowed; shorten it"),
        (["--grep", "\udcff"], "the pattern is no text in UTF-8"),
    ],
)
def test_bad_option_is_one_line(cli: Cli, gateway: StandInGateway, options: list[str], message: str) -> None:
    ran = cli("experiment", "logs", "1", *options)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {message}")
    assert ran.err.count("\n") == 1
    assert ran.err.strip("\n").isprintable()
    assert gateway.log_requests == []


def test_refusal_of_the_gateway_is_one_line(cli: Cli, gateway: StandInGateway) -> None:
    gateway.failures = [invalid("logs.pattern", "'(\x1b[2J' is no pattern of RE2: missing )")]
    ran = cli("experiment", "logs", "1", "--grep", "(\x1b[2J")
    assert (ran.status, ran.err) == (2, "error: '(\\x1b[2J' is no pattern of RE2: missing )\n")


def test_gateway_of_an_earlier_version(cli: Cli, gateway: StandInGateway) -> None:
    gateway.knows_filters = False
    gateway.logs = [make_log(1, "text")]
    ran = cli("experiment", "logs", "1", "--level", "error")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == "error: this gateway is too old to filter logs; upgrade it, or read all lines\n"


def test_help_names_the_kind_of_pattern(cli: Cli) -> None:
    shown = " ".join(cli("experiment", "logs", "--help").out.split())
    assert "this pattern of RE2" in shown
    for option in ("--since", "--until", "--rank", "--level", "--agent", "--grep", "--tail"):
        assert option in shown
