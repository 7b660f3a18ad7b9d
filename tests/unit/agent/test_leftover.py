"""What the agent removes after the end of a runner: a container by its name, the login, and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.leftover import remove_leftovers
from services.common import rank_cgroup
from services.common.rank_rules import FILE_NAME, RankRules, write_rules


@pytest.fixture
def folder(tmp_path: Path) -> AllocationFolder:
    folder = AllocationFolder(tmp_path / "state/allocations/7.1.1")
    folder.path.mkdir(parents=True)
    return folder


def program(tmp_path: Path, code: int) -> list[str]:
    path = tmp_path / "podman"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexit {code}\n')
    path.chmod(0o755)
    return [str(path)]


async def test_nothing_is_left_as_a_rule(folder: AllocationFolder) -> None:
    await remove_leftovers(folder)
    assert not list(folder.path.iterdir())


async def test_a_container_and_its_login_are_removed_once(folder: AllocationFolder, tmp_path: Path) -> None:
    folder.write_container(program(tmp_path, 0), "gangline-7.1.1")
    folder.registry_path.mkdir()
    for _ in range(2):
        await remove_leftovers(folder)
    assert (tmp_path / "calls").read_text() == "rm --force --ignore --time 0 gangline-7.1.1\n"
    assert not list(folder.path.iterdir())


async def test_a_container_that_cannot_be_removed_stays_on_record(folder: AllocationFolder, tmp_path: Path) -> None:
    folder.write_container(program(tmp_path, 1), "gangline-7.1.1")
    await remove_leftovers(folder)
    assert folder.load_container() == ([str(tmp_path / "podman")], "gangline-7.1.1")


@pytest.mark.parametrize("text", ["", "[]", '{"name": "x"}', '{"program": 5, "name": "x"}'])
async def test_a_damaged_record_of_a_container_delays_no_end(folder: AllocationFolder, text: str) -> None:
    folder.container_path.write_text(text)
    await remove_leftovers(folder)
    assert folder.load_container() is None


async def test_control_groups_are_removed_by_the_rules(folder: AllocationFolder, tmp_path: Path) -> None:
    root = tmp_path / "groups"
    root.mkdir()
    group = rank_cgroup.path_of(root, "7.1.1", 0)
    group.mkdir()
    write_rules(folder.state.path, RankRules(memory_mb=1, cgroup=str(root)))
    await remove_leftovers(folder)
    assert (group / "cgroup.kill").read_text() == "1"
    (folder.state.path / FILE_NAME).write_text("{")
    await remove_leftovers(folder)
