"""Reads a TensorDataset a batch at a time.

torch's own reads it record by record and stacks what it read, some hundred small operations for each batch. What comes
out is the same. Called by the data loader, where the order of the data is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import data


class TensorBatches(data.TensorDataset):
    """What torch's loader asks for whole batches; they need no collation."""

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        chosen = torch.as_tensor(indices)
        return [tensor[chosen] for tensor in self.tensors]


def batched(dataset: data.Dataset[Any]) -> data.Dataset[Any] | None:
    """The same data as a dataset that gives whole batches; None where that is not sure to come to the same."""
    if type(dataset) is data.TensorDataset and all(_is_plain(tensor) for tensor in dataset.tensors):
        return TensorBatches(*dataset.tensors)
    # A subset of a class of its own may read its records in another way.
    if type(dataset) is data.Subset:
        whole = batched(dataset.dataset)
        return None if whole is None else data.Subset(whole, dataset.indices)
    return None


def keep(batch: Any) -> Any:
    """The collation of what is a batch already."""
    return batch


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
