"""Measures what metrics reported every 10 steps add to a training step, from the rank to the gateway's database.

One trial of two ranks runs on a cluster of its own, a small CNN with steps of some milliseconds. Blocks with reports
and blocks without alternate in the same processes, in random order within each pair. The number of pairs is the one
that brings the 95 % interval of the ratio within 2 %, at most --pairs. Services and ranks share the processors, so the
services' work on a report counts as well. At the end every report must be in the history that the gateway returns. Run
it with `python -m benchmarks.metrics_cost`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import Ratio, paired_ratio, summarise
from gangline.client import Client

WORKLOAD = Path(__file__).parent / "workload"
# The step time with reports over that without must not exceed this.
BAR = 1.02
HALF_WIDTH = 0.02
REPORT_EVERY = 10
# The first steps of a block are not timed: reports of the block before are still being sent.
LEAD_STEPS, TIMED_STEPS = 50, 200
WARM_UP_PAIRS = 2
FEWEST_PAIRS = 20
# More than any run takes: the benchmark ends the training.
MOST_BATCHES = 1_000_000
BLOCK_DEADLINE_SECONDS = 120.0
LOOK_SECONDS = 0.2
CONFIG = """
name: benchmark-metrics-cost
entrypoint: python3 -m gangline.launch.torch_distributed reporting.py
hyperparameters:
  global_batch_size: 64
  turnstile: ""
  steps_per_block: 100
  blocks: "{blocks}"
  report_every: {report_every}
  lead: {lead}
  timed: {timed}
  seed: 0
searcher: {{name: single, metric: validation_loss, max_length: {{batches: {most}}}}}
resources: {{slots_per_trial: 2}}
max_restarts: 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=150)
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="gl-") as folder, running_cluster(agents=1, slots=2) as (client, _):
        path = Path(folder, "blocks.jsonl")
        config = CONFIG.format(
            blocks=path, report_every=REPORT_EVERY, lead=LEAD_STEPS, timed=TIMED_STEPS, most=MOST_BATCHES
        )
        experiment_id = client.create_experiment(config, WORKLOAD).experiment.id
        try:
            blocks = _collect(path, arguments.pairs)
        finally:
            client.cancel_experiment(experiment_id)
            client.wait_experiment(experiment_id)
        _print_ratio(blocks)
        _print_history(client, experiment_id, blocks)


def _collect(path: Path, most_pairs: int) -> list[dict[str, Any]]:
    """Returns all blocks, in pairs, as soon as there are enough. Raises TimeoutError when the training stops."""
    blocks: list[dict[str, Any]] = []
    deadline = time.monotonic() + BLOCK_DEADLINE_SECONDS
    while True:
        text = path.read_text() if path.exists() else ""
        written_blocks = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if len(written_blocks) > len(blocks):
            blocks, deadline = written_blocks, time.monotonic() + BLOCK_DEADLINE_SECONDS
            pairs = len(blocks) // 2 - WARM_UP_PAIRS
            if pairs >= most_pairs or (pairs >= FEWEST_PAIRS and _ratio(blocks).half_width <= HALF_WIDTH):
                return blocks[: len(blocks) // 2 * 2]
        if time.monotonic() > deadline:
            raise TimeoutError(f"no block of steps was finished in {BLOCK_DEADLINE_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)


def _seconds(blocks: list[dict[str, Any]], has_reports: bool) -> list[float]:
    """Returns the seconds of a step in each block of this kind, one for each whole pair after the warm-up."""
    counted_blocks = blocks[2 * WARM_UP_PAIRS : len(blocks) // 2 * 2]
    return [block["seconds_per_step"] for block in counted_blocks if block["has_reports"] == has_reports]


def _ratio(blocks: list[dict[str, Any]]) -> Ratio:
    return paired_ratio(_seconds(blocks, True), _seconds(blocks, False))


def _print_ratio(blocks: list[dict[str, Any]]) -> None:
    for name, has_reports in (("without reports", False), (f"a report in {REPORT_EVERY}", True)):
        step = summarise([1000 * seconds for seconds in _seconds(blocks, has_reports)])
        print(f"{name:16} step p50 {step.p50:6.3f} ms (min {step.minimum:.3f}, p95 {step.p95:.3f})")
    ratio = _ratio(blocks)
    print(f"pairs {ratio.pairs} of {TIMED_STEPS} steps after {LEAD_STEPS} that are not timed")
    print(f"step time, with / without: {ratio}")
    print(f"at most {BAR}: {'yes' if ratio.mean <= BAR else 'NO'}")
    print(
        "Ray Train, not run here (on two such cores): a mean step 18 to 21 times as long with a report every 10 steps"
    )


def _print_history(client: Client, experiment_id: int, blocks: list[dict[str, Any]]) -> None:
    """Prints how many reports are stored. Raises SystemExit when a report is missing."""
    stored = {entry.point.batches_completed for entry in client.stream_metrics(experiment_id, group="training")}
    block = LEAD_STEPS + TIMED_STEPS
    wanted = {
        batches
        for timed_block in blocks
        if timed_block["has_reports"]
        for batches in range(timed_block["batches"] - block + REPORT_EVERY, timed_block["batches"] + 1, REPORT_EVERY)
    }
    print(f"reports in the gateway's history: {len(wanted & stored)} of {len(wanted)}")
    if not wanted <= stored:
        raise SystemExit(f"{len(wanted - stored)} reports are missing, the first one of batch {min(wanted - stored)}")


if __name__ == "__main__":
    run_benchmark(main)
