"""Handles batches of unknown shape: moves them to a device, counts their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
"""What batches mostly are; nests of these work as well."""


def move(batch: Any, device: torch.device) -> Any:
    """Returns the same nest of mappings, lists and tuples with its tensors on the device. Arrays of numbers become
    tensors; other values stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    # Checked early: most batches are lists, and a check against an abstract class is slow.
    is_list = type(batch) is list
    if not is_list and hasattr(batch, "to"):
        return batch.to(device)
    if is_list or isinstance(batch, list | tuple):
        # Most values are tensors, which need no further call where they are on the device already.
        values = [
            value if type(value) is torch.Tensor and value.device == device else move(value, device) for value in batch
        ]
        make = type(batch)
        return values if is_list else make(*values) if hasattr(batch, "_fields") else make(values)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biufc":
        return torch.as_tensor(batch).to(device)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    return batch


def to_device(data: Any, device: torch.device | str, warned_types: Any = None) -> Any:
    """Returns the same data with its tensors and arrays on the device. warned_types: accepted, no effect."""
    return move(data, torch.device(device))


def data_length(data: Any) -> int:
    """Returns the number of records in a batch: the first dimension of its first tensor or array."""
    return count_records(data)


def count_records(batch: Any) -> int:
    """Returns the first dimension of the first tensor or array found; 0 when there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else 1
    if isinstance(batch, np.ndarray):
        return int(batch.shape[0]) if batch.ndim else 1
    values = batch if isinstance(batch, list | tuple) else batch.values() if isinstance(batch, Mapping) else ()
    for value in values:
        count = count_records(value)
        if count:
            return count
    return 0
