"""What train_batch may not change where it is called for parts of a batch: learning rates that it steps itself, and its
own counts of batches. Used by the loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gangline.errors import invalid
from gangline.pytorch.trial.lr_scheduler import LRScheduler

_log = logging.getLogger("gangline")


class PartState:
    """Watches the calls of one trial's train_batch for parts of a batch. trial: whose integers count as counts."""

    def __init__(self, trial: Any, schedulers: Sequence[LRScheduler]) -> None:
        self._trial = trial
        self._schedulers = schedulers
        self._has_warned = False

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Returns a context for one call, which is not the last one of its batch. Raises GanglineError
        `pytorch.lr_scheduler` for a learning rate scheduler that the call steps; warns once of a number that it counts.
        """
        steps, counts = self._steps(), {} if self._has_warned else self._counts()
        yield
        if self._steps() != steps:
            raise invalid(
                "pytorch.lr_scheduler",
                "train_batch steps a learning rate scheduler, which a pipeline would step once for each microbatch; "
                "wrap it with LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP or STEP_EVERY_BATCH, or step it in a "
                "callback",
            )
        if self._has_warned:
            return
        changed = [name for name, value in self._counts().items() if counts.get(name, value) != value]
        if changed:
            self._has_warned = True
            _log.warning(
                "train_batch changes self.%s, and a pipeline calls it once for each microbatch; where that is a count "
                "of batches, use batch_idx in its place",
                ", self.".join(changed),
            )

    def _steps(self) -> list[Any]:
        return [getattr(each.scheduler, "last_epoch", None) for each in self._schedulers]

    def _counts(self) -> dict[str, int]:
        # A float, as the last loss, is no count, and neither is a bool.
        return {name: value for name, value in getattr(self._trial, "__dict__", {}).items() if type(value) is int}
