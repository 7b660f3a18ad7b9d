"""Scripts and shell lines in real runners: once on each machine, with workers that are the trial's ranks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import Templates, World
from tests.support import warm_python
from tests.support.runner_process import living
from tests.support.wait import until

ABOUT = """
import json, os
from gangline import core
with core.init() as context:
    print(context.distributed.size, json.loads(os.environ["DET_SLOT_IDS"]), os.environ.get("RANK"), flush=True)
    context.train.report_validation_metrics(1, {"x": 5})
"""
WORK = """
import os, sys, time
import determined as det
import torch.distributed as dist
dist.init_process_group("gloo")
distributed = det.core.DistributedContext.from_torch_distributed()
with det.core.init(distributed=distributed) as context:
    total = sum(distributed.allgather(distributed.rank))
    # One call of write: the workers of a machine share one pipe, and print writes its parts one by one.
    sys.stdout.write(f"worker {distributed.rank} of {distributed.size} sum {total}\\n")
    sys.stdout.flush()
    if distributed.rank == 0:
        context.train.report_validation_metrics(7, {"x": total})
    if "fail" in sys.argv and distributed.rank == 1:
        raise ValueError("odd one out")
    while "wait" in sys.argv and not context.preempt.should_preempt():
        time.sleep(0.01)
    if "hang" in sys.argv:
        for step in range(1, 4):
            context.preempt.should_preempt()
            context.train.report_training_metrics(7 + step, {"x": 1}) if distributed.rank == 0 else None
        sys.stdout.write(f"pid {os.getpid()}\\n")
        sys.stdout.flush()
        time.sleep(600 if distributed.rank == 1 else 0)
    dist.barrier()
"""
TORCHRUN = (
    "WARM/torchrun --nproc_per_node=2 --nnodes=$NNODES --node_rank=$NODE_RANK "
    "--master_addr=$DET_CHIEF_IP --master_port=$MASTER_PORT train.py"
)


ALONE = "WARM/torchrun --standalone --nproc_per_node=2 train.py"


@pytest.fixture(scope="module")
def warm(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder WARM of the lines above, whose programs start warm."""
    return warm_python.install_commands(tmp_path_factory.mktemp("warm"), templates.rank.socket_path)


def _validations(world: World) -> list[dict[str, float]]:
    return [
        dict(each.metrics) for node in world.scheduler.reports for each in world.scheduler.reports_of("metrics", node)
    ]


async def test_a_script_is_one_process_with_all_slots(world: World) -> None:
    (runner,) = await world.start(ABOUT, (2,), entrypoint="python3 train.py")
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, world.gateway.lines("stderr"))
    assert world.gateway.lines("stdout") == ["1 [0, 1] None"]
    assert _validations(world) == [{"x": 5}]


async def test_a_script_on_two_machines_must_say_which_process_is_the_chief(world: World) -> None:
    await world.start(ABOUT, (1, 1), entrypoint="python3 train.py")
    reports = await world.wait()
    told = [report.message for report in reports if report.kind is ExitKind.CONFIGURATION_ERROR]
    assert told, reports
    assert "the script runs once on each of 2 machines" in told[0]
    assert _validations(world) == []


# The second line starts all its processes cold.
@pytest.mark.parametrize(
    ("entrypoint", "slots", "total"),
    [
        (TORCHRUN, 2, 6),
        ("export A=1 && python3 -m determined.launch.torch_distributed --max_restarts 0 -- python3 train.py", 1, 1),
    ],
    ids=["torchrun", "launcher in a shell line"],
)
async def test_workers_of_a_launcher_over_two_machines_are_the_ranks(
    world: World, warm: Path, entrypoint: str, slots: int, total: int
) -> None:
    await world.start(WORK, (slots, slots), entrypoint=entrypoint.replace("WARM", str(warm)))
    reports = await world.wait(120)
    failed = [report for report in reports if report.kind is not ExitKind.COMPLETED]
    assert not failed, "\n".join(world.gateway.lines("stderr"))
    told = [f"worker {rank} of {2 * slots} sum {total}" for rank in range(2 * slots)]
    assert sorted(world.gateway.lines("stdout")) == told
    assert _validations(world) == [{"x": total}]


async def test_the_worker_that_fails_first_is_named(world: World, warm: Path) -> None:
    (runner,) = await world.start(WORK, (2,), entrypoint=f"{ALONE} fail".replace("WARM", str(warm)))
    report = await runner.wait(120)
    assert (report.kind, report.rank, report.message) == (ExitKind.USER_ERROR, 1, "ValueError: odd one out")


async def test_workers_give_in_to_a_preemption(world: World, warm: Path) -> None:
    (runner,) = await world.start(WORK, (2,), entrypoint=f"{ALONE} wait".replace("WARM", str(warm)))
    await world.gateway.wait_line("worker 1 of 2 sum 1")
    runner.kill(signal.SIGTERM)
    report = await runner.wait(120)
    assert (report.kind, report.message) == (ExitKind.PREEMPTED, "stopped after a checkpoint: asked by a signal")


async def test_a_worker_that_hangs_is_found_and_nothing_is_left(world: World, warm: Path) -> None:
    config = {"hang_detection": {"enabled": True, "seconds": 5, "start_seconds": 60, "rest_seconds": 5}}
    entrypoint = f"{ALONE} hang".replace("WARM", str(warm))
    (runner,) = await world.start(WORK, (2,), entrypoint=entrypoint, config=config)
    pids = await world.wait_pids(2)
    report = await runner.wait(120)
    assert (report.kind, report.rank) == (ExitKind.HANG, 1), report
    await until(lambda: not living(pids), "the end of all workers", 30)


SPAWN = """
import multiprocessing, os
from gangline import core
from gangline.core import DistributedContext

def work(rank, address):
    place = dict(rank=rank, size=2, local_rank=rank, local_size=2)
    with core.init(distributed=DistributedContext(**place, chief_ip=address)) as context:
        total = sum(context.distributed.allgather(rank + 1))
        if rank == 0:
            context.train.report_validation_metrics(3, {"x": total})

if __name__ == "__main__":
    workers = [multiprocessing.Process(target=work, args=(rank, os.environ["DET_CHIEF_IP"])) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    raise SystemExit(max(worker.exitcode for worker in workers))
"""


async def test_forks_of_a_script_have_connections_of_their_own(world: World) -> None:
    (runner,) = await world.start(SPAWN, (2,), entrypoint="python3 train.py")
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, (report, world.gateway.lines("stderr"))
    assert _validations(world) == [{"x": 3}]


async def test_marked_lines_of_workers_are_those_of_their_ranks(world: World) -> None:
    line = "python3 -m determined.launch.wrap_rank 1 -- echo mine; echo all"
    (runner,) = await world.start("", (2,), entrypoint=line)
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    assert world.gateway.lines("stdout", 1) == ["mine"]
    assert world.gateway.lines("stdout", 0) == ["all"]


async def test_a_line_of_the_shell_sees_the_devices_and_variables(world: World) -> None:
    line = "echo $DET_SLOT_IDS $NNODES $NODE_RANK $NPROC_PER_NODE rank=$RANK && echo $DET_HPARAMS"
    (runner,) = await world.start("", (2,), entrypoint=line, hparams={"rate": 1})
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    out = world.gateway.lines("stdout")
    assert out[0] == "[0, 1] 1 0 2 rank="
    assert json.loads(out[1]) == {"rate": 1}
    assert not os.environ.get("DET_SLOT_IDS")


async def test_a_script_that_empties_the_file_of_its_progress_ends_as_it_ends(world: World) -> None:
    """The trial runner reads the file of a rank that fails. What trains afterwards has a whole file again."""
    (runner,) = await world.start(
        ABOUT, (1,), entrypoint='truncate -s 0 "$GANGLINE_BEAT_FILE"; python3 train.py && exit 3'
    )
    report = await runner.wait()
    assert (report.kind, report.exit_code) == (ExitKind.USER_ERROR, 3), report
    assert _validations(world) == [{"x": 5.0}]


async def test_a_script_that_empties_the_file_of_its_progress_and_completes_is_complete(world: World) -> None:
    """The hang watchdog reads the file every 0.1 s."""
    (runner,) = await world.start(
        "",
        (1,),
        entrypoint='truncate -s 0 "$GANGLINE_BEAT_FILE"; sleep 0.5',
        config={"hang_detection": {"seconds": 0.4}},
    )
    report = await runner.wait()
    assert report.kind is ExitKind.COMPLETED, report
