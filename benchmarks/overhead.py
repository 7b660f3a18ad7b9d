"""What a training step costs under Gangline, beside the same model in a plain torchrun loop.

Both trainings are up at once and take turns, a block of 100 steps each, so that both meet the same machine. Every run
starts both anew (contest.py says why); as many runs as bring the 95 % interval of the ratio within 2 %, five at least
and --runs at most. Processor time of all ranks is counted beside the wall clock. Run it with
`python -m benchmarks.overhead`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster import running_cluster
from benchmarks.contest import Contest
from benchmarks.machine import describe_machine
from benchmarks.turnstile import Side, Turnstile
from gangline.client import Client

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
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    print(describe_machine())
    contest = Contest(STEPS_PER_BLOCK)
    with running_cluster(agents=1, slots=2) as (client, _):
        for _ in range(arguments.runs):
            with _both(client) as sides:
                contest.run(sides, arguments.rounds)
            if contest.is_enough():
                break
    contest.print_steps()
    contest.print_runs("gangline", "torchrun")
    print(f"step time, gangline / torchrun: {contest.wall_ratio('gangline', 'torchrun')}")
    print(f"processor time, the same:       {contest.cpu_ratio('gangline', 'torchrun')}")


@contextmanager
def _both(client: Client) -> Iterator[dict[str, Side]]:
    """Both trainings, each in front of its first block; they are ended with the block."""
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        turnstile = Turnstile(Path(folder, "turn"), deadline_seconds=60)
        config = CONFIG.format(turnstile=turnstile.path, steps=STEPS_PER_BLOCK, most=MOST_STEPS)
        created = client.create_experiment(config, WORKLOAD)
        options = ["--turnstile", str(turnstile.path), "--blocks", str(MOST_STEPS // STEPS_PER_BLOCK)]
        bare = [*TORCHRUN, "bare.py", "overhead", *options]
        peer = subprocess.Popen(bare, cwd=WORKLOAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield dict(turnstile.admit() for _ in range(2))
        finally:
            peer.terminate()
            peer.wait()
            client.kill_experiment(created.experiment.id)
            client.wait_experiment(created.experiment.id)
            turnstile.close()


if __name__ == "__main__":
    main()
