"""Metric reducers: metrics that a trial computes from the data of all ranks, where a mean over batches would be wrong
(a confusion matrix, an AUC).

Owns the interface, the wrapped reducers, and the reduction over ranks. The loop and the evaluation decide when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gangline.core import DistributedContext
from gangline.errors import invalid
from gangline.pytorch.data import batch_data as batches
from gangline.pytorch.metrics.kept_data import KeptData
from gangline.pytorch.metrics.metric import check_metrics

_CPU = torch.device("cpu")


class MetricReducer(ABC):
    """Base class of reducers. Subclass it and pass it to context.wrap_reducer. The trial passes data to it in a method
    of the subclass."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets all data. Called before the first batch of a training report or of a validation."""

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Returns the part of this rank for the chief, as plain data (gangline.core.encoding). Called on every rank."""

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Returns one metric, or a dictionary of them where the reducer was wrapped without a name. Called on the
        chief. per_slot_metrics: results of per_slot_reduce, by rank."""


class FunctionReducer(MetricReducer):
    """Calls a function with the list of all values that any rank passed to `update`, ordered by rank."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def reset(self) -> None:
        self._values = []

    def update(self, value: Any) -> None:
        self._values.append(value)

    def per_slot_reduce(self) -> list[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        return self._function([value for values in per_slot_metrics for value in values])


@dataclass(frozen=True, slots=True)
class _Wrapped:
    reducer: MetricReducer
    name: str | None
    for_training: bool
    for_validation: bool


class Reducers:
    """Keeps the reducers of one trial. All ranks wrap the same ones in the same order, and reduce them in step."""

    def __init__(self, distributed: DistributedContext, is_counted: bool = True) -> None:
        """is_counted: whether this rank's values count; see gangline.pytorch.parallel.Replica."""
        self._distributed = distributed
        self._is_counted = is_counted
        self._wrapped: list[_Wrapped] = []

    def wrap(
        self, reducer: MetricReducer | Callable[[list[Any]], Any], name: str | None, training: bool, validation: bool
    ) -> MetricReducer:
        if name is not None and any(wrapped.name == name for wrapped in self._wrapped):
            raise invalid("pytorch.reducer", f"wrap_reducer: there is a reducer named {name!r} already")
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise invalid(
                    "pytorch.reducer",
                    f"wrap_reducer got a {type(reducer).__name__}; give it a MetricReducer or a function of a list",
                )
            reducer = FunctionReducer(reducer)
        reducer.reset()
        self._wrapped.append(_Wrapped(reducer, name, training, validation))
        return reducer

    def has_any(self, is_training: bool) -> bool:
        return bool(self._of(is_training))

    def reset(self, is_training: bool) -> None:
        for wrapped in self._of(is_training):
            wrapped.reducer.reset()

    def reduce(self, is_training: bool) -> dict[str, float]:
        """Returns the metrics over all ranks, on every rank, and resets the reducers."""
        chosen = self._of(is_training)
        if not chosen:
            return {}
        own = [batches.move(wrapped.reducer.per_slot_reduce(), _CPU) for wrapped in chosen]
        by_rank = self._distributed.gather(own if self._is_counted else None)
        metrics: dict[str, float] = {}
        if by_rank is not None:
            counted = [values for values in by_rank if values is not None]
            for position, wrapped in enumerate(chosen):
                result = wrapped.reducer.cross_slot_reduce([values[position] for values in counted])
                metrics.update(_named(result, wrapped))
        self.reset(is_training)
        shared_metrics: dict[str, float] = self._distributed.broadcast(metrics)
        return shared_metrics

    @contextmanager
    def unchanged(self, models: Iterable[nn.Module]) -> Iterator[None]:
        """Restores the reducers at the end of the block; see KeptData. models: the trial's wrapped ones."""
        models = list(models)
        kept = [KeptData(wrapped.reducer, models) for wrapped in self._wrapped]
        yield
        for data in kept:
            data.restore()

    def _of(self, is_training: bool) -> list[_Wrapped]:
        return [
            wrapped for wrapped in self._wrapped if (wrapped.for_training if is_training else wrapped.for_validation)
        ]


def _named(result: Any, wrapped: _Wrapped) -> dict[str, float]:
    reducer_name = type(wrapped.reducer).__name__
    if wrapped.name is not None:
        result = {wrapped.name: result}
    elif not isinstance(result, Mapping):
        raise invalid(
            "pytorch.reducer",
            f"{reducer_name} was wrapped without a name, so it must return a dictionary of metrics, but it returned a "
            f"{type(result).__name__}; pass name= to wrap_reducer",
        )
    return {name: float(value) for name, value in check_metrics(result, f"{reducer_name}.cross_slot_reduce").items()}


def join(metrics: dict[str, float], more: Mapping[str, float], method: str) -> dict[str, float]:
    """Merges two sets of metrics. Raises GanglineError where a reducer and a batch name the same metric."""
    both = metrics.keys() & more.keys()
    if both:
        raise invalid(
            "pytorch.reducer", f"{method} and a metric reducer both report {min(both)!r}; rename one of the two"
        )
    return {**metrics, **more}
