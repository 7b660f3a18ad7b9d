"""Ranks in a real container, started and ended by real runners."""

from __future__ import annotations

import json
import os
import pwd
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.leftover import remove_leftovers
from services.common.rank_rules import RankRules, write_rules
from services.common.state_folder import SharedFolder
from services.trial_runner.container_setup import name_of
from tests.integration.trial_runner.conftest import World
from tests.integration.trial_runner.test_confinement import open_world
from tests.support.container import COMMAND, IMAGE, OPTIONS, containers, mounts, python_in_image, why_no_containers
from tests.support.runner_process import Runner, living
from tests.support.wait import until

__all__ = ["open_world"]

RULES = RankRules(container_command=COMMAND, container_options=(*OPTIONS, *mounts()))


@pytest.fixture(autouse=True)
def _needs_containers() -> None:
    if problem := why_no_containers():
        assert not os.environ.get("CI") or "podman runs no container" in problem, problem
        pytest.skip(problem)


def name_in(runner: Runner) -> str:
    """The name of the container of a runner of this test."""
    return name_of(SharedFolder(runner.directory), runner.directory.parent.parent.name)


def exists(path: str) -> bool:
    return Path(path).exists()


async def start(world: World, script: str, sizes: tuple[int, ...] = (1,), **settings: Any) -> None:
    """Starts runners whose ranks run in containers. rules: of the agents."""
    rules = settings.pop("rules", RULES)
    for number in range(len(sizes)):
        state = world.folder / f"a{number + 1}"
        (state / "allocations").mkdir(parents=True)
        write_rules(state, rules)
    config = {"environment": {"image": IMAGE, "python": python_in_image()}, **settings.pop("config", {})}
    await world.start(script, sizes, config=config, **settings)


LOOK = """
import json, os, pathlib, sys
import torch, gangline
from gangline import core

def fate(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__

with core.init() as context:
    total = sum(context.distributed.allgather(context.distributed.rank + 1))
    if context.distributed.rank == 0:
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            (path / "weights").write_text("from the container")
shm = os.statvfs("/dev/shm")
pathlib.Path("/inside").touch()
pathlib.Path(os.environ["GANGLINE_OUTPUT_DIR"], "who").write_text(f"rank {context.distributed.rank}")
print("saw " + json.dumps({
    "total": total,
    "read": fate(lambda: pathlib.Path("/in/given").read_text()),
    "relative": fate(lambda: pathlib.Path("data/given").read_text()),
    "write": fate(lambda: pathlib.Path("/in/new").touch()),
    "of the machine": os.path.exists("/root/.profile") or os.path.exists(os.environ["TELL_HOST"]),
    "shm": shm.f_blocks * shm.f_frsize >> 20,
    "library": fate(lambda: pathlib.Path(gangline.__file__).with_name("new").touch()),
    "folder": sorted(os.listdir(pathlib.Path(os.environ["GANGLINE_RUNNER_SOCKET"]).parent.parent)),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]) < 12,
}), flush=True)
"""


async def test_a_gang_trains_in_containers_with_mounts(world: World, tmp_path: Path) -> None:
    given = tmp_path / "given-folder"
    given.mkdir()
    (given / "given").write_text("of the machine")
    mount = {"host_path": str(given), "container_path": "/in", "read_only": True}
    config = {
        "bind_mounts": [mount, {**mount, "container_path": "data"}],
        "resources": {"shm_size": "64m"},
        "environment": {
            "image": {"cpu": IMAGE},
            "python": python_in_image(),
            "environment_variables": [f"TELL_HOST={given}"],
        },
    }
    await start(world, LOOK, (1, 1), config=config)
    reports = await world.wait(120)
    told = (reports, world.gateway.lines("stderr"), world.gateway.lines("runner"))
    assert {report.kind for report in reports} == {ExitKind.COMPLETED}, told
    saw = [json.loads(line[4:]) for line in world.gateway.lines("stdout") if line.startswith("saw ")]
    assert len(saw) == 2
    for each in saw:
        folder = each.pop("folder")
        assert each == {
            "total": 3,
            "read": "of the machine",
            "relative": "of the machine",
            "write": "OSError",
            "of the machine": False,
            "shm": 64,
            "library": "OSError",
            "processes": True,
        }
        beats = [name for name in folder if name.startswith(("rank0", "rank1"))]
        assert folder == sorted(["code", "gangline-output", "hook.environ", *beats, "ranks"])
    assert [path.read_text() for path in (world.folder / "storage").rglob("weights")] == ["from the container"]
    outputs = world.folder / "storage/outputs/7.1"
    assert [(outputs / name).read_text() for name in ("who", "node1/who")] == ["rank 0", "rank 1"]
    assert not exists("/inside")
    for runner in world.runners:
        assert not containers(name_in(runner))
        assert not (runner.directory / "container.json").exists()


async def test_a_command_with_a_hook_runs_as_the_user_of_the_ranks(open_world: World) -> None:
    hook = "export FROM_HOOK=hooked\ntouch /tmp/of-hook\n"
    entrypoint = "echo saw $(id -u) $FROM_HOOK $(grep NoNew /proc/self/status) $(ls /tmp/of-hook); touch made; "
    entrypoint += 'echo kept > "$GANGLINE_OUTPUT_DIR/out"; exit 3'
    rules = replace(RULES, user="nobody", processes=900)
    await start(open_world, "", files={"startup-hook.sh": hook}, entrypoint=entrypoint, rules=rules)
    (report,) = await open_world.wait()
    assert (report.kind, report.exit_code) == (ExitKind.USER_ERROR, 3), (report, open_world.gateway.lines("runner"))
    uid = pwd.getpwnam("nobody").pw_uid
    assert f"saw {uid} hooked NoNewPrivs: 1 /tmp/of-hook" in open_world.gateway.lines("stdout")
    assert (open_world.runners[0].directory / "code/made").stat().st_uid == uid
    # The image has no library, so a process beside the container copies the output, with no more rights.
    out = open_world.folder / "storage/outputs/7.1/out"
    assert (out.read_text(), out.stat().st_uid) == ("kept\n", uid)


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_a_container_ends_with_a_runner_that_is_killed(world: World, is_stuck: bool) -> None:
    await start(world, "", entrypoint="echo started; sleep 600 & wait")
    (runner,) = world.runners
    await until(lambda: "started" in world.gateway.lines("stdout"), "the command's start", 60)
    nursery = runner.nursery_pid()
    pids = [int(pid) for pid in (runner.directory / "ranks.pid").read_text().split()]
    assert nursery not in pids
    assert living([nursery, *pids]) == [nursery, *pids], "pids of this machine, not of the container"
    if is_stuck:
        os.kill(nursery, signal.SIGSTOP)
    runner.kill(signal.SIGKILL)
    if is_stuck:
        # The sweep of the agent, which removes by its name what did not end by itself.
        await remove_leftovers(AllocationFolder(runner.directory))
        assert not (runner.directory / "container.json").exists()
    await until(lambda: not living([nursery, *pids]), "the end of the container's processes", 10)
    await until(lambda: not containers(name_in(runner)), "the end of the container", 20)


async def test_a_stop_ends_the_container(world: World) -> None:
    await start(world, "", entrypoint="echo started; sleep 600 & wait")
    (runner,) = world.runners
    await until(lambda: "started" in world.gateway.lines("stdout"), "the command's start", 60)
    runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert report.kind is not ExitKind.COMPLETED
    assert not containers(name_in(runner))


@pytest.mark.parametrize(
    ("config", "rules", "problem"),
    [
        ({}, RankRules(), "environment.image: a1 has no program that runs containers; install podman or docker there"),
        ({"bind_mounts": [{"host_path": "/no/such", "container_path": "/in"}]}, RULES, "/no/such"),
        ({"environment": {"image": IMAGE, "python": "/no/python3"}}, RULES, "/no/python3"),
        ({"environment": {"image": {"cuda": IMAGE}}}, RULES, "environment.image: it names no image for CPU slots"),
    ],
)
async def test_what_cannot_run_is_told_in_one_line_and_is_final(
    world: World, config: dict[str, Any], rules: RankRules, problem: str
) -> None:
    await start(world, "print('trained')", config=config, rules=rules)
    (report,) = await world.wait()
    assert report.kind is ExitKind.CONFIGURATION_ERROR, report
    assert problem in report.message
    assert "\n" not in report.message
    assert not containers(name_in(world.runners[0]))


async def test_a_storage_whose_mount_is_lost_is_not_mounted(world: World) -> None:
    """A container would not see the mount that comes back, and the trial could wait for it in vain."""
    mount_point, state = world.folder / "storage", world.folder / "a1"
    mount_point.mkdir()
    (state / "allocations").mkdir(parents=True)
    write_rules(state, RULES)
    await world.prepare("print('trained')", (1,), config={"environment": {"image": IMAGE, "python": python_in_image()}})
    world.specs[0].storage_marker = "7d1c"
    world.runners.append(world.host("a1").start(world.specs[0]))
    (report,) = await world.wait()
    assert (report.kind, report.is_agent_at_fault) == (ExitKind.START_FAILED, False), report
    assert "is away" in report.message
    assert list(mount_point.iterdir()) == []
    assert not containers(name_in(world.runners[0]))
