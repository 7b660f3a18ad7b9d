"""The runs of the benchmark of the page, as MLflow stores them: `python mlflow_runs.py ADDRESS RUNS METRICS STEPS`.

ADDRESS is the URI of MLflow's database. Each run has METRICS metrics with STEPS values, and four parameters. Prints the
id of the experiment and those of the runs, the newest first.
"""

from __future__ import annotations

import json
import math
import sys
import time

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient


def main(address: str, num_runs: int, num_metrics: int, num_steps: int) -> None:
    client = MlflowClient(tracking_uri=address)
    experiment_id = client.create_experiment("digits")
    run_ids: list[str] = []
    for number in range(1, num_runs + 1):
        run = client.create_run(experiment_id, run_name=f"digits-{number}")
        at = int(1000 * time.time())
        metrics = [
            Metric(f"metric_{metric:02}", math.sin(number + metric) / step, at, step)
            for metric in range(num_metrics)
            for step in range(1, num_steps + 1)
        ]
        params = [Param(f"parameter_{place}", str(number / (place + 1))) for place in range(4)]
        client.log_batch(run.info.run_id, metrics=metrics, params=params)
        client.set_terminated(run.info.run_id)
        run_ids.insert(0, run.info.run_id)
    print(json.dumps({"experiment_id": experiment_id, "run_ids": run_ids}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
