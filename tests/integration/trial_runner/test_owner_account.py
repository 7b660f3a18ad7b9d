"""Accounts of their own for the owners of experiments, in real runners of root: what they share, and what not."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Mapping
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from gangline.v1 import runner_pb2
from services.agent.settings import DEFAULT_UIDS
from services.common.rank_rules import RankRules, write_rules
from tests.integration.trial_runner.conftest import World
from tests.integration.trial_runner.test_confinement import open_world
from tests.support.runner_process import Runner

__all__ = ["open_world"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs ranks as another user")
FIRST = int(DEFAULT_UIDS.partition("-")[0])
RULES = RankRules(first_uid=FIRST, last_uid=FIRST + 99)
ANN, BOB = 3, 4
# Looks around as an owner's rank does. With a folder of another owner's, it tries to harm it.
LOOK = """
import json, os, pathlib, pwd, subprocess, tempfile
from gangline import core
from gangline.v1 import types_pb2

def fate(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__

allocation = pathlib.Path(os.environ["GANGLINE_RUNNER_SOCKET"]).parent.parent
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
home, other = pathlib.Path.home(), os.environ.get("OTHER")
(home / ".cache").mkdir(exist_ok=True)
with core.init() as context:
    if context.distributed.rank == 0:
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, stored):
            (path / "weights").write_text("of the rank")
    storage = pathlib.Path(context.checkpoint.storage_url.removeprefix("file://"))
    harm = {}
    if other:
        theirs = storage / "checkpoints" / other
        for each in (other, "not-there"):
            url = f"{context.checkpoint.storage_url}/checkpoints/{each}"
            context.checkpoint._link.send_checkpoint(types_pb2.Checkpoint(id=each, url=url, batches_completed=9))
        harm = {
            "read": fate(lambda: (theirs / "weights").read_text()),
            "write": fate(lambda: (theirs / "weights").write_text("x")),
            "add": fate((theirs / "more").touch),
            "rename": fate(lambda: theirs.rename(storage / "checkpoints/away")),
            "squat": fate((storage / "tensorboard/9.1").mkdir),
            "squat on output": fate((storage / "outputs/9.1").mkdir),
            "code": fate(lambda: os.listdir(storage / "code")),
            "home": fate(lambda: os.listdir(home.parent / os.environ["OTHER_HOME"])),
            "listing": fate(lambda: os.listdir(home.parent)),
            "checkpoints": fate(lambda: os.listdir(storage / "checkpoints")),
            "batch output": fate(lambda: os.listdir(storage / "batch_output")),
        }
    (storage / "tensorboard" / os.environ["DET_TASK_ID"] / "events").touch()
    output = pathlib.Path(os.environ["GANGLINE_OUTPUT_DIR"])
    (output / f"rank{context.distributed.rank}").write_text("output")
    if other and not (output / "theirs").is_symlink():
        (output / "theirs").symlink_to(allocation / "spec.json")
        output.joinpath("folder").symlink_to(storage / "code")
print("saw " + json.dumps({
    "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
    "capabilities": int(status["CapEff"], 16) | int(status["CapPrm"], 16),
    "no new privileges": int(status["NoNewPrivs"]),
    "names": [pwd.getpwuid(os.getuid()).pw_name, os.environ["USER"], subprocess.getoutput("id -un")],
    "home": [home.name, fate(lambda: (home / "x").touch())],
    "secrets": [fate((allocation / name).read_text) for name in ("spec.json", "lock")],
    "folder": fate(lambda: os.listdir(allocation)),
    "files": sorted({os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in os.listdir("/proc/self/fd")
                     if os.path.exists(f"/proc/self/fd/{n}")} & {str(allocation.parent.parent / "rank-template.log")}),
    "harm": harm,
}), flush=True)
"""


async def run(
    world: World,
    owner_id: int,
    sizes: tuple[int, ...],
    allocation: str,
    *,
    rules: RankRules = RULES,
    script: str = LOOK,
    marker: str = "",
    **settings: Any,
) -> list[Runner]:
    """One trial of an owner, with a machine for each of the sizes, which share the storage."""
    earlier = len(world.specs)
    await world.prepare(script, sizes, **settings)
    runners = []
    for number, spec in enumerate(world.specs[earlier:]):
        spec.storage_marker = marker
        spec.owner_id, spec.allocation.id, spec.trial.id = owner_id, allocation, allocation.rpartition(".")[0]
        state = world.folder / f"a{number + 1}"
        for folder in (state, state / "allocations"):
            folder.mkdir(mode=0o711, exist_ok=True)
        (state / "spool").mkdir(mode=0o700, exist_ok=True)
        write_rules(state, rules)
        runners.append(world.host(f"a{number + 1}").start(spec))
        world.runners.append(runners[-1])
    return runners


def seen(world: World) -> list[dict[str, Any]]:
    return [json.loads(line[4:]) for line in world.gateway.lines("stdout") if line.startswith("saw ")]


def left_of(runner: Runner) -> list[runner_pb2.TrialReport]:
    """The checkpoints' reports that the runner has left to the agent."""
    return [report for report in runner.status().undelivered if report.HasField("checkpoint")]


def variables(**values: str) -> Mapping[str, Any]:
    return {"environment": {"environment_variables": [f"{name}={value}" for name, value in values.items()]}}


async def test_owners_have_accounts_of_their_own_and_share_a_storage(open_world: World) -> None:
    storage = open_world.folder / "storage"
    storage.mkdir(mode=0o700)
    (storage / "code").mkdir(mode=0o755)
    (runner,) = await run(open_world, ANN, (2,), "7.1.1")
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, open_world.gateway.lines("stderr"))
    uid, denied = FIRST + ANN, "PermissionError"
    expected = {
        "ids": [[uid] * 3, [uid] * 3, [FIRST, uid]],
        "capabilities": 0,
        "no new privileges": 1,
        "names": [f"gangline-{ANN}"] * 3,
        "home": [str(uid), None],
        "secrets": [denied] * 2,
        "folder": denied,
        "files": [],
        "harm": {},
    }
    assert seen(open_world) == [expected] * 2
    # No other process of the machine sees the name.
    assert f"gangline-{ANN}" not in {entry.pw_name for entry in pwd.getpwall()}
    (weights,) = storage.rglob("weights")
    ids = [(path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in (weights.parent, storage)]
    assert ids == [(uid, 0o2775), (0, 0o710)]
    (storage / "tensorboard/7.1/events").unlink()
    outputs = [storage / "outputs/7.1" / name for name in ("rank0", "rank1")]
    assert [(path.read_text(), path.stat().st_uid) for path in outputs] == [("output", uid)] * 2

    their = {"OTHER": weights.parent.name, "OTHER_HOME": str(uid)}
    (runner,) = await run(open_world, BOB, (1,), "8.1.1", config=variables(**their))
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, open_world.gateway.lines("stderr"))
    last = seen(open_world)[-1]
    assert last["ids"][0] == [FIRST + BOB] * 3
    harm = {"write", "add", "rename", "squat", "squat on output", "code", "home", "listing"}
    # The name of an unfinished checkpoint has its id, under which others could make a folder first.
    harm |= {"checkpoints", "batch output"}
    assert last["harm"] == {"read": "of the rank", **dict.fromkeys(harm, denied)}
    assert weights.read_text() == "of the rank"
    # Neither a checkpoint of another owner nor one that is not there is reported as the trial's own. A gateway would
    # delete it for the trial one day.
    told = [*open_world.schedulers[-1].reports_of("checkpoint"), *(each.checkpoint for each in left_of(runner))]
    (own,) = set((storage / "checkpoints").iterdir()) - {weights.parent}
    assert [checkpoint.id for checkpoint in told] == [own.name]
    warnings = [line for line in open_world.gateway.lines("runner") if line.startswith("checkpoint ")]
    reasons = ((weights.parent.name, "its folder belongs to another account"), ("not-there", "its folder is not there"))
    assert [line.partition(": ")[0] for line in warnings] == [
        f"checkpoint {each!r} is not reported for this trial, because {why}" for each, why in reasons
    ]
    assert [path.name for path in (storage / "outputs/8.1").iterdir()] == ["rank0"]


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (
            FIRST,
            f"rank_uids {FIRST}-{FIRST + 99} has no id for the owner with the number 100; give all agents",
        ),
        (65434, "nobody, an account of this machine, has the id 65534 of rank_uids; give all agents a range without"),
    ],
)
async def test_an_owner_for_whom_a_range_has_no_id_is_no_fault_of_the_user(
    open_world: World, first: int, problem: str
) -> None:
    rules = RankRules(first_uid=first, last_uid=first + (99 if first == FIRST else 100))
    (runner,) = await run(open_world, 100, (1,), "7.1.1", rules=rules)
    report = await runner.wait()
    assert (report.kind, report.is_agent_at_fault, report.has_not_begun) == (ExitKind.START_FAILED, True, True)
    assert report.message.startswith(f"a1 is set to run the ranks of everyone as an account of its own: {problem}")


async def test_no_folder_is_made_in_a_storage_whose_mount_is_lost(open_world: World) -> None:
    """A gateway would take it for the storage after its next start, and checkpoints would go to the machine's disk."""
    mount_point = open_world.folder / "storage"
    mount_point.mkdir(mode=0o700)
    (runner,) = await run(open_world, ANN, (1,), "7.1.1", script="print('ran')", marker="7d1c")
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, open_world.gateway.lines("stderr"))
    assert list(mount_point.iterdir()) == []


async def test_a_mistyped_program_is_not_found_beside_a_folder_of_root(
    open_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a path of folders that the account may enter, the shell reports that the permission is denied."""
    closed = open_world.folder / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("PATH", f"{closed}:/usr/bin:{closed}/bin:/bin")
    line = "nosuchprogram x; echo status $?; sh -c 'exec nosuchprogram x'; echo status $?; echo path $PATH"
    (runner,) = await run(open_world, ANN, (1,), "7.1.1", config={"entrypoint": line})
    report = await runner.wait()
    errors = open_world.gateway.lines("stderr")
    assert report.kind is ExitKind.COMPLETED, (report, errors)
    *statuses, path = open_world.gateway.lines("stdout")
    assert statuses == ["status 127"] * 2
    assert [line.endswith("nosuchprogram: not found") for line in errors] == [True, True], errors
    assert path.split(":")[-2:] == ["/usr/bin", "/bin"]
    assert str(closed) not in path
