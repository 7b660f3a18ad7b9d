"""Broadcasts or averages tensors in messages of a few megabytes. One message for each tensor would be slow. A single
message for all of them would need as much memory as they do. Used by the strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

# Large enough that a message's fixed cost does not matter, small beside the memory of a model.
_MOST_BYTES_AT_ONCE = 32 << 20


@torch.no_grad()
def broadcast_tensors(
    tensors: Iterable[torch.Tensor],
    source: int = 0,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Fills these tensors on all ranks of the group with their values on the rank `source`. These ranks call it in step
    with tensors of the same shapes and types. around: returns a context for each message. group: None for all ranks."""
    for bucket in _buckets(tensors):
        is_source = dist.get_rank() == source
        flat = _joined(bucket) if is_source else bucket[0].new_empty(sum(tensor.numel() for tensor in bucket))
        # Sent as bytes, because backends support fewer types than torch.
        with around():
            dist.broadcast(flat.view(torch.uint8), src=source, group=group)
        if not is_source:
            _copy_back(flat, bucket)


def average_tensors(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replaces each tensor by its mean over the ranks of the group, None for all ranks. These ranks call it in step
    with tensors of the same shapes and types."""
    _reduce(tensors, dist.get_world_size(group), group)


def sum_tensors(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replaces each tensor by its sum, otherwise as average_tensors."""
    _reduce(tensors, 1, group)


@torch.no_grad()
def average_tensors_on(target: int, tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replaces each tensor on the rank `target` by its mean over the ranks of the group, otherwise as average_tensors.
    The tensors of the other ranks stay as they are."""
    for bucket in _buckets(tensors):
        # In place, as in _reduce.
        flat = _joined(bucket).div_(dist.get_world_size(group))
        dist.reduce(flat, dst=target, group=group)
        if dist.get_rank() == target:
            _copy_back(flat, bucket)


@torch.no_grad()
def _reduce(tensors: Iterable[torch.Tensor], divisor: int, group: dist.ProcessGroup | None) -> None:
    for bucket in _buckets(tensors):
        # In place, because another copy of the message would be memory that a plan must count.
        flat = _joined(bucket).div_(divisor)
        dist.all_reduce(flat, group=group)
        _copy_back(flat, bucket)


def _joined(bucket: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in bucket])


def _copy_back(flat: torch.Tensor, bucket: Sequence[torch.Tensor]) -> None:
    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
    for tensor, part in zip(bucket, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Groups neighbours of one type and device."""
    bucket: list[torch.Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        is_alike = not bucket or (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
        if bucket and (not is_alike or num_bytes >= _MOST_BYTES_AT_ONCE):
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(tensor)
        num_bytes += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket
