"""Gathers metrics of one rank, and reduces those of all ranks to one number.

Owns the sums, which grow without waiting for the device, and the reduction over ranks. Training metrics weigh every
batch alike, validation metrics every record. Called by the training loop and the evaluation.

Averages training metrics over all ranks, and keeps the names on which the ranks have agreed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from gangline.core.distributed import DistributedContext
from gangline.errors import invalid

_log = logging.getLogger("gangline")


class Reducer(Enum):
    """Names how a validation metric's values of several batches become one. AVG weighs each batch by its records."""

    AVG = "avg"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


MetricReduction = Reducer | Callable[[list[float]], Any]
"""Or a function of the values of all batches, ordered by rank."""


class MetricSums:
    """Sums named numbers. Tensors are added on their device, so adding never waits for a GPU."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, float] = {}

    def add(self, result: Any, method: str, weight: float = 1) -> None:
        """Adds a batch. result: of the trial's method. weight: of this batch; with 0 only the names count. Raises
        GanglineError `pytorch.metrics`."""
        sums, counts = self._sums, self._counts
        if not isinstance(result, dict):
            result = as_mapping(result, method)
        if weight != 1:
            # Not multiplied by 0, because infinity and NaN would not become 0.
            result = {name: weight * value if weight else 0.0 for name, value in keep_numbers(result, method).items()}
        for name, value in result.items():
            total = sums.get(name)
            if isinstance(value, torch.Tensor) and isinstance(total, torch.Tensor):
                # Runs after every batch, so a value that fits is not checked: only a single number fits into a sum.
                try:
                    total.add_(value.detach())
                except RuntimeError:
                    self._add_other(name, value, method)
            elif not self._add_other(name, value, method):
                continue
            counts[name] = counts.get(name, 0) + weight

    def _add_other(self, name: str, value: Any, method: str) -> bool:
        """Adds the first value of a name, or one that does not fit into the sum as it is. Returns False for a value
        that is left out because it is no number; one of a name with a sum is refused."""
        if name in self._sums:
            check_metrics({name: value}, method)
        elif not keep_numbers({name: value}, method):
            return False
        number = value.detach() if isinstance(value, torch.Tensor) else value
        self._sums[name] = self._sums[name] + number if name in self._sums else _start_of_sum(number)
        return True

    def __bool__(self) -> bool:
        """Returns whether any value was added since the last `take`."""
        return bool(self._sums)

    def nonfinite_loss(self) -> tuple[str, float] | None:
        """Returns the first loss whose sum is not finite. Waits for the device."""
        return find_nonfinite_loss({name: float(total) for name, total in self._sums.items() if _is_loss(name)})

    def take(self) -> dict[str, tuple[float, float]]:
        """Returns name -> sum and count since the last call."""
        sums_and_counts = {name: (float(total), self._counts[name]) for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return sums_and_counts


def _start_of_sum(number: Any) -> Any:
    """Returns a copy, because the trial may change its own tensor. Its type is wide enough for the sum of many halves
    or counts."""
    if not isinstance(number, torch.Tensor):
        return number
    is_whole = not number.is_floating_point()
    return number.to(torch.int64 if is_whole else torch.promote_types(number.dtype, torch.float32), copy=True)


def average(by_rank: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """Returns the mean over all batches of all ranks. Leaves out a metric without any weight."""
    sums: dict[str, tuple[float, float]] = {}
    for metrics in by_rank:
        for name, (total, count) in metrics.items():
            sum_and_count = sums.get(name, (0.0, 0))
            sums[name] = (sum_and_count[0] + total, sum_and_count[1] + count)
    return {name: total / count for name, (total, count) in sums.items() if count}


def find_nonfinite_loss(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """Returns the first loss that is not finite. A metric is a loss by its name; others may well be undefined, as a
    precision without positives."""
    return next(((name, value) for name, value in metrics.items() if _is_loss(name) and not math.isfinite(value)), None)


def _is_loss(name: str) -> bool:
    return "loss" in name.lower()


def as_mapping(result: Any, method: str) -> dict[str, Any]:
    """Returns the result of train_batch or evaluate_batch by names. Raises GanglineError `pytorch.metrics`."""
    if isinstance(result, torch.Tensor):
        result = {"loss": result}
    # The check for a dictionary is first: one against an abstract class is slow, and this runs after every batch.
    if not isinstance(result, dict) and not isinstance(result, Mapping):
        raise invalid(
            "pytorch.metrics",
            f"{method} returned {_describe(result)}; return a dictionary of metrics, or the loss as a tensor",
        )
    return dict(result)


def check_metrics(result: Any, method: str) -> dict[str, Any]:
    """Returns the result as a mapping of single numbers. Raises GanglineError `pytorch.metrics` for anything else."""
    metrics = as_mapping(result, method)
    for name, value in metrics.items():
        if not _is_number(value):
            raise invalid("pytorch.metrics", f"{method}: the metric {name!r} is {_describe(value)}, not one number")
    return metrics


# Names of metrics that are no numbers, with their method, of which the log tells already.
_left_out: set[tuple[str, str]] = set()


def keep_numbers(result: Any, method: str) -> dict[str, Any]:
    """Returns the metrics that are single numbers. Others, such as outputs for a callback, have no average; a warning
    tells of each once. Raises GanglineError `pytorch.metrics` for a loss that is no number."""
    metrics = as_mapping(result, method)
    others = [name for name, value in metrics.items() if not _is_number(value)]
    for name in others:
        if _is_loss(name):
            check_metrics({name: metrics[name]}, method)
        if (method, name) not in _left_out:
            _left_out.add((method, name))
            _log.warning(
                "%s: %r is %s, not one number, so it is no reported metric", method, name, _describe(metrics[name])
            )
        del metrics[name]
    return metrics


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0


class ValidationMetrics:
    """Collects values of one rank's validation batches, each with its records. `combine` reduces all ranks' totals to
    one."""

    def __init__(self, reducer: MetricReduction | Mapping[str, MetricReduction]) -> None:
        _check_reducer(reducer)
        self._reducer = reducer
        self._totals: dict[str, tuple[Any, int]] = {}
        self._num_batches = 0

    def add(self, metrics: Mapping[str, Any], records: int) -> None:
        """Adds a batch. Raises GanglineError `pytorch.metrics` where a batch has other metrics than those before it:
        their means would be of different records."""
        metrics = keep_numbers(metrics, "evaluate_batch")
        if not self._num_batches:
            self._check_names(metrics)
        if self._num_batches and metrics.keys() != self._totals.keys():
            raise invalid("pytorch.metrics", _other_names(self._num_batches, metrics, self._totals))
        self._num_batches += 1
        for name, value in metrics.items():
            number = value.detach() if isinstance(value, torch.Tensor) else value
            reducer = self.reducer_of(name)
            entry = (_first_value(reducer, number, records), records)
            earlier = self._totals.get(name)
            self._totals[name] = entry if earlier is None else _join(reducer, earlier, entry)

    def totals(self) -> dict[str, tuple[Any, int]]:
        """Returns plain numbers, or lists of them where a function reduces."""
        return {name: (_plain(value), records) for name, (value, records) in self._totals.items()}

    def combine(self, by_rank: Iterable[Mapping[str, tuple[Any, int]]]) -> dict[str, float]:
        """Reduces the totals of all ranks. A rank without any batch adds nothing."""
        merged: dict[str, tuple[Any, int]] = {}
        for totals in by_rank:
            for name, entry in totals.items():
                merged[name] = _join(self.reducer_of(name), merged[name], entry) if name in merged else entry
        return {name: _finish(self.reducer_of(name), name, *entry) for name, entry in merged.items()}

    def reducer_of(self, name: str) -> MetricReduction:
        return self._reducer[name] if isinstance(self._reducer, Mapping) else self._reducer

    def _check_names(self, metrics: Mapping[str, Any]) -> None:
        """Refuses a dictionary of reducers that has other names than the metrics: one of them is misspelt."""
        if not isinstance(self._reducer, Mapping) or metrics.keys() == self._reducer.keys():
            return
        name = min(metrics.keys() ^ self._reducer.keys())
        where = "lacks the metric" if name in metrics else "has"
        which = "" if name in metrics else ", which evaluate_batch does not return as a number"
        raise invalid(
            "pytorch.evaluation_reducer",
            f"the dictionary of evaluation_reducer {where} {name!r}{which}; give one reducer for all metrics, or a "
            "reducer for each of them",
        )


def _other_names(batch: int, metrics: Mapping[str, Any], earlier_metrics: Mapping[str, Any]) -> str:
    name = min(metrics.keys() ^ earlier_metrics.keys())
    has, before = ("has", "do not") if name in metrics else ("lacks", "do")
    return (
        f"evaluate_batch: batch {batch} of this rank {has} the metric {name!r}, the batches before it {before}; return "
        "the same metrics for every batch, or use context.wrap_reducer"
    )


def _check_reducer(reducer: Any) -> None:
    for metric_reducer in reducer.values() if isinstance(reducer, Mapping) else (reducer,):
        if not isinstance(metric_reducer, Reducer) and not callable(metric_reducer):
            raise invalid(
                "pytorch.evaluation_reducer",
                f"evaluation_reducer returned {metric_reducer!r}; use Reducer.AVG, SUM, MAX or MIN, a function of a "
                "list of values, or a dictionary of these by metric",
            )


def _first_value(reducer: MetricReduction, number: Any, records: int) -> Any:
    if not isinstance(reducer, Reducer):
        return [number]
    return number * records if reducer is Reducer.AVG else number


def _plain(value: Any) -> Any:
    return [float(number) for number in value] if isinstance(value, list) else float(value)


def _finish(reducer: MetricReduction, name: str, value: Any, records: int) -> float:
    if not isinstance(reducer, Reducer):
        return float(check_metrics({name: reducer(value)}, "evaluation_reducer's function")[name])
    return float(value / records if reducer is Reducer.AVG and records else value)


def _join(reducer: MetricReduction, left: tuple[Any, int], right: tuple[Any, int]) -> tuple[Any, int]:
    records = left[1] + right[1]
    if reducer is Reducer.MAX:
        return max(left[0], right[0]), records
    if reducer is Reducer.MIN:
        return min(left[0], right[0]), records
    return left[0] + right[0], records


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


Totals = Mapping[str, tuple[float, float]]


class Averaging:
    """Averages the metrics of one trial; all ranks make theirs at the same time. is_counted: whether this rank's
    metrics count; see gangline.pytorch.parallel.Replica."""

    def __init__(self, distributed: DistributedContext, is_counted: bool = True) -> None:
        self._distributed = distributed
        self._is_counted = is_counted
        self._names: tuple[str, ...] = ()

    def average_later(self, own: Sequence[Totals]) -> Callable[[], list[dict[str, float]]]:
        """Begins to average. own: of each report, by name, the sum and the count of this rank's batches. Returns a
        function that returns the means over all batches of all ranks, of each report; only that function waits for the
        others. All ranks call both in step, with as many reports, and the second one once."""
        if self._distributed.size == 1:
            return lambda: [average([totals]) for totals in own]
        if not self._names:
            return lambda: self._agree(own)
        if not self._is_counted:
            own = [dict.fromkeys(self._names, (0.0, 0))] * len(own)
        names = set(self._names)
        is_other = any(totals.keys() != names for totals in own)
        numbers = [number for totals in own for name in self._names for number in totals.get(name, (0.0, 0))]
        wait = self._distributed.total_later([float(is_other), *numbers])

        def finish() -> list[dict[str, float]]:
            num_others, *totals = wait()
            # A rank with other names sets this number, and all ranks agree again.
            return self._agree(own) if num_others else self._means(totals)

        return finish

    def _means(self, totals: Sequence[float]) -> list[dict[str, float]]:
        length = 2 * len(self._names)
        by_report = (totals[first : first + length] for first in range(0, len(totals), length))
        return [
            {name: numbers[2 * place] / numbers[2 * place + 1] for place, name in enumerate(self._names)}
            for numbers in by_report
        ]

    def _agree(self, own: Sequence[Totals]) -> list[dict[str, float]]:
        gathered = self._distributed.allgather(own if self._is_counted else None)
        counted = [reports for reports in gathered if reports is not None]
        newest = [reports[-1] for reports in counted]
        is_same = all(totals.keys() == newest[0].keys() for totals in newest)
        # The order of the first counted rank, in which all ranks pack their numbers.
        self._names = tuple(newest[0]) if is_same else ()
        return [average(of_ranks) for of_ranks in zip(*counted, strict=True)]
