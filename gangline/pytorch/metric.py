"""Metrics of one rank, and how those of all ranks become one number.

Owns the sums that grow without waiting for the device, and the reduction over ranks: training metrics weigh every
batch alike, validation metrics every record. Called by the training loop and the evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import torch

from gangline.errors import invalid


class Reducer(Enum):
    """How a validation metric's values of several batches become one. AVG weighs each batch by its records."""

    AVG = "avg"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


class MetricSums:
    """Sums of named numbers. Tensors are added on their device, so adding never waits for a GPU."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            number = value.detach() if isinstance(value, torch.Tensor) else value
            known = self._sums.get(name)
            self._sums[name] = number if known is None else known + number
            self._counts[name] = self._counts.get(name, 0) + 1

    def __bool__(self) -> bool:
        """Whether anything was added since the last `take`."""
        return bool(self._sums)

    def take(self) -> dict[str, tuple[float, int]]:
        """Name -> sum and count since the last call."""
        found = {name: (float(total), self._counts[name]) for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return found


def average(by_rank: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
    """The mean over all batches of all ranks."""
    sums: dict[str, tuple[float, int]] = {}
    for metrics in by_rank:
        for name, (total, count) in metrics.items():
            known = sums.get(name, (0.0, 0))
            sums[name] = (known[0] + total, known[1] + count)
    return {name: total / count for name, (total, count) in sums.items()}


def check_metrics(result: Any, method: str) -> dict[str, Any]:
    """What train_batch or evaluate_batch returned, as a mapping of single numbers."""
    if isinstance(result, torch.Tensor):
        result = {"loss": result}
    if not isinstance(result, Mapping):
        raise invalid(
            "pytorch.metrics",
            f"{method} returned {_describe(result)}; return a dictionary of metrics, or the loss as a tensor",
        )
    for name, value in result.items():
        if not _is_number(value):
            raise invalid("pytorch.metrics", f"{method}: the metric {name!r} is {_describe(value)}, not one number")
    return dict(result)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0


class ValidationMetrics:
    """Values of one rank's validation batches, each with its records; `combine` makes one of all ranks' totals."""

    def __init__(self, reducer: Reducer | Mapping[str, Reducer]) -> None:
        self._reducer = reducer
        self._totals: dict[str, tuple[Any, int]] = {}

    def add(self, metrics: Mapping[str, Any], records: int) -> None:
        for name, value in metrics.items():
            number = value.detach() if isinstance(value, torch.Tensor) else value
            reducer = self.reducer_of(name)
            entry = (number * records if reducer is Reducer.AVG else number, records)
            known = self._totals.get(name)
            self._totals[name] = entry if known is None else _join(reducer, known, entry)

    def totals(self) -> dict[str, tuple[float, int]]:
        return {name: (float(value), records) for name, (value, records) in self._totals.items()}

    def combine(self, by_rank: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
        """A rank without any batch adds nothing."""
        merged: dict[str, tuple[float, int]] = {}
        for totals in by_rank:
            for name, entry in totals.items():
                merged[name] = _join(self.reducer_of(name), merged[name], entry) if name in merged else entry
        return {
            name: value / records if self.reducer_of(name) is Reducer.AVG and records else value
            for name, (value, records) in merged.items()
        }

    def reducer_of(self, name: str) -> Reducer:
        if isinstance(self._reducer, Reducer):
            return self._reducer
        return self._reducer.get(name, Reducer.AVG)


def _join(reducer: Reducer, left: tuple[Any, int], right: tuple[Any, int]) -> tuple[Any, int]:
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
