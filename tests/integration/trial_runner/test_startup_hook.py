"""A startup hook in real runners: once on each machine before its ranks, its variables and packages for the ranks, and
nothing left of it when it fails, hangs or is stopped."""

from __future__ import annotations

import importlib
import os
import signal

import pytest

from gangline.domain.state import ExitKind
from services.agent.allocations.process_watch import kill_group, load_leaders
from services.common.state_folder import SharedFolder
from tests.integration.trial_runner.conftest import World
from tests.support.runner_process import living
from tests.support.wait import until

TELL = """
import os
rank, own = os.environ.get("RANK", "none"), os.environ.get("FROM_HOOK")
print("rank", rank, "sees", own, os.environ.get("GONE", "nothing"), flush=True)
"""
HOOK = "echo hook in $PWD\nexport FROM_HOOK='two\nlines'\nunset GONE\nexport RANK=7\n"
GONE = {"environment": {"environment_variables": ["GONE=still here"]}}
# A package as pip leaves one: it hides the module of the same name that the agent's Python has.
INSTALL = """
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
case $site in */python/lib/*) ;; *) echo "not private: $site" >&2; exit 9;; esac
echo 'VERSION = "of the hook"' > $site/sortedcontainers.py
"""
IMPORT = """
import sys, sortedcontainers, torch, gangline
print(sortedcontainers.VERSION, sys.argv, __name__, flush=True)
"""
STAND = "echo pid $$\nsleep 600 & echo pid $!\nwait\n"


@pytest.mark.parametrize(
    ("entrypoint", "ranks"),
    [
        ("python3 -m gangline.launch.torch_distributed train.py", ["0", "1", "2"]),
        ("python3 train.py; echo $FROM_HOOK", ["none", "none"]),
    ],
    ids=["in every slot", "once on each machine"],
)
async def test_it_runs_once_on_each_machine_and_sets_variables_of_all_processes(
    world: World, entrypoint: str, ranks: list[str]
) -> None:
    await world.start(
        TELL, (2, 1), files={"startup-hook.sh": HOOK}, config={"entrypoint": entrypoint, **GONE}, entrypoint=entrypoint
    )
    reports = await world.wait()
    assert {report.kind for report in reports} == {ExitKind.COMPLETED}, reports
    out = world.gateway.lines("stdout")
    folders = sorted(line for line in out if line.startswith("hook in "))
    assert folders == sorted(f"hook in {runner.directory / 'code'}" for runner in world.runners)
    assert sorted(line for line in out if line.startswith("rank ")) == [f"rank {rank} sees two" for rank in ranks]
    assert "lines nothing" in out


@pytest.mark.parametrize(
    ("entrypoint", "named"),
    [("python3 -m gangline.launch.torch_distributed train.py", ""), ("pwd; echo $FROM_HOOK", "below")],
    ids=["ranks", "command"],
)
async def test_its_cd_moves_the_rest_of_the_hook_alone(world: World, entrypoint: str, named: str) -> None:
    script = "import os\nprint(os.getcwd(), os.environ['FROM_HOOK'], sep='\\n', flush=True)"
    files = {"startup-hook.sh": "mkdir beside\ncd beside\nexport FROM_HOOK=$PWD\n", "below/note.txt": ""}
    config = {"entrypoint": entrypoint, "environment": {"working_directory": named}}
    (runner,) = await world.start(script, (1,), files=files, config=config, entrypoint=entrypoint)
    report = await runner.wait(60)
    assert report.kind is ExitKind.COMPLETED, report
    code = runner.directory / "code"
    assert world.gateway.lines("stdout") == [str(code / named), str(code / "beside")]


async def test_its_packages_hide_those_of_the_agent_for_this_attempt_alone(world: World) -> None:
    (runner,) = await world.start(IMPORT, (2,), files={"startup-hook.sh": INSTALL})
    report = await runner.wait(120)
    assert report.kind is ExitKind.COMPLETED, (report, world.gateway.lines("stderr"))
    assert world.gateway.lines("stdout") == ["of the hook ['train.py'] __main__"] * 2
    own = importlib.import_module("sortedcontainers")
    assert hasattr(own, "SortedDict"), "the agent's own is untouched"


async def test_a_hook_that_fails_is_named_and_starts_no_rank_anywhere(world: World) -> None:
    hook = "test $GROUP_RANK = 0 || { echo no driver >&2; false; echo not reached; }\n"
    await world.start("print('trained')", (1, 1), files={"startup-hook.sh": hook})
    first, second = await world.wait()
    assert (second.kind, second.message) == (ExitKind.USER_ERROR, "startup-hook.sh failed with exit code 1")
    assert (second.last_lines, second.batches_completed, bool(second.signature)) == (("no driver",), 0, True)
    if first.kind is not ExitKind.COMPLETED:
        assert first.message.startswith("ended because startup-hook.sh failed with exit code 1"), first
    assert "not reached" not in world.gateway.lines("stdout")
    assert "startup-hook.sh runs on a2" in world.gateway.lines("runner")


async def test_a_hook_that_does_not_end_is_killed_with_what_it_started(world: World) -> None:
    limit = {"hang_detection": {"start_seconds": 0.5}}
    (runner,) = await world.start("", (1,), files={"startup-hook.sh": STAND}, config=limit)
    report = await runner.wait()
    text = "startup-hook.sh did not end within 0.5 s (hang_detection.start_seconds)"
    assert (report.kind, report.message) == (ExitKind.USER_ERROR, text)
    pids = world.rank_pids()
    assert len(pids) == 2
    assert not living(pids)


async def test_a_hook_that_is_lost_with_its_nursery_is_the_machines_matter(world: World) -> None:
    (runner,) = await world.start("", (1,), files={"startup-hook.sh": STAND})
    pids = await world.wait_pids(2)
    os.kill(runner.nursery_pid(), signal.SIGKILL)
    report = await runner.wait()
    text = "startup-hook.sh was lost: the process that started it died"
    assert (report.kind, report.message, report.is_agent_at_fault) == (ExitKind.START_FAILED, text, True)
    assert not report.has_not_begun
    # What the hook has started is of the group that the agent ends with the attempt.
    leaders = load_leaders(SharedFolder(runner.directory).rank_pids_path)
    assert [leader.pid for leader in leaders] == pids[:1]
    for leader in leaders:
        kill_group(leader)
    await until(lambda: not living(pids), "the end of the hook and of its child", 5)


async def test_a_hook_that_is_lost_before_a_command_leaves_nothing(world: World) -> None:
    """The runner adopts what a command's nursery has started, also in a session of its own."""
    hook = "echo pid $$\nsetsid sh -c 'echo pid $$; sleep 600' &\nwait\n"
    (runner,) = await world.start(
        "", (1,), files={"startup-hook.sh": hook}, config={"entrypoint": "true"}, entrypoint="true"
    )
    pids = await world.wait_pids(2)
    os.kill(runner.nursery_pid(), signal.SIGKILL)
    report = await runner.wait()
    assert report.kind is ExitKind.START_FAILED, report
    assert not living(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_it_ends_with_its_attempt(world: World, number: signal.Signals) -> None:
    (runner,) = await world.start("", (1,), files={"startup-hook.sh": STAND})
    pids = await world.wait_pids(2)
    await until(lambda: bool(world.scheduler.reports_of("running")), "the report that the attempt runs", 10)
    runner.kill(number)
    await until(lambda: not living(pids), "the end of the hook and of its child", 5)
