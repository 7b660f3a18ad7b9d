"""The trial of benchmarks/recovery.py: the other benchmarks' trial, in which each rank records a line for every
step."""

from __future__ import annotations

from typing import Any

from footprint import Footprint
from trial import BenchmarkTrial

from gangline import pytorch


class RecoveryTrial(BenchmarkTrial):
    """Records every step. hyperparameters: besides BenchmarkTrial's, `footprints`, a folder on this machine."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.footprint = Footprint(context.get_hparam("footprints"), context.distributed.rank)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        metrics = super().train_batch(batch, epoch_idx, batch_idx)
        self.footprint.leave(batch_idx + 1)
        return metrics
