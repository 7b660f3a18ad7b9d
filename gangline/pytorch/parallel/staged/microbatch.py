"""Chooses the number of microbatches, cuts a batch into them, and joins what train_batch returns for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gangline.config.pipeline import batch_conflict, choose_microbatches, fewer_microbatches
from gangline.errors import invalid
from gangline.pytorch.parallel.staged.report import log_microbatches

_NUMBERS = (int, float, np.number, torch.Tensor)
_ARRAYS = (torch.Tensor, np.ndarray)
_CONTAINERS = (*_ARRAYS, Mapping, list, tuple)
# Values that say something about a batch, and are none of its records.
_PLAIN = (int, float, complex, str, bytes, np.number, type(None))
# Lengths in a message.
_MOST_LENGTHS = 4


class MicrobatchCount:
    """Chooses the number for each batch of a replica. fixed: what the configuration says; None lets it choose."""

    def __init__(self, fixed: int | None, stages: int, schedule: str) -> None:
        self._fixed = fixed
        self._stages = stages
        self._schedule = schedule
        # Records of the largest batch so far.
        self._usual_records = 0

    def of(self, records: int) -> int:
        """Returns the number for a batch of so many records. The last batch of an epoch may be smaller, and gets fewer.
        Raises GanglineError `parallelism.microbatches`."""
        wanted = self._fixed or choose_microbatches(records, self._stages, self._schedule)
        if records > self._usual_records:
            text = batch_conflict(records, self._fixed, self._stages, self._schedule)
            if text is not None:
                raise invalid("parallelism.microbatches", f"parallelism.microbatches: {text}")
            self._usual_records = records
            log_microbatches(records, wanted, self._stages, self._schedule)
        return fewer_microbatches(records, wanted, self._stages, self._schedule)


def cut_batch(batch: Any, count: int, records: int) -> list[Any]:
    """Returns `count` equal parts of a batch in the order of its records. Tensors, arrays and lists with one entry for
    each record are cut; other values go into every part. count: divides the number of records. Raises GanglineError
    `parallelism.batch` for a tensor or array that may have its records in another dimension than the first one, and
    for a batch that has nothing to cut."""
    if count == 1:
        return [batch]
    _check_dimensions(batch, records)
    _check_length(batch, records)
    size = records // count
    return [_part_of(batch, records, slice(place * size, (place + 1) * size)) for place in range(count)]


def _part_of(value: Any, records: int, chosen: slice) -> Any:
    if isinstance(value, _ARRAYS):
        return value[chosen] if value.ndim and value.shape[0] == records else value
    if isinstance(value, Mapping):
        return {key: _part_of(entry, records, chosen) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == records and _is_list_of_values(value):
            return value[chosen]
        parts = [_part_of(entry, records, chosen) for entry in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _check_dimensions(value: Any, records: int) -> None:
    if isinstance(value, _ARRAYS):
        shape = tuple(value.shape)
        # One entry in the first dimension is for all records, as in a mask of shape [1, tokens].
        if records in shape[1:] and shape[0] not in (1, records):
            raise invalid(
                "parallelism.batch",
                f"pipeline cuts a batch along the first dimension, but the batch of {records} records has a tensor of "
                f"shape {list(shape)}, which may have its records in dimension {shape.index(records)}; put the records "
                "first and turn the tensor in the model, or use ddp",
            )
        return
    for entry in _entries_of(value):
        _check_dimensions(entry, records)


def _check_length(batch: Any, records: int) -> None:
    """Raises GanglineError for a batch that would go into all parts as a whole. A batch of numbers and texts alone may:
    train_batch makes its records itself, all of them in each call, and the mean of equal losses is the right one."""
    lengths, other = _lengths_of(batch), _first_other(batch)
    if records in lengths or (not lengths and other is None):
        return
    if not lengths:
        raise invalid(
            "parallelism.batch",
            f"pipeline cannot cut a batch of {records} records of type {type(other).__name__}; let the data loader "
            "return a tensor, or a dictionary, list or tuple of tensors, or use ddp",
        )
    found = ", ".join(map(str, sorted(set(lengths))[:_MOST_LENGTHS]))
    raise invalid(
        "parallelism.batch",
        f"get_batch_length returns {records}, but no tensor or list of the batch has {records} entries in its first "
        f"dimension, where pipeline cuts it: they have {found}; return the number of records, or use ddp",
    )


def _lengths_of(value: Any) -> list[int]:
    """Returns the numbers of entries of all tensors, arrays and lists that `_part_of` would cut at that number of
    records."""
    if isinstance(value, _ARRAYS):
        return [int(value.shape[0])] if value.ndim else []
    own = [len(value)] if _is_list_of_values(value) else []
    return own + [length for entry in _entries_of(value) for length in _lengths_of(entry)]


def _first_other(value: Any) -> Any:
    """Returns the first object in a batch whose content is unknown; None for a batch without any."""
    if not isinstance(value, (*_CONTAINERS, *_PLAIN)):
        return value
    return next((other for entry in _entries_of(value) if (other := _first_other(entry)) is not None), None)


def _is_list_of_values(value: Any) -> bool:
    """Returns whether a value is a list or tuple, not empty, that may have one entry for each record."""
    return isinstance(value, list | tuple) and bool(value) and not any(isinstance(entry, _ARRAYS) for entry in value)


def _entries_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


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
