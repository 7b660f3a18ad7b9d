"""The program for containers: the choice between podman and docker, and the removal of a container by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common import container_program
from services.common.container_program import find_program, plan_removal, remove_container


@pytest.mark.parametrize(
    ("named", "there", "expected"),
    [
        ([], {"podman", "docker"}, ("podman",)),
        ([], {"docker"}, ("docker",)),
        ([], set(), ()),
        (["none"], {"podman"}, ()),
        (["docker"], {"podman"}, ("docker",)),
        (["podman", "--runtime", "runc"], set(), ("podman", "--runtime", "runc")),
    ],
)
def test_the_operators_program_wins_over_what_is_there(
    named: list[str], there: set[str], expected: tuple[str, ...]
) -> None:
    assert find_program(named, lambda name: name if name in there else None) == expected


def test_podman_is_told_not_to_wait_and_docker_never_does() -> None:
    assert plan_removal(["podman", "--runtime", "runc"], "x") == [
        *("podman", "--runtime", "runc", "rm", "--force", "--ignore", "--time", "0", "x")
    ]
    assert plan_removal(["/usr/bin/docker"], "x") == ["/usr/bin/docker", "rm", "--force", "x"]


def program(folder: Path, script: str) -> list[str]:
    path = folder / "docker"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)
    return [str(path)]


@pytest.mark.parametrize(
    ("script", "is_gone"),
    [
        ("exit 0", True),
        ("echo 'Error response from daemon: No such container: x' >&2; exit 1", True),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", False),
    ],
)
async def test_a_container_counts_as_gone_only_if_the_program_says_so(
    tmp_path: Path, script: str, is_gone: bool
) -> None:
    assert await remove_container(program(tmp_path, script), "x") is is_gone
    assert (tmp_path / "calls").read_text() == "rm --force x\n"


async def test_a_program_that_hangs_or_is_missing_delays_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_program, "REMOVE_SECONDS", 0.2)
    assert not await remove_container(program(tmp_path, "exec sleep 600"), "x")
    assert not await remove_container([str(tmp_path / "docker-of-yesterday")], "x")
