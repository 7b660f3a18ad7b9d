"""Wraps a torch DataLoader for trials that divide, shuffle and skip their data by themselves.

Owns its repetition and the length of an epoch. Used after
context.experimental.disable_dataset_reproducibility_checks().
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils import data

from gangline.errors import invalid


class ForeignLoader:
    """Wraps a loader that each rank makes for itself. An epoch is one pass through it; where its sampler repeats
    without an end, its len()."""

    def __init__(self, loader: data.DataLoader[Any]) -> None:
        self.loader = loader
        self.batch_size = loader.batch_size

    def steps_per_epoch(self, num_replicas: int, rounds: int = 1) -> int:
        """Returns the steps of `rounds` batches each; the loader has this rank's part already. Raises GanglineError
        where it has no length, or too few batches."""
        try:
            steps = len(self.loader) // rounds
        except TypeError:
            raise invalid(
                "pytorch.loader_length",
                f"the training loader over a {type(self.loader.dataset).__name__} has no len(), so nobody knows where "
                "an epoch ends; give the dataset a __len__, or return a gangline.pytorch.DataLoader",
            ) from None
        if steps < 1:
            raise invalid("pytorch.dataset_too_short", "the training loader has no batch for this rank; use more data")
        return steps

    def describe_shortage(self, num_replicas: int) -> None:
        """Describes nothing: the trial divides its data itself."""

    def describe_last_step(self, num_replicas: int) -> None:
        """Returns None, because the records of a foreign loader are unknown."""

    def place_after(self, entries: int, num_replicas: int) -> tuple[int, int]:
        """Returns the beginning of the batch with the next record. entries: records, or batches without a
        batch_size."""
        return entries // ((self.batch_size or 1) * num_replicas), 0

    def get_data_loader(self, repeat: bool = False, **_place: Any) -> Any:
        """Returns an iterable of this rank's batches; endless with repeat."""
        return _repeat(self.loader) if repeat else self.loader

    def training_batches(self, **_place: Any) -> Iterator[tuple[Any, float]]:
        """Returns batches with weights, like DataLoader. The other ranks' numbers of records are unknown, so all
        batches have weight 1."""
        return ((batch, 1.0) for batch in _repeat(self.loader))


def _repeat(loader: data.DataLoader[Any]) -> Iterator[Any]:
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise invalid("pytorch.dataset_too_short", "the training loader ended without a batch; use more data")
