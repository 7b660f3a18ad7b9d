"""The agent's report of the machine's interfaces and name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services.agent.machine.host import _speed, list_interfaces, read_host_id


def test_loopback_is_listed() -> None:
    (loopback,) = [each for each in list_interfaces() if each.address == "127.0.0.1"]
    assert loopback.prefix_length == 8
    assert all(each.speed_mbit >= 0 for each in list_interfaces())


def test_host_id_is_the_same_for_all_processes_of_one_machine() -> None:
    command = [sys.executable, "-c", "from services.agent.machine.host import read_host_id; print(read_host_id())"]
    other = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert other == read_host_id()
    assert len(read_host_id()) > 36


@pytest.mark.parametrize(("said", "meant"), [(0, 0), (65535, 0), ((1 << 32) - 1, 0), (-1, 0), (400_000, 400_000)])
def test_speed_that_drivers_make_up_counts_as_unknown(said: int, meant: int) -> None:
    class Stats:
        speed = said

    assert _speed(Stats()) == meant
