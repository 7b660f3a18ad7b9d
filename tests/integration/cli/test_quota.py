"""`gangline quota`: what it sets, lists and refuses, and the lines of `gangline usage`."""

from __future__ import annotations

import json

import pytest

from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway


def test_a_quota_is_set_shown_and_removed(cli: Cli, gateway: StandInGateway) -> None:
    assert cli("quota", "list").out == "no quotas are set\n"
    ran = cli("quota", "set", "user", "ada", "--slots", "8", "--slot-hours", "500")
    line = "user ada: holds 0 of 8 slots, 8 left; has used 0 of 500 slot-hours in 2026-11, 500 left\n"
    assert (ran.status, ran.out) == (0, line)
    gateway.quotas["user", "ada"].held_slots = 12
    gateway.quotas["user", "ada"].used_hours = 112.5
    line = "user ada: holds 12 of 8 slots, 0 left; has used 112.5 of 500 slot-hours in 2026-11, 387.5 left\n"
    assert cli("quota", "show", "user", "ada").out == line
    ran = cli("quota", "set", "user", "ada", "--slots", "none")
    assert ran.out == "user ada: has used 112.5 of 500 slot-hours in 2026-11, 387.5 left\n"
    listed = cli("quota", "list").out.splitlines()
    assert [row.split() for row in listed[1:]] == [["user", "ada", "12", "2026-11", "112.5", "500", "387.5"]]
    [shown] = json.loads(cli("quota", "list", "--json").out)
    assert (shown["max_slots"], shown["slot_hours"]) == (None, 500.0)
    assert cli("quota", "remove", "user", "ada").out == "user ada has no quota now\n"
    ran = cli("quota", "show", "user", "ada")
    assert ran.status != 0
    assert ran.err == "error: user 'ada' has no quota; set one with: gangline quota set user ada --slots N\n"


def test_usage_shows_the_quotas_of_its_rows(cli: Cli, gateway: StandInGateway) -> None:
    gateway.usage.entries.add(key="ada", gpu_slot_seconds=7200.0, num_allocations=3)
    cli("quota", "set", "user", "ada", "--slots", "8")
    cli("quota", "set", "workspace", "lab", "--slot-hours", "10")
    assert cli("usage", "--since", "7d").out.splitlines()[2:] == ["quota of user ada: holds 0 of 8 slots, 8 left"]
    by_workspace = cli("usage", "--since", "7d", "--by", "workspace").out.splitlines()
    assert by_workspace[2:] == ["quota of workspace lab: has used 0 of 10 slot-hours in 2026-11, 10 left"]
    assert len(cli("usage", "--since", "7d", "--by", "pool").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is nothing to change; give --slots, --slot-hours or both"),
        (("--slots", "1.5"), "--slots: 1.5 is no whole number"),
        (("--slots", "-2"), "--slots: '-2' is no number of 0 or more; give one, or 'none'"),
        (("--slots", "many"), "--slots: 'many' is no number of 0 or more; give one, or 'none'"),
        (("--slot-hours", "nan"), "--slot-hours: 'nan' is no number of 0 or more; give one, or 'none'"),
        (("--slot-hours", "inf"), "--slot-hours: 'inf' is no limit; give 'none' to lift it"),
    ],
)
def test_bad_values_are_refused_in_one_line(
    cli: Cli, gateway: StandInGateway, options: tuple[str, ...], message: str
) -> None:
    ran = cli("quota", "set", "user", "ada", *options)
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: {message}\n")
    assert gateway.calls == []
