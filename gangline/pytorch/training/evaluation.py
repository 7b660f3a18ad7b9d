"""Validates the model: batch by batch on all ranks, or over the whole data on the chief.

Owns the pass over the validation data and the reduction of its metrics. The loop decides when to validate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gangline.core.beat import EXCHANGE, VALIDATION
from gangline.errors import invalid
from gangline.pytorch.data.foreign_loader import ForeignLoader
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.data.torch_error import explain
from gangline.pytorch.metrics import reducer
from gangline.pytorch.metrics.metric import ValidationMetrics, as_mapping, keep_numbers
from gangline.pytorch.trial.callback import PyTorchCallback, call_all
from gangline.pytorch.trial.calling import evaluate_call
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.trial import PyTorchTrial


class Evaluation:
    """Runs the validations of one trial. max_batches: of each rank; None for all of the data."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Mapping[str, PyTorchCallback],
        loader: DataLoader | ForeignLoader,
        max_batches: int | None = None,
    ) -> None:
        self._trial = trial
        self._context = context
        self._beat = context.core.beat
        self._callbacks = list(callbacks.values())
        self._loader = loader
        self._max_batches = max_batches
        if isinstance(loader, DataLoader) and len(loader) == 0:
            raise _no_data()
        self._has_run = False
        self._is_by_batch = _is_by_batch(trial)
        if self._is_by_batch:
            self._call_evaluate = evaluate_call(trial)

    def run(self) -> dict[str, float]:
        """Returns the metrics over all ranks' data, the same on every rank. All ranks call it in step."""
        self._beat.enter(VALIDATION)
        self._call(lambda callback: callback.on_validation_start())
        for model in self._context.models:
            model.eval()
        self._context.strategy.share_buffers(self._context.models)
        self._context.reducers.reset(is_training=False)
        try:
            with torch.no_grad():
                metrics = self._by_batch() if self._is_by_batch else self._full()
        except RuntimeError as error:
            meaning = explain(error, self._context.strategy.name)
            if meaning is None:
                raise
            raise meaning from error
        method = "evaluate_batch" if self._is_by_batch else "evaluate_full_dataset"
        metrics = reducer.join(metrics, self._context.reducers.reduce(is_training=False), method)
        for model in self._context.models:
            model.train()
        self._call(lambda callback: callback.on_validation_end(metrics))
        return metrics

    def _call(self, hook: Callable[[PyTorchCallback], None]) -> None:
        call_all(self._callbacks, self._beat, hook)

    def _by_batch(self) -> dict[str, float]:
        self._call(lambda callback: callback.on_validation_epoch_start())
        distributed = self._context.distributed
        replica = self._context.replica
        loader = self._loader.get_data_loader(num_replicas=replica.count, rank=replica.index)
        validation_metrics = ValidationMetrics(self._trial.evaluation_reducer())
        with self._context.strategy.validating():
            self._beat.leave_step()
            if not self._has_run:
                # The first batch may compile the model again, which takes longer than the hang watchdog allows.
                self._beat.rest(VALIDATION)
                self._has_run = True
            if self._context.strategy.needs_all_ranks:
                self._make_up_for(loader)
            outputs = self._evaluate_all(loader, validation_metrics)
        self._beat.resume()
        self._call(lambda callback: callback.on_validation_epoch_end(outputs))
        # Ranks may have different numbers of batches, so this one may wait here for the others.
        self._beat.enter(EXCHANGE)
        by_rank = distributed.allgather((len(outputs), validation_metrics.totals(), replica.is_counted))
        if not any(count for count, _, _ in by_rank):
            raise _no_data()
        return validation_metrics.combine(totals for _, totals, is_counted in by_rank if is_counted)

    def _evaluate_all(self, loader: Any, validation_metrics: ValidationMetrics) -> list[dict[str, Any]]:
        """Returns the results of evaluate_batch and adds them to `validation_metrics`."""
        outputs: list[dict[str, Any]] = []
        for index, batch in enumerate(loader):
            if index == self._max_batches:
                break
            outputs.append(self._evaluate(batch, index))
            validation_metrics.add(outputs[-1], self._trial.get_batch_length(batch))
            self._beat.tick()
        return outputs

    def _make_up_for(self, loader: Any) -> None:
        """Evaluates extra batches in advance, as many as another rank has more than this one, because all ranks must
        run the model equally often. Discards their results."""
        own = len(loader) if self._max_batches is None else min(len(loader), self._max_batches)
        (most,) = self._context.distributed.maximum([own])
        for _ in range(most - own):
            # A rank without data takes a batch of the whole data.
            self._evaluate(next(iter(loader if own else self._loader.get_data_loader())), 0)
            self._beat.tick()
        self._context.reducers.reset(is_training=False)

    def _evaluate(self, batch: Any, index: int) -> dict[str, Any]:
        moved = self._context.to_device(batch) if self._context.experimental.moves_batches else batch
        with self._context.autocast():
            return as_mapping(self._call_evaluate(moved, index), "evaluate_batch")

    def _full(self) -> dict[str, float]:
        with self._context.strategy.gather():
            own = self._full_on_chief()
            self._beat.enter(EXCHANGE)
            metrics: dict[str, float] = self._context.distributed.broadcast(own)
        return metrics

    def _full_on_chief(self) -> dict[str, float]:
        if not self._context.distributed.is_chief:
            return {}
        self._beat.rest(VALIDATION)
        with self._context.autocast():
            result = self._trial.evaluate_full_dataset(self._loader.get_data_loader())
        self._beat.resume()
        return {name: float(value) for name, value in keep_numbers(result, "evaluate_full_dataset").items()}


def _no_data() -> Exception:
    return invalid(
        "pytorch.no_validation_data",
        "the loader of build_validation_data_loader has no batch on any rank, so a validation would say nothing; "
        "give it records, or leave out drop_last where they are fewer than one batch",
    )


def _is_by_batch(trial: PyTorchTrial) -> bool:
    trial_class = type(trial)
    has_batch = trial_class.evaluate_batch is not PyTorchTrial.evaluate_batch
    has_full = trial_class.evaluate_full_dataset is not PyTorchTrial.evaluate_full_dataset
    if has_batch == has_full:
        defined = "both" if has_batch else "neither"
        raise invalid(
            "pytorch.evaluation",
            f"{trial_class.__name__} defines {defined} of evaluate_batch and evaluate_full_dataset; "
            "define exactly one of them",
        )
    return has_batch
