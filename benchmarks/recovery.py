"""Measures how long training stops after a kill -9 of one rank, beside torchrun --max-restarts with its own checkpoint.

Trains a small CNN under ddp on a cluster of two agents with two slots each, with a checkpoint every 10 batches. The
last rank is killed by its pid. The clock runs until every rank, all of them new processes, has finished a step, by the
times that the ranks record. The peer trains the same model, saves with torch.save as often, and is killed in the same
way. The two alternate, five runs each, and every run is a training of its own. torchrun opens a new store at a restart,
which an environment variable requests: by default gloo's new ranks find the addresses of the dead ones in the old
store, and fail. Run it with `python -m benchmarks.recovery`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import end_process, run_benchmark, torchrun
from benchmarks.statistic import summarise
from gangline.client import Client

# Most batches of a training; the benchmark always ends it before that.
WORKLOAD = Path(__file__).parent / "workload"
# The median must not exceed this.
BAR_SECONDS = 2.0
SAVE_EVERY = 10
# Batches that every rank has done before the kill, about half way between two checkpoints.
KILL_AFTER = 105
MOST_BATCHES = 1_000_000
BATCH_PER_RANK = 32
WAIT_SECONDS = 60.0
# Pause between two looks at the ranks' records; the times in these do not depend on it.
LOOK_SECONDS = 0.02
CONFIG = """
name: benchmark-recovery
entrypoint: recovering:RecoveryTrial
hyperparameters: {{global_batch_size: {batch}, turnstile: "", steps_per_block: 100, footprints: "{footprints}"}}
searcher: {{name: single, metric: validation_loss, max_length: {{batches: {most}}}}}
resources: {{slots_per_trial: {ranks}}}
parallelism: ddp
min_checkpoint_period: {{batches: {save_every}}}
max_restarts: 1
"""


@dataclass(frozen=True, slots=True)
class Step:
    """Represents one line of a rank's record: its process, batches done over all attempts, seconds since 1970."""

    pid: int
    batches: int
    at: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """Holds one result."""

    # time from the kill to the first step that all ranks have finished; None if that never happened
    seconds: float | None
    repeated: int = 0  # batches that were trained again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2, help="above 2 the gang lies on both agents")
    arguments = parser.parse_args()
    print(describe_machine())
    ours, theirs = [], []
    with running_cluster(agents=2, slots=2) as (client, _):
        for _ in range(arguments.runs):
            ours.append(_recover_here(client, arguments.ranks))
            theirs.append(_recover_under_torchrun(arguments.ranks))
    print(f"{arguments.ranks} ranks, kill -9 of the last one to the next step of all:")
    print_row("gangline", ours)
    print_row("torchrun --max-restarts", theirs)
    print("Ray Train, not run here (two ranks on two cores, torch 2.13 CPU, median of 5): 10.9 s, notices after 1.7 s")
    seconds = [run.seconds for run in ours if run.seconds is not None]
    is_held = len(seconds) == len(ours) and summarise(seconds).p50 <= BAR_SECONDS
    print(f"median at most {BAR_SECONDS:g} s: {'yes' if is_held else 'NO'}")


def _recover_here(client: Client, ranks: int) -> Recovery:
    with tempfile.TemporaryDirectory(prefix="gl-recovery-") as folder:
        config = CONFIG.format(
            batch=BATCH_PER_RANK * ranks, footprints=folder, most=MOST_BATCHES, ranks=ranks, save_every=SAVE_EVERY
        )
        experiment_id = client.create_experiment(config, WORKLOAD).experiment.id
        try:
            return _kill_and_wait(Path(folder), ranks, lambda: bool(client.list_checkpoints(experiment_id)))
        finally:
            client.kill_experiment(experiment_id)
            client.wait_experiment(experiment_id)


def _recover_under_torchrun(ranks: int) -> Recovery:
    with tempfile.TemporaryDirectory(prefix="gl-recovery-") as folder:
        limits = ["--batch-per-rank", str(BATCH_PER_RANK), "--save-every", str(SAVE_EVERY)]
        program = ["restarting.py", "--folder", folder, *limits, "--batches", str(MOST_BATCHES)]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        command = [*torchrun(ranks), "--max-restarts", "1", *program]
        peer = subprocess.Popen(command, cwd=WORKLOAD, env=environment, stderr=subprocess.DEVNULL)
        try:
            return _kill_and_wait(Path(folder), ranks, Path(folder, "checkpoint.pth").exists)
        finally:
            end_process(peer)


def _kill_and_wait(folder: Path, ranks: int, has_checkpoint: Callable[[], bool]) -> Recovery:
    """Kills the last rank and waits for the recovery. Raises TimeoutError when the training does not get as far as the
    kill."""

    def may_kill() -> bool:
        return (
            all(steps and steps[-1].batches >= KILL_AFTER for steps in load_steps(folder, ranks)) and has_checkpoint()
        )

    if not wait_true(may_kill):
        raise TimeoutError(f"no {KILL_AFTER} batches and a checkpoint after {WAIT_SECONDS:g} s")
    pids = [steps[-1].pid for steps in load_steps(folder, ranks)]
    killed_at = time.time()
    os.kill(pids[-1], signal.SIGKILL)
    wait_true(lambda: find_recovery(load_steps(folder, ranks), pids, killed_at).seconds is not None)
    return find_recovery(load_steps(folder, ranks), pids, killed_at)


def find_recovery(steps_by_rank: list[list[Step]], pids: list[int], killed_at: float) -> Recovery:
    """Computes the recovery so far. pids: of the ranks at the time of the kill; their steps do not count as
    recovery."""
    firsts, newest = [], 0
    for steps, pid in zip(steps_by_rank, pids, strict=True):
        newest = max([newest, *(step.batches for step in steps if step.pid == pid)])
        firsts += [step for step in steps if step.pid != pid][:1]
    if len(firsts) < len(pids):
        return Recovery(None)
    return Recovery(max(step.at for step in firsts) - killed_at, max(0, newest + 1 - firsts[0].batches))


def load_steps(folder: Path, ranks: int) -> list[list[Step]]:
    """Returns the steps that each rank has recorded so far, without a line that is not complete yet."""
    return [_load_rank(folder / f"rank_{rank}.jsonl") for rank in range(ranks)]


def _load_rank(path: Path) -> list[Step]:
    text = path.read_text() if path.exists() else ""
    return [Step(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_true(condition: Callable[[], bool]) -> bool:
    """Waits up to WAIT_SECONDS; returns whether the condition became true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def print_row(name: str, runs: list[Recovery]) -> None:
    """Prints minimum, median and maximum of the runs that recovered, and how many never did."""
    seconds = [run.seconds for run in runs if run.seconds is not None]
    never = f"  never stepped again: {len(runs) - len(seconds)} of {len(runs)}" if len(seconds) < len(runs) else ""
    if not seconds:
        print(f"{name:24}{never}")
        return
    summary = summarise(seconds)
    repeated = summarise([run.repeated for run in runs if run.seconds is not None])
    spread = f"min {summary.minimum:6.3f}  p50 {summary.p50:6.3f}  max {summary.maximum:6.3f} s"
    print(f"{name:24} n {summary.count:2}  {spread}   batches trained twice p50 {repeated.p50:g}{never}")


if __name__ == "__main__":
    run_benchmark(main)
