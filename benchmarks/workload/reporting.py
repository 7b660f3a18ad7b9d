"""The script of benchmarks/metrics_cost.py: one training in which blocks of steps with reports and blocks without
alternate.

The chief appends a line of JSON for each finished block. Hyperparameters, besides those of BenchmarkTrial:
`blocks`: the file of these lines. `report_every`: steps between two reports.
`lead`: steps at the beginning of a block that are not timed, because records of the block before are still being sent.
`timed`: the steps after them. `seed`: decides the order of the two blocks of a pair.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

from trial import BenchmarkTrial

from gangline import pytorch


class Reports(Container[int]):
    """Contains the batches after which there is a report: every so often, in one block of each pair, the same on all
    ranks."""

    def __init__(self, hparams: dict[str, Any]) -> None:
        self.block = hparams["lead"] + hparams["timed"]
        self._every, self._seed = hparams["report_every"], hparams["seed"]

    def __contains__(self, batches: object) -> bool:
        assert isinstance(batches, int)
        return batches % self._every == 0 and self.is_reporting((batches - 1) // self.block)

    def is_reporting(self, block: int) -> bool:
        is_second = block % 2 == 1
        return is_second == random.Random(f"{self._seed} {block // 2}").choice((False, True))


class ReportingTrial(BenchmarkTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, reports: Reports) -> None:
        super().__init__(context)
        self.reports = reports
        self.lead = context.get_hparam("lead")
        self.timed = context.get_hparam("timed")
        self.path = Path(context.get_hparam("blocks"))
        self.began = 0.0

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        block, step = divmod(batch_idx, self.reports.block)
        if step == 0 and block > 0 and self.context.distributed.is_chief:
            self._tell(block - 1, time.perf_counter() - self.began)
        if step == self.lead:
            self.began = time.perf_counter()
        return super().train_batch(batch, epoch_idx, batch_idx)

    def _tell(self, block: int, seconds: float) -> None:
        line = {
            "has_reports": self.reports.is_reporting(block),
            "seconds_per_step": seconds / self.timed,
            "batches": (block + 1) * self.reports.block,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    with pytorch.init() as context:
        reports = Reports(context.get_hparams())
        trial = ReportingTrial(context, reports)
        pytorch.Trainer(trial, context).fit(reporting_period=pytorch.Batch(reports))


if __name__ == "__main__":
    main()
