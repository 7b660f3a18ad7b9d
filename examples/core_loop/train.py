"""A training loop of one's own with the Core API: gradient descent finds the slope of a noisy line.

It reports metrics, saves checkpoints, goes on from the latest one and stops in order when its slots are needed. Every
rank has its share of the data; they average their gradients by themselves. Runs alone as well: `python3 train.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from gangline import core, get_cluster_info

STEPS = 200
LEARNING_RATE = 0.05
TRUE_SLOPE = 3.0


def main() -> None:
    info = get_cluster_info()
    with core.init() as context:
        first, slope = 0, 0.0
        if info and info.latest_checkpoint:
            with context.checkpoint.restore_path(info.latest_checkpoint) as path:
                saved = json.loads((path / "slope.json").read_text())
                first, slope = saved["steps"], saved["slope"]
        train(context, first, slope)


def train(context: core.Context, first: int, slope: float) -> None:
    """Takes steps first + 1 to STEPS, or as many as there is time for."""
    points = make_points(context.distributed.rank)
    for step in range(first + 1, STEPS + 1):
        gradients = context.distributed.allgather(sum(2 * x * (slope * x - y) for x, y in points) / len(points))
        slope -= LEARNING_RATE * sum(gradients) / len(gradients)
        should_stop = step % 10 == 0 and context.preempt.should_preempt()
        if context.distributed.is_chief and (step % 50 == 0 or should_stop):
            report(context, step, slope)
        if should_stop:
            return


def report(context: core.Context, step: int, slope: float) -> None:
    context.train.report_training_metrics(step, {"slope": slope})
    context.train.report_validation_metrics(step, {"error": abs(slope - TRUE_SLOPE)})
    context.train.report_progress(step / STEPS)
    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        Path(path, "slope.json").write_text(json.dumps({"steps": step, "slope": slope}))


def make_points(rank: int) -> list[tuple[float, float]]:
    numbers = random.Random(rank)  # noqa: S311  data, no secret
    xs = [numbers.uniform(-1, 1) for _ in range(256)]
    return [(x, TRUE_SLOPE * x + numbers.gauss(0, 0.1)) for x in xs]


if __name__ == "__main__":
    main()
