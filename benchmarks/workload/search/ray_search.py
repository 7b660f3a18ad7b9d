"""The search benchmark's peer: Ray Tune runs the same trials on as many slots, and prints the seconds of each search.

Imports nothing of Gangline, because it runs in an environment that has Ray alone. The first search, of as many trials
as there are slots, warms Ray up and is not counted. Called by benchmarks/search_rate.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune

sys.path.insert(0, str(Path(__file__).parent))
from train import work  # type: ignore[import-not-found]  # the module beside this one


def train(config: dict[str, Any], seconds: float) -> None:
    tune.report({"loss": work(config["lr"], seconds)})


def search(num_trials: int, seconds: float, *, is_reusing: bool) -> float:
    """Returns the seconds from the start of the search to the end of its last trial."""
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(partial(train, seconds=seconds), {"cpu": 1}),
            param_space={"lr": tune.loguniform(1e-4, 1e-1)},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", num_samples=num_trials, **({"reuse_actors": True} if is_reusing else {})
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        began_at = time.monotonic()
        results = tuner.fit()
        elapsed = time.monotonic() - began_at
    assert len(results) == num_trials
    assert results.num_terminated == num_trials
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--reuse", action="store_true")
    arguments = parser.parse_args()
    ray.init(num_cpus=arguments.slots, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    # The warm-up is so short that only the start of Ray's processes counts.
    search(arguments.slots, 0.1, is_reusing=arguments.reuse)
    print(f"seconds {search(arguments.trials, arguments.seconds, is_reusing=arguments.reuse)}", flush=True)


if __name__ == "__main__":
    main()
