"""One trial of the search benchmark: two seconds of waiting, as for a GPU, and one validation.

The function `work` is the same for Gangline and for Ray Tune. Called by benchmarks/search_rate.py.
"""

from __future__ import annotations

import math
import time
from pathlib import Path


def work(learning_rate: float, seconds: float) -> float:
    """Returns the loss. The process waits, so the slots and not the cores of the machine are the limit."""
    time.sleep(seconds)
    return abs(math.log10(learning_rate) + 2.5)


def main() -> None:
    from gangline import core, get_cluster_info  # noqa: PLC0415 - the peer imports this file without Gangline

    info = get_cluster_info()
    assert info is not None
    with core.init() as context:
        hyperparameters = info.trial.hparams
        began_at = time.time()
        loss = work(hyperparameters["lr"], hyperparameters["seconds"])
        context.train.report_validation_metrics(1, {"loss": loss})
    if folder := hyperparameters["stamps"]:
        Path(folder, str(info.trial.trial_id)).write_text(f"{began_at} {began_at + hyperparameters['seconds']}")


if __name__ == "__main__":
    main()
