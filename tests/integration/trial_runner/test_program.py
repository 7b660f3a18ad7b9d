"""Programs that run once on each machine: started as from a shell, and gone with whatever held them."""

from __future__ import annotations

import os
import signal

import pytest

from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import World
from tests.support.runner_process import living
from tests.support.wait import until

ABOUT = "echo pid $$; ps -o pgid=,sid= -p $$; pwd; cat; echo machine $NODE_RANK of $NNODES >&2; exit 3"
SLEEP = "echo pid $$; sleep 600 & echo pid $!; wait"
OBEDIENT = """
import time
from gangline import core
with core.init() as context:
    print("ready", flush=True)
    while not context.preempt.should_preempt():
        time.sleep(0.01)
"""


async def test_a_program_starts_as_from_a_shell(world: World) -> None:
    (runner,) = await world.start("", (1,), config={"entrypoint": ABOUT})
    report = await runner.wait()
    out = world.gateway.lines("stdout")
    pid = out[0].split()[1]
    assert out[1].split() == [pid, pid], "it leads a group and a session of its own"
    assert out[2] == str(runner.directory / "code")
    assert len(out) == 3, "its standard input is empty"
    assert world.gateway.lines("stderr") == ["machine 0 of 1"]
    assert (report.kind, report.rank) == (ExitKind.USER_ERROR, 0), report
    assert report.exit_code == 3


@pytest.mark.parametrize(
    ("entrypoint", "text"),
    [
        (["no-such-program"], "error: entrypoint 'no-such-program' cannot be run: No such file or directory"),
        (["./train.py"], "error: entrypoint './train.py' cannot be run: Permission denied"),
    ],
)
async def test_a_program_that_cannot_be_run_is_named(world: World, entrypoint: list[str], text: str) -> None:
    (runner,) = await world.start("pass\n", (1,), config={"entrypoint": entrypoint})
    report = await runner.wait()
    assert report.kind is not ExitKind.COMPLETED
    assert world.gateway.lines("stderr") == [text]


async def test_a_program_runs_with_the_largest_configuration(world: World) -> None:
    # Each of these characters takes 12 bytes in JSON, and 4 in the text that is limited to 128 KiB.
    config = {"entrypoint": "bash run.sh", "data": {"x": "\U0001f600" * (31 << 10)}}
    script = """
import os
import gangline
trial = gangline.get_cluster_info().trial
print(len(trial.config["data"]["x"]), len(trial.hparams["y"]), os.environ["FROM_HOOK"])
"""
    files = {"run.sh": "python3 train.py\n", "startup-hook.sh": "export FROM_HOOK=hook\npython3 train.py\n"}
    hparams = {"y": "y" * (127 << 10)}
    (runner,) = await world.start(script, (1,), files=files, config=config, hparams=hparams)
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, world.gateway.lines("stderr"))
    assert world.gateway.lines("stdout") == [f"{31 << 10} {127 << 10} hook"] * 2
    (line,) = [line for line in world.gateway.lines() if "DET_EXPERIMENT_CONFIG" in line]
    assert "not set: Linux takes no variable of 128 KiB or more" in line


async def test_a_script_below_a_program_gives_in_to_a_preemption(world: World) -> None:
    (runner,) = await world.start(OBEDIENT, (1,), config={"entrypoint": "python3 train.py; echo done"})
    await world.gateway.wait_line("ready")
    runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert (report.kind, report.message) == (ExitKind.PREEMPTED, "stopped after a checkpoint: asked by a signal")
    assert world.gateway.lines("stdout") == ["ready", "done"]


async def test_python_in_a_shell_line_finds_determineds_names(world: World) -> None:
    script = "import determined as det; print(det.get_cluster_info().trial.hparams, det.__version__)\n"
    line = "export X=1 && python3 train.py && bash run.sh"
    files = {"run.sh": "X=2 python3 -u train.py\n"}
    (runner,) = await world.start(script, (1,), files=files, config={"entrypoint": line}, hparams={"rate": 1})
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, world.gateway.lines("stderr"))
    assert world.gateway.lines("stdout") == ["{'rate': 1} 0.38.1"] * 2


@pytest.mark.parametrize("sizes", [(2,), (1, 1)], ids=["one agent", "two agents"])
async def test_a_program_does_not_outlive_what_holds_it(world: World, sizes: tuple[int, ...]) -> None:
    runner, *_ = await world.start("", sizes, config={"entrypoint": SLEEP})
    pids = await world.wait_pids(2 * len(sizes))
    os.kill(runner.nursery_pid(), signal.SIGKILL)
    for report in await world.wait():
        assert report.kind is not ExitKind.COMPLETED, report
    await until(lambda: not living(pids), "the end of all programs", 5)


async def test_no_program_survives_the_kill_of_its_runner(world: World) -> None:
    (runner,) = await world.start("", (2,), config={"entrypoint": SLEEP})
    pids = await world.wait_pids(2)
    runner.kill(signal.SIGKILL)
    await until(lambda: not living(pids), "the end of all programs", 5)
