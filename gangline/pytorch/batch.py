"""What can be done with a batch of unknown shape: move it to a device, count its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def move(batch: Any, device: torch.device) -> Any:
    """The same nest of mappings, lists and tuples with its tensors on the device. What is no tensor stays."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True) if isinstance(batch, torch.Tensor) else batch.to(device)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device) for value in batch)
    return batch


def count_records(batch: Any) -> int:
    """The first dimension of the first tensor found; 0 when there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for value in values:
        count = count_records(value)
        if count:
            return count
    return 0
