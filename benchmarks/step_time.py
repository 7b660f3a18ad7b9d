"""Measures the cost of a training step in the engine alone, beside bare DDP, HF Accelerate and Lightning Fabric.

All four train the same small CNN with the same data and global batch, on two ranks each over gloo, started by torchrun
or a similar launcher, without a cluster. All are up at once, and exactly one of them runs a block of 100 steps at a
time, in random order within each round. Every run starts all of them anew (contest.py explains why). The number of runs
is the one that brings the 95 % interval of every ratio to the fastest within 2 %, at least five and at most --runs. pip
installs the peers into a temporary environment; without them ours and bare DDP remain. Run it with `python -m
benchmarks.step_time`; a larger --batch-per-rank makes longer steps. Our loader reads a TensorDataset a batch at a time;
with --by-record all of them read the same data record by record, so that only the loops differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.contest import Contest
from benchmarks.machine import describe_machine
from benchmarks.peer import PeersMissing, peer_python
from benchmarks.process import end_process
from benchmarks.turnstile import Side, Turnstile

WORKLOAD = Path(__file__).parent / "workload"
# Our step time over the fastest one's must not exceed this.
BAR = 1.02
STEPS_PER_BLOCK = 100
# More than any run takes: the benchmark ends the programs.
MOST_BLOCKS = 10_000
START_SECONDS = 120.0
# The end of each program's output that is shown after a failure.
SAID_CHARACTERS = 2000
PEERS = {"accelerate": "accelerate==1.15.0", "fabric": "lightning-fabric==2.6.6"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-per-rank", type=int, default=32)
    parser.add_argument("--by-record", action="store_true")
    arguments = parser.parse_args()
    print(describe_machine())
    contest = Contest(STEPS_PER_BLOCK)
    options = ["--batch-per-rank", str(arguments.batch_per_rank), "--steps-per-block", str(STEPS_PER_BLOCK)]
    options += ["--blocks", str(MOST_BLOCKS), *(["--by-record"] if arguments.by_record else [])]
    with ExitStack() as stack:
        commands = {"gangline": _ours(), "torchrun": [*_torchrun(Path(sys.executable)), "bare.py", "overhead"]}
        try:
            python = stack.enter_context(peer_python(list(PEERS.values())))
            commands |= {name: [*_torchrun(python), "peer_loop.py", name] for name in PEERS}
            print(f"peers: {', '.join(PEERS.values())}")
        except PeersMissing as error:
            print(f"without {' and '.join(PEERS)}: {error}")
        for _ in range(arguments.runs):
            with _running(commands, options) as sides:
                contest.run(sides, arguments.rounds)
            if contest.is_enough():
                break
    contest.print_steps()
    for name in contest.samples:
        print(f"{name:10} step time / the fastest: {contest.wall_ratio(name, contest.fastest())}")
    contest.print_runs("gangline", contest.fastest())
    is_met = contest.wall_ratio("gangline", contest.fastest()).mean <= BAR
    print(f"gangline at most {BAR}: {'yes' if is_met else 'NO'}")


def _ours() -> list[str]:
    return [sys.executable, "-m", "gangline.launch.torch_distributed", "--nproc-per-node", "2", "python3", "engine.py"]


def _torchrun(python: Path) -> list[str]:
    return [str(python), "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]


@contextmanager
def _running(commands: dict[str, list[str]], options: list[str]) -> Iterator[dict[str, Side]]:
    """Starts all programs, each waiting before its first block; they are ended with the context."""
    with tempfile.TemporaryDirectory(prefix="gl-step-") as folder:
        # The programs write their files into the folder in which they run.
        for file in WORKLOAD.glob("*.py"):
            Path(folder, file.name).symlink_to(file)
        turnstile = Turnstile(Path(folder, "turn"), START_SECONDS)
        options = [*options, "--turnstile", str(turnstile.path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with ExitStack() as stack:
            stack.callback(turnstile.close)
            for name, command in commands.items():
                output = stack.enter_context(Path(folder, f"{name}.txt").open("wb"))
                process = subprocess.Popen(
                    [*command, *options], cwd=folder, env=environment, stdout=output, stderr=output
                )
                stack.callback(end_process, process)
            try:
                admitted = dict(turnstile.admit() for _ in commands)
                yield {name: admitted[name] for name in commands}
            except (TimeoutError, ConnectionError):
                for name in commands:
                    print(f"{name} said last:\n{Path(folder, f'{name}.txt').read_text()[-SAID_CHARACTERS:]}")
                raise


if __name__ == "__main__":
    main()
