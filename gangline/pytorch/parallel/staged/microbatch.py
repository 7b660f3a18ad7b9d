"""Cuts a batch into microbatches, and joins what train_batch returns for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gangline.errors import invalid

_NUMBERS = (int, float, np.number, torch.Tensor)


def cut_batch(batch: Any, count: int, records: int) -> list[Any]:
    """Returns `count` equal parts of a batch in the order of its records. Tensors, arrays and lists with one entry for
    each record are cut; other values go into every part. count: divides the number of records. Raises GanglineError
    `parallelism.batch` for a tensor or array that has its records in another dimension than the first one."""
    if count == 1:
        return [batch]
    _check_dimensions(batch, records)
    size = records // count
    return [_part_of(batch, records, slice(place * size, (place + 1) * size)) for place in range(count)]


def _part_of(value: Any, records: int, chosen: slice) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value[chosen] if value.ndim and value.shape[0] == records else value
    if isinstance(value, Mapping):
        return {key: _part_of(entry, records, chosen) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == records and not any(isinstance(entry, torch.Tensor | np.ndarray) for entry in value):
            return value[chosen]
        parts = [_part_of(entry, records, chosen) for entry in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _check_dimensions(value: Any, records: int) -> None:
    if isinstance(value, torch.Tensor | np.ndarray):
        shape = tuple(value.shape)
        if records in shape[1:] and shape[0] != records:
            raise invalid(
                "parallelism.batch",
                f"pipeline cuts a batch along the first dimension, but the batch of {records} records has a tensor of "
                f"shape {list(shape)}, with the records in dimension {shape.index(records)}; put the records first and "
                "turn the tensor in the model, or use ddp",
            )
    elif isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            _check_dimensions(entry, records)


def join_results(results: Sequence[Any]) -> Any:
    """Returns one result of train_batch for those of all microbatches: the mean of each number, of other values the
    last."""
    last = results[-1]
    if len(results) == 1:
        return last
    if isinstance(last, Mapping):
        if any(not isinstance(result, Mapping) or result.keys() != last.keys() for result in results):
            raise invalid(
                "pytorch.metrics",
                "train_batch returned other metrics for one microbatch than for another one; return the same names "
                "each time",
            )
        return {name: join_results([result[name] for result in results]) for name in last}
    if not all(isinstance(result, _NUMBERS) and not isinstance(result, bool) for result in results):
        return last
    if isinstance(last, torch.Tensor):
        return torch.stack([torch.as_tensor(result).detach().to(last.device).double() for result in results]).mean(0)
    return sum(results) / len(results)
