"""Training metrics of all ranks become one mean, report after report.

Owns what the ranks have agreed on: the names that all of them report. While these stay as they are, a report costs one
small reduction; a rank that reports something else makes all ranks tell their names anew. The training loop calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gangline.core.distributed import DistributedContext
from gangline.pytorch import metric

Totals = Mapping[str, tuple[float, int]]


class Averaging:
    """Of one trial; all ranks make theirs at the same time."""

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed
        self._names: tuple[str, ...] = ()

    def average(self, own: Totals) -> dict[str, float]:
        """own: by name, the sum and the count of this rank's batches. Returns the mean over all batches of all ranks.
        All ranks call it in step."""
        if self._distributed.size == 1:
            return metric.average([own])
        joint = self._reduce(own) if self._names else None
        return self._agree(own) if joint is None else joint

    def _reduce(self, own: Totals) -> dict[str, float] | None:
        """None where any rank has other names."""
        is_other = own.keys() != set(self._names)
        numbers = [number for name in self._names for number in own.get(name, (0.0, 0))]
        num_others, *totals = self._distributed.total([float(is_other), *numbers])
        if num_others:
            return None
        return {name: totals[2 * place] / totals[2 * place + 1] for place, name in enumerate(self._names)}

    def _agree(self, own: Totals) -> dict[str, float]:
        by_rank = self._distributed.allgather(own)
        is_same = all(found.keys() == by_rank[0].keys() for found in by_rank)
        # In the chief's order, in which all ranks pack their numbers.
        self._names = tuple(by_rank[0]) if is_same else ()
        return metric.average(by_rank)
