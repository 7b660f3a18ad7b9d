"""Reads a TensorDataset a batch at a time.

torch's own reads it record by record and stacks the records, with some hundred small operations for each batch. The
result is the same. Called by the data loader, where the order of the data is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import data


class TensorBatches(data.TensorDataset):
    """Returns whole batches from __getitems__, which torch's loader calls; they need no collation."""

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        chosen = torch.as_tensor(indices)
        return [tensor[chosen] for tensor in self.tensors]


def batched(dataset: data.Dataset[Any]) -> data.Dataset[Any] | None:
    """Returns the same data as a dataset of whole batches; None where the result might differ."""
    if type(dataset) is data.TensorDataset and all(_is_plain(tensor) for tensor in dataset.tensors):
        return TensorBatches(*dataset.tensors)
    # A subclass of Subset may read its records in another way.
    if type(dataset) is data.Subset:
        whole = batched(dataset.dataset)
        return None if whole is None else data.Subset(whole, dataset.indices)
    return None


def keep(batch: Any) -> Any:
    """Returns the batch unchanged: the collation for whole batches."""
    return batch


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
