"""The script of the benchmark of the page: reports a metric again and again, each time with the present moment as the
number of its batch: in milliseconds since `began`, which counts in milliseconds since 1970. `every`: seconds between
two reports."""

from __future__ import annotations

import time

import gangline


def main() -> None:
    with gangline.core.init() as core:
        cluster = gangline.get_cluster_info()
        assert cluster is not None, "it runs as a trial"
        began, every = cluster.trial.hparams["began"], cluster.trial.hparams["every"]
        while not core.preempt.should_preempt():
            batch = int(1000 * time.time()) - began
            core.train.report_training_metrics(steps_completed=batch, metrics={"loss": 1 / batch})
            time.sleep(every)


if __name__ == "__main__":
    main()
