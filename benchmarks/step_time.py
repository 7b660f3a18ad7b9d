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
import sys
from contextlib import ExitStack

from benchmarks.contest import Contest
from benchmarks.machine import describe_machine
from benchmarks.peer import PeersMissing, peer_python
from benchmarks.process import run_benchmark, torchrun
from benchmarks.turnstile import programs_at_turnstile

# Our step time over the fastest one's must not exceed this.
BAR = 1.02
STEPS_PER_BLOCK = 100
# More than any run takes: the benchmark ends the programs.
MOST_BLOCKS = 10_000
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
        commands = {"gangline": _ours(), "torchrun": [*torchrun(2), "bare.py", "overhead"]}
        try:
            python = stack.enter_context(peer_python(list(PEERS.values())))
            commands |= {name: [*torchrun(2, python), "peer_loop.py", name] for name in PEERS}
            print(f"peers: {', '.join(PEERS.values())}")
        except PeersMissing as error:
            print(f"without {' and '.join(PEERS)}: {error}")
        for _ in range(arguments.runs):
            with programs_at_turnstile(commands, options) as sides:
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


if __name__ == "__main__":
    run_benchmark(main)
