"""Averages training metrics over all ranks, report after report.

Owns the agreement of the ranks on the names that all of them report. While the names stay the same, a report costs one
small reduction. A rank that reports other names makes all ranks exchange their names again. The training loop calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gangline.core.distributed import DistributedContext
from gangline.pytorch import metric

Totals = Mapping[str, tuple[float, float]]


class Averaging:
    """Averages the metrics of one trial; all ranks make theirs at the same time. is_counted: whether this rank's
    metrics count; see gangline.pytorch.parallel.Replica."""

    def __init__(self, distributed: DistributedContext, is_counted: bool = True) -> None:
        self._distributed = distributed
        self._is_counted = is_counted
        self._names: tuple[str, ...] = ()

    def average_later(self, own: Totals) -> Callable[[], dict[str, float]]:
        """Begins to average. own: by name, the sum and the count of this rank's batches. Returns a function that
        returns the mean over all batches of all ranks; only that function waits for the others. All ranks call both in
        step, and the second one once."""
        if self._distributed.size == 1:
            return lambda: metric.average([own])
        if not self._names:
            return lambda: self._agree(own)
        if not self._is_counted:
            own = dict.fromkeys(self._names, (0.0, 0))
        is_other = own.keys() != set(self._names)
        numbers = [number for name in self._names for number in own.get(name, (0.0, 0))]
        wait = self._distributed.total_later([float(is_other), *numbers])

        def finish() -> dict[str, float]:
            num_others, *totals = wait()
            # A rank with other names sets this number, and all ranks agree again.
            return self._agree(own) if num_others else self._means(totals)

        return finish

    def _means(self, totals: Sequence[float]) -> dict[str, float]:
        return {name: totals[2 * place] / totals[2 * place + 1] for place, name in enumerate(self._names)}

    def _agree(self, own: Totals) -> dict[str, float]:
        gathered = self._distributed.allgather(own if self._is_counted else None)
        counted = [found for found in gathered if found is not None]
        is_same = all(found.keys() == counted[0].keys() for found in counted)
        # The order of the first counted rank, in which all ranks pack their numbers.
        self._names = tuple(counted[0]) if is_same else ()
        return metric.average(counted)
