"""Ranks as another user and within limits, in real runners that run as root."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gangline.domain.state import ExitKind
from services.common.rank_rules import RankRules, find_user, write_rules
from tests.integration.trial_runner.conftest import Templates, World
from tests.support.runner_peers import GatewayPeer
from tests.support.runner_process import TOKEN, living
from tests.support.wait import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs ranks as another user")

USER = "nobody"
LOOK = """
import json, os, pathlib, sys, tempfile
from gangline import core
from gangline.cluster_info import get_cluster_info
from gangline.core.beat import open_beat

def fate(act):
    try:
        return str(act())
    except OSError as error:
        return type(error).__name__

allocation = pathlib.Path(os.environ["GANGLINE_RUNNER_SOCKET"]).parent.parent
state = allocation.parent.parent
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
with core.init() as context:
    if context.distributed.rank == 0:
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            (path / "weights").write_text("of the rank")
pathlib.Path("made_here").write_text("in the folder of the code")
print("saw " + json.dumps({
    "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
    "capabilities": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")],
    "user": [os.environ["USER"], os.environ.get("XDG_RUNTIME_DIR")],
    "beat": fate(lambda: open_beat(get_cluster_info(), batches=0) is not None),
    "temporary": fate(lambda: bool(tempfile.mkdtemp())),
    "secrets": [fate((allocation / name).read_text) for name in ("spec.json", "ranks.pid", "lock")],
    "folders": [fate(lambda: os.listdir(each)) for each in (state, allocation, state / "spool", allocation.parent)],
    "become root": fate(lambda: os.setuid(0)),
    "write": fate((allocation / "exit.json").touch),
    "runner": fate(pathlib.Path(f"/proc/{os.getppid()}/environ").read_bytes),
}), flush=True)
"""


@pytest.fixture
async def open_world(templates: Templates) -> AsyncIterator[World]:
    """A world in a folder that every user may pass through, where those of pytest are for root alone."""
    gateway = GatewayPeer(TOKEN)
    await gateway.start()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o711)  # noqa: PTH101 - one look at a local disk
        made = World(templates, Path(name), gateway)
        yield made
        for runner in made.runners:
            runner.kill(9)
        for scheduler in made.schedulers:
            await scheduler.stop()
        await gateway.stop()


def prepare_machines(world: World, rules: RankRules, count: int = 1) -> None:
    for number in range(count):
        state = world.folder / f"a{number + 1}"
        state.mkdir(mode=0o711)
        (state / "allocations").mkdir(mode=0o711)
        (state / "spool").mkdir(mode=0o700)
        write_rules(state, rules)
    storage = world.folder / "storage"
    storage.mkdir()
    os.chown(storage, find_user(USER).uid, -1)


async def start(world: World, rules: RankRules, script: str, sizes: tuple[int, ...] = (1,), **settings: Any) -> None:
    prepare_machines(world, rules, len(sizes))
    await world.start(script, sizes, **settings)


HOOK = "echo hook of $(id -un); export FROM_HOOK=1; touch made_by_hook\n"


async def test_a_rank_runs_as_the_user_and_reaches_no_secret(open_world: World) -> None:
    await start(open_world, RankRules(user=USER), LOOK, (2,), files={"startup-hook.sh": HOOK})
    (report,) = await open_world.wait()
    lines = open_world.gateway.lines("stdout")
    assert report.kind is ExitKind.COMPLETED, (report, open_world.gateway.lines("stderr"))
    assert f"hook of {USER}" in lines
    saw = [json.loads(line[4:]) for line in lines if line.startswith("saw ")]
    uid, gid = find_user(USER).uid, find_user(USER).gid
    denied = "PermissionError"
    assert (
        saw
        == [
            {
                "ids": [[uid] * 3, [gid] * 3, sorted(find_user(USER).groups)],
                "capabilities": [0] * 4,
                "user": [USER, None],
                "beat": "True",
                "temporary": "True",
                "secrets": [denied] * 3,
                "folders": [denied] * 4,
                "become root": denied,
                "write": denied,
                "runner": denied,
            }
        ]
        * 2
    )
    assert [path.read_text() for path in (open_world.folder / "storage").rglob("weights")] == ["of the rank"]


async def test_a_hook_of_another_user_has_begun(open_world: World) -> None:
    await start(open_world, RankRules(user=USER), "", files={"startup-hook.sh": "exit 3\n"})
    (report,) = await open_world.wait()
    assert (report.kind, report.message) == (ExitKind.USER_ERROR, "startup-hook.sh failed with exit code 3")
    # Or a command would be started again, with its hook.
    assert not report.has_not_begun


async def test_a_rank_beyond_its_memory_is_named_with_the_limit(open_world: World) -> None:
    await start(open_world, RankRules(user=USER, memory_mb=4096), "bytearray(5 << 30)")
    (report,) = await open_world.wait()
    text = "the rank exceeded 4096 MiB of memory, its limit on a1 (rank_memory_mb): MemoryError"
    assert (report.kind, report.message, report.rank) == (ExitKind.OUT_OF_MEMORY, text, 0)


THREADS = """
import threading
for _ in range(900):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


async def test_a_rank_beyond_its_processes_is_named_with_the_limit(open_world: World) -> None:
    await start(open_world, RankRules(user=USER, processes=400), THREADS)
    (report,) = await open_world.wait()
    text = "RuntimeError: can't start new thread; the limit of a rank on a1 is 400 processes and threads"
    assert (report.kind, report.message) == (ExitKind.USER_ERROR, f"{text} (rank_processes)")


async def test_a_missing_user_ends_the_trial_with_one_line(open_world: World) -> None:
    await start(open_world, RankRules(user="no-such-user"), "print('trained')")
    (report,) = await open_world.wait()
    text = "a1 is set to run the ranks of everyone as 'no-such-user': this machine has no user 'no-such-user'"
    assert (report.kind, report.message) == (ExitKind.CONFIGURATION_ERROR, f"{text}; make one, or name another")
    assert "trained" not in open_world.gateway.lines("stdout")


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        (RankRules(user=USER), ExitKind.CONFIGURATION_ERROR),
        (RankRules(user="daemon", users={"ann": USER}), ExitKind.COMPLETED),
    ],
    ids=["one user for everyone", "a user of her own"],
)
async def test_a_notebook_that_others_could_open_does_not_start(
    open_world: World, rules: RankRules, kind: ExitKind
) -> None:
    prepare_machines(open_world, rules)
    notebook = {"entrypoint": "sh train.py", "task": {"kind": "NOTEBOOK"}}
    await open_world.prepare("echo opened", (1,), entrypoint="sh train.py", config=notebook)
    spec = open_world.specs[0]
    spec.owner, spec.has_other_users = "ann", True
    report = await open_world.launch(0).wait()
    assert report.kind is kind, report
    if kind is ExitKind.CONFIGURATION_ERROR:
        assert report.message == (
            "a notebook on a1 could be opened by the trials of other users, because they run as the same account; let "
            "the agent run as root with rank_uids, give ann a user of its own in rank_users, or set "
            "shared_notebooks = true there"
        )
    assert ("opened" in open_world.gateway.lines("stdout")) == (kind is ExitKind.COMPLETED)


@pytest.mark.parametrize("entrypoint", ["python3 train.py", "sh train.py"])
async def test_ranks_of_another_user_die_with_their_nursery(open_world: World, entrypoint: str) -> None:
    script = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    script = script if entrypoint.startswith("python3") else "echo pid $$; exec sleep 600"
    await start(open_world, RankRules(user=USER), script, entrypoint=entrypoint, config={"entrypoint": entrypoint})
    pids = await open_world.wait_pids(1)
    assert [psutil.Process(pid).uids().real for pid in pids] == [find_user(USER).uid]
    os.kill(open_world.runners[0].nursery_pid(), signal.SIGKILL)
    await until(lambda: not living(pids), "the end of the rank", 10)
