"""Checks that ranks with copies of the same tensors keep them the same.

Owns the moments of the checks, and the reaction to a difference: parameters that differ end the trial, buffers that
differ are warned of once. Ranks of one kind of GPU agree bit by bit, because the exchanged gradients and the steps are
the same. Other kinds of GPU round differently, and only such small differences are allowed. The training reports call
it on all ranks in step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from gangline.errors import invalid
from gangline.pytorch.parallel.shared.copies import Copies
from gangline.pytorch.training.comparison import (
    TOLERANCE,
    CopyDifference,
    count_of,
    differ,
    find_largest,
    fingerprints,
)
from gangline.pytorch.trial.context import PyTorchTrialContext

# Ratio of the checks' time to the time of training, on average. After an expensive check the next reports go without
# one.
_COST_RATIO = 0.001
_log = logging.getLogger("gangline")


class DriftCheck:
    """Checks one trial for drift. A check begins with an exchange of reports and ends one batch later, as the exchange
    does, so that no rank waits for it. Where the next step would hide a difference, it begins and ends with a report.
    """

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._distributed = context.distributed
        self._strategy = context.strategy
        self._models = context.models
        self._due = 0
        self._newest = (0, time.perf_counter())
        self._has_warned = self._has_warned_of_buffers = False
        self._answer: Callable[[], list[int]] | None = None
        # Of the parameters, at the beginning of the answer.
        self._num_numbers = 0

    @property
    def ends_at_once(self) -> bool:
        """Returns whether a check has to end before the next step."""
        return self._strategy.overwrites_copies

    def is_urgent(self, batches: int) -> bool:
        """Returns whether a check is due that has to end before the next step."""
        return self.ends_at_once and batches >= self._due

    def start(self, batches: int) -> None:
        self._newest = (batches, time.perf_counter())

    def begin(self, batches: int, is_wanted: bool = False) -> None:
        """Begins a check. is_wanted: also where it comes too early for its cost, as before a checkpoint."""
        if self._distributed.size == 1 or (batches < self._due and not is_wanted):
            return
        began = time.perf_counter()
        parameters, buffers = self._strategy.replicated(), self._buffers()
        if not parameters and not buffers:
            return
        numbers = fingerprints([*parameters, *buffers])
        self._num_numbers = count_of(parameters)
        cost = time.perf_counter() - began
        done, elapsed = batches - self._newest[0], began - self._newest[1]
        self._newest = (batches, began)
        due = batches + next_distance(cost, elapsed / done if done else 0.0)
        self._answer = self._distributed.maximum_later([*numbers, due])

    def end(self, batches: int, describe_newest: Callable[[], str]) -> None:
        """Ends the check that was begun, if any. batches: of that check. describe_newest: returns the checkpoint that
        training can continue from, as a clause. Raises GanglineError `training.drift` where a parameter differs between
        its copies."""
        if self._answer is None:
            return
        *numbers, self._due = self._answer()
        self._answer = None
        # Present values are compared: in the batch since the check began each rank has trained on in the same way.
        if differ(numbers[: self._num_numbers]):
            self._judge(find_largest(self._strategy.replicated(), self._distributed), batches, describe_newest)
        if differ(numbers[self._num_numbers :]):
            self._warn_of_buffer(find_largest(self._buffers(), self._distributed))

    def _buffers(self) -> Sequence[Copies]:
        """Returns the buffers to compare; none after the warning."""
        return () if self._has_warned_of_buffers else self._strategy.replicated_buffers(self._models)

    def _judge(self, found: CopyDifference | None, batches: int, describe_newest: Callable[[], str]) -> None:
        if found is None:
            return
        if found.ratio <= TOLERANCE:
            self._warn(found)
            return
        what = "a weight" if found.owner == "stage" else "a model"
        raise invalid(
            "training.drift",
            f"{found.name} differs between {found.owner}s by {found.ratio:.1g} of its largest value at batch "
            f"{batches}, so each {found.owner} trains {what} of its own; {describe_newest()}. Make gradients with "
            "context.backward alone, load and change parameters in the same way on all ranks, and draw what "
            "initialises or changes them from the same seed",
        )

    def _warn(self, found: CopyDifference) -> None:
        if not self._has_warned and self._distributed.is_chief:
            text = "%s differs between %ss by %.1g of its largest value, as rounding on GPUs of several kinds makes it"
            _log.warning(text, found.name, found.owner, found.ratio)
        self._has_warned = True

    def _warn_of_buffer(self, found: CopyDifference | None) -> None:
        if found is None or found.ratio <= TOLERANCE:
            return
        self._has_warned_of_buffers = True
        if self._distributed.is_chief:
            _log.warning(
                "buffer %s differs between %ss, as each fills it from its own records; %s. Fill it from the records of "
                "all ranks (torch.distributed.all_gather), or train on one slot",
                found.name,
                found.owner,
                self._strategy.describe_buffers(),
            )


def next_distance(cost_seconds: float, batch_seconds: float) -> int:
    """Returns the batches until the next check, so that checks cost no more than their ratio."""
    if batch_seconds <= 0:
        return 1
    return max(1, math.ceil(cost_seconds / batch_seconds / _COST_RATIO))
