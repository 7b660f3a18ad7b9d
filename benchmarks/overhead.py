"""What a training step costs under Gangline, beside the same model in a plain torchrun loop.

Both trainings are up at once and take turns, a block of 100 steps each, so that both meet the same machine; as many
pairs of blocks as bring the 95 % interval of the ratio within 2 %, at most --pairs. Processor time of all ranks is
counted beside the wall clock. Run it with `python -m benchmarks.overhead`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cluster import running_cluster
from benchmarks.contest import print_steps, run_rounds
from benchmarks.machine import describe_machine
from benchmarks.statistic import paired_ratio
from benchmarks.turnstile import Side, Turnstile

WORKLOAD = Path(__file__).parent / "workload"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
STEPS_PER_BLOCK = 100
MOST_STEPS = 1_000_000
CONFIG = """
name: benchmark-overhead
entrypoint: trial:BenchmarkTrial
hyperparameters: {{global_batch_size: 64, turnstile: "{turnstile}", steps_per_block: {steps}}}
searcher: {{name: single, metric: validation_loss, max_length: {{batches: {most}}}}}
resources: {{slots_per_trial: 2}}
scheduling_unit: {steps}
max_restarts: 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="gl-") as folder, running_cluster(agents=1, slots=2) as (client, _):
        turnstile = Turnstile(Path(folder, "turn"), deadline_seconds=60)
        config = CONFIG.format(turnstile=turnstile.path, steps=STEPS_PER_BLOCK, most=MOST_STEPS)
        created = client.create_experiment(config, WORKLOAD)
        bare = [
            "bare.py",
            "overhead",
            "--turnstile",
            str(turnstile.path),
            "--blocks",
            str(MOST_STEPS // STEPS_PER_BLOCK),
        ]
        peer = subprocess.Popen([*TORCHRUN, *bare], cwd=WORKLOAD, stdout=subprocess.DEVNULL)
        try:
            sides = dict(turnstile.admit() for _ in range(2))
            measure(sides["gangline"], sides["torchrun"], arguments.pairs)
        finally:
            peer.terminate()
            peer.wait()
            client.kill_experiment(created.experiment.id)
            client.wait_experiment(created.experiment.id)
            turnstile.close()


def measure(ours: Side, theirs: Side, most_pairs: int) -> None:
    """Runs pairs of blocks until the interval is narrow enough, and prints what they say."""
    sides = {"gangline": ours, "torchrun": theirs}
    run_rounds(sides, most_pairs)
    print_steps(sides, STEPS_PER_BLOCK)
    wall_ratio = paired_ratio(ours.wall_seconds, theirs.wall_seconds)
    cpu_ratio = paired_ratio(ours.cpu_seconds, theirs.cpu_seconds)
    print(f"step time, gangline / torchrun: {wall_ratio}")
    print(f"processor time, the same:       {cpu_ratio}")


if __name__ == "__main__":
    main()
