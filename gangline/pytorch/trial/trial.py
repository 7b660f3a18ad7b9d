"""PyTorchTrial: the class that a user derives from to train on Gangline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch.utils import data

from gangline.pytorch.data.batch_data import count_records
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.metrics.metric import MetricReduction, Reducer
from gangline.pytorch.trial.callback import PyTorchCallback
from gangline.pytorch.trial.context import PyTorchTrialContext


class PyTorchTrial(ABC):
    """Base class of trials. Its __init__ makes models, optimizers and learning-rate schedulers and passes each to the
    context's wrap_ method.

    A trial defines exactly one of evaluate_batch and evaluate_full_dataset. All methods run on all ranks.
    """

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_training_data_loader(self) -> DataLoader:
        """Returns a loader with batches of context.get_per_slot_batch_size() records."""

    @abstractmethod
    def build_validation_data_loader(self) -> DataLoader: ...

    @abstractmethod
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Trains on one batch with context.backward and context.step_optimizer.

        batch is on the context's device. batch_idx counts all batches of the trial. Returns a dictionary of metrics,
        each one number, or the loss as a tensor.
        """

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Returns the metrics of one validation batch; batch_idx may be left out of the signature."""
        raise TypeError("this trial does not evaluate batch by batch")

    def evaluate_full_dataset(self, data_loader: data.DataLoader[Any]) -> dict[str, Any]:
        """Returns the metrics of the whole validation data. Runs on the chief alone, over all data; batches are on the
        CPU."""
        raise TypeError("this trial does not evaluate the full dataset at once")

    def evaluation_reducer(self) -> MetricReduction | dict[str, MetricReduction]:
        """Returns how values of evaluate_batch become one: for all metrics, or by name. A Reducer, or a function of the
        list of all batches' values."""
        return Reducer.AVG

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Returns callbacks by name; a callback's state is kept under its name in checkpoints."""
        return {}

    def get_batch_length(self, batch: Any) -> int:
        """Returns the number of a batch's records. Override it where that is not the first dimension of the first
        tensor."""
        return count_records(batch)
