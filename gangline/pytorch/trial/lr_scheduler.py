"""LRScheduler: a learning-rate scheduler with the moment at which the trainer steps it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from gangline.errors import invalid


class LRScheduler:
    """Steps a scheduler at every `frequency` of the moments that step_mode names. With MANUAL_STEP the trial steps
    it."""

    class StepMode(Enum):
        STEP_EVERY_BATCH = 1
        STEP_EVERY_OPTIMIZER_STEP = 2
        STEP_EVERY_EPOCH = 3
        MANUAL_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        if frequency < 1:
            raise invalid("pytorch.lr_scheduler", f"wrap_lr_scheduler: frequency is {frequency}; it must be at least 1")
        self.scheduler = scheduler
        self.step_mode = step_mode
        self.frequency = frequency

    def steps_due(self, batches: int, aggregation_frequency: int, completed_epoch: int | None) -> int:
        """Returns how often to step it now. batches: completed ones, the running one included. completed_epoch: counts
        from 1; None inside an epoch.

        While gradients are aggregated the rate stays. With the optimizer's step the scheduler makes its steps for all
        batches since the last one.
        """
        mode = self.step_mode
        if mode is self.StepMode.STEP_EVERY_EPOCH:
            return int(completed_epoch is not None and completed_epoch % self.frequency == 0)
        if mode is self.StepMode.MANUAL_STEP or batches % aggregation_frequency:
            return 0
        if mode is self.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            return int(batches // aggregation_frequency % self.frequency == 0)
        return batches // self.frequency - (batches - aggregation_frequency) // self.frequency
