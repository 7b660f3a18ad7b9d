"""Control groups of ranks: where they may lie, what is written into them, and what is read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common import rank_cgroup

OWN = "12:pids:/elsewhere\n0::/system.slice/gangline-agent.service/agent\n"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The group of the agent's unit, as the kernel shows it."""
    group = tmp_path / "system.slice/gangline-agent.service"
    (group / "agent").mkdir(parents=True)
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.subtree_control").write_text("")
    return group


def test_the_root_is_the_delegated_group_above_the_agents_own(tmp_path: Path, unit: Path) -> None:
    assert rank_cgroup.find_root(OWN, tmp_path, lambda group: group == unit) == (unit, "")
    rank_cgroup.enable(unit)
    assert (unit / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.parametrize(
    ("own", "found", "why"),
    [
        ("4:memory:/agent\n", ("memory pids", True), "the kernel has no control groups of version 2"),
        ("0::/\n", ("memory pids", True), "the agent is in no subgroup of a delegated group"),
        (OWN, ("memory pids", False), "the agent is in no subgroup of a delegated group"),
        # An agent in the delegated group itself: a group with processes cannot limit its subgroups.
        ("0::/system.slice/gangline-agent.service\n", ("memory pids", True), "the agent is in no subgroup"),
        (OWN, ("cpu pids", True), "gangline-agent.service has no controller memory; delegate it"),
        (OWN, ("cpu memory", True), "gangline-agent.service has no controller pids; delegate it"),
        (OWN, (None, True), "cannot read the controllers of "),
    ],
)
def test_without_a_delegated_group_the_reason_is_given(
    tmp_path: Path, unit: Path, own: str, found: tuple[str | None, bool], why: str
) -> None:
    """found: the controllers of the group above the agent's, and whether systemd has marked it."""
    controllers, marked = found
    if controllers is None:
        (unit / "cgroup.controllers").unlink()
    else:
        (unit / "cgroup.controllers").write_text(controllers)
    root, reason = rank_cgroup.find_root(own, tmp_path, lambda group: marked and group == unit)
    assert root is None
    assert why in reason


def test_a_folder_without_the_mark_of_systemd_is_not_delegated(tmp_path: Path) -> None:
    assert not rank_cgroup.is_delegated(tmp_path)
    assert not rank_cgroup.is_delegated(tmp_path / "missing")


def test_a_group_gets_only_the_limits_that_are_set(unit: Path) -> None:
    group = rank_cgroup.path_of(unit, "7.1.1", 3)
    rank_cgroup.make(group, 5 << 20, 0)
    assert {path.name: path.read_text() for path in group.iterdir()} == {
        "memory.max": str(5 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }
    other = rank_cgroup.path_of(unit, "7.1.1", 4)
    rank_cgroup.make(other, 0, 64)
    assert {path.name: path.read_text() for path in other.iterdir()} == {"pids.max": "64"}


def test_counts_are_zero_until_the_kernel_has_written_them(unit: Path) -> None:
    group = rank_cgroup.path_of(unit, "7.1.1", 0)
    assert rank_cgroup.count_memory_kills(group) == 0
    group.mkdir()
    (group / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert rank_cgroup.count_memory_kills(group) == 3
    (group / "memory.events").write_text("oom_kill many\n")
    assert rank_cgroup.count_memory_kills(group) == 0


def test_only_the_groups_of_one_allocation_are_removed(unit: Path) -> None:
    for allocation_id, rank in (("7.1.1", -1), ("7.1.1", 0), ("7.1.11", 0)):
        rank_cgroup.path_of(unit, allocation_id, rank).mkdir()
    rank_cgroup.remove_all(unit, "7.1.1")
    # In the kernel's file system the files of a group go with it; here the order to kill stays and shows itself.
    for group in unit.glob("ranks-7.1.1-*"):
        assert (group / "cgroup.kill").read_text() == "1"
    assert not (rank_cgroup.path_of(unit, "7.1.11", 0) / "cgroup.kill").exists()
    rank_cgroup.remove_all(unit / "missing", "7.1.1")
