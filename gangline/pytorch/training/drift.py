"""Checks that all ranks have the same parameters, for strategies in which each rank updates the whole model by itself.

Owns the checksums, the moments of the checks, and the reaction to a difference. Ranks of one kind of GPU agree bit by
bit, because the exchanged gradients and the steps are the same. Other kinds of GPU round differently, and only such
small differences are allowed. The training reports call it on all ranks in step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from gangline.errors import invalid
from gangline.pytorch.data.checksum import sum_of_bits
from gangline.pytorch.trial.context import PyTorchTrialContext

# Ratio of the checks' time to the time of training, on average. After an expensive check the next reports go without
# one.
_COST_RATIO = 0.001
# Relative to a parameter's largest value. Rounding stays below it; a gradient that was not exchanged soon exceeds it.
_TOLERANCE = 1e-3
# Keeps the sum of checksums and its negative within the int64 of the reduction.
_MODULUS = 1 << 62
_log = logging.getLogger("gangline")


class DriftCheck:
    """Checks one trial for drift. A check begins with a report and ends one batch later, like the report itself, so
    that no rank waits for it."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._distributed = context.distributed
        self._strategy = context.strategy
        self._due = 0
        self._newest = (0, time.perf_counter())
        self._has_warned = False
        self._answer: Callable[[], list[int]] | None = None
        self._sums: list[int] = []

    def start(self, batches: int) -> None:
        self._newest = (batches, time.perf_counter())

    def begin(self, batches: int, is_wanted: bool = False) -> None:
        """Begins a check. is_wanted: also where it comes too early for its cost, as before a checkpoint."""
        if self._distributed.size == 1 or (batches < self._due and not is_wanted):
            return
        parameters = self._strategy.replicated()
        if not parameters:
            return
        began = time.perf_counter()
        self._sums = checksums(parameters)
        own = sum((2 * place + 1) * value for place, value in enumerate(self._sums)) % _MODULUS
        cost = time.perf_counter() - began
        done, elapsed = batches - self._newest[0], began - self._newest[1]
        self._newest = (batches, began)
        due = batches + next_distance(cost, elapsed / done if done else 0.0)
        self._answer = self._distributed.maximum_later([own, -own, due])

    def end(self, batches: int, describe_newest: Callable[[], str]) -> None:
        """Ends the check that was begun, if any. batches: of that check. describe_newest: returns the checkpoint that
        training can continue from, as a clause. Raises GanglineError `training.drift` where a parameter differs between
        ranks."""
        if self._answer is None:
            return
        largest, smallest, self._due = self._answer()
        self._answer = None
        # The second number is the maximum of the negatives, so this compares the largest and the smallest checksum.
        if largest == -smallest:
            return
        name, drift = self._find()
        if drift <= _TOLERANCE:
            self._warn(name, drift)
            return
        raise invalid(
            "training.drift",
            f"{name} differs between ranks by {drift:.1g} of its largest value at batch {batches}, so each rank trains "
            f"a model of its own; {describe_newest()}. Make gradients with context.backward alone, load and change "
            "parameters in the same way on all ranks, and draw what initialises them from the same seed",
        )

    def _find(self) -> tuple[str, float]:
        """Returns the parameter that differs most, and by how much. Compares present values: in the batch since the
        check began each rank has trained on in the same way."""
        parameters = list(self._strategy.replicated().items())
        count = len(self._sums)
        largest = self._distributed.maximum([*self._sums, *(-value for value in self._sums)])
        is_odd = [largest[place] != -largest[count + place] for place in range(count)]
        drifts = {
            name: self._compare(parameter) for (name, parameter), odd in zip(parameters, is_odd, strict=False) if odd
        }
        by_rank: list[dict[str, float]] = self._distributed.allgather(drifts)
        worst = {name: max(rank_drifts[name] for rank_drifts in by_rank) for name in drifts}
        return max(worst.items(), key=lambda item: item[1])

    @staticmethod
    def _compare(parameter: torch.Tensor) -> float:
        """Returns the difference to the chief's parameter, relative to its largest value. A value that is not finite
        counts as an infinite difference."""
        own = parameter.detach()
        chief = own.clone()
        dist.broadcast(chief, src=0)
        scale = max(float(chief.abs().max()), float(own.abs().max()))
        difference = float((own - chief).abs().max())
        # A type of few digits rounds in steps that are larger than the tolerance, so its differences count less.
        coarse = 4 * torch.finfo(own.dtype).eps / _TOLERANCE if own.dtype.is_floating_point else 1.0
        if not math.isfinite(difference) or not math.isfinite(scale):
            return math.inf
        return difference / scale / max(1.0, coarse) if scale else 0.0

    def _warn(self, name: str, drift: float) -> None:
        if not self._has_warned and self._distributed.is_chief:
            text = (
                "%s differs between ranks by %.1g of its largest value, as rounding on GPUs of several kinds makes it"
            )
            _log.warning(text, name, drift)
        self._has_warned = True


@torch.no_grad()
def checksums(parameters: Mapping[str, torch.Tensor]) -> list[int]:
    """Returns the checksum of each parameter, as whole numbers."""
    sums = [sum_of_bits(parameter.detach()) for parameter in parameters.values()]
    # One transfer from the device for all parameters.
    numbers: list[int] = torch.stack([checksum.to(sums[0].device, torch.int64) for checksum in sums]).tolist()
    return numbers


def next_distance(cost_seconds: float, batch_seconds: float) -> int:
    """Returns the batches until the next check, so that checks cost no more than their ratio."""
    if batch_seconds <= 0:
        return 1
    return max(1, math.ceil(cost_seconds / batch_seconds / _COST_RATIO))
