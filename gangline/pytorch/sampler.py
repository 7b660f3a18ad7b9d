"""Samplers to build a row of batches by hand: shuffle, repeat, divide, skip, in this order.

For trials that return a torch DataLoader; gangline.pytorch.DataLoader does all of it by itself. Each class takes a
sampler, or a batch sampler where its name says so, and passes on its entries. Determined calls this module `samplers`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import numpy as np
from torch.utils.data import Sampler

from gangline.errors import invalid


class RepeatSampler(Sampler[Any]):
    """Starts again at the end, for ever. Its length is that of one pass."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(cast("Sized", self._sampler))

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


class DistributedSampler(Sampler[Any]):
    """Yields every num_workers-th entry, beginning with the rank-th."""

    def __init__(self, sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        if not 0 <= rank < num_workers:
            raise invalid("pytorch.sampler", f"rank {rank} is none of {num_workers} workers")
        self._sampler = sampler
        self._num_workers = num_workers
        self._rank = rank

    def __len__(self) -> int:
        return len(range(self._rank, len(cast("Sized", self._sampler)), self._num_workers))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._rank, None, self._num_workers)


class SkipSampler(Sampler[Any]):
    """Leaves out the first entries, once."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        self._sampler = sampler
        self._skip = skip

    def __len__(self) -> int:
        return len(cast("Sized", self._sampler))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._skip, None)


class ReproducibleShuffleSampler(Sampler[Any]):
    """Shuffles by the seed, differently at each pass, in the same orders as Determined's."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        self._sampler = sampler
        self._random = np.random.RandomState(seed)

    def __len__(self) -> int:
        return len(cast("Sized", self._sampler))

    def __iter__(self) -> Iterator[Any]:
        entries = list(self._sampler)
        return iter([entries[position] for position in self._random.permutation(len(entries))])


class RepeatBatchSampler(RepeatSampler):
    """Repeats the batches of a batch sampler."""


class DistributedBatchSampler(DistributedSampler):
    """Divides the batches of a batch sampler."""


class SkipBatchSampler(SkipSampler):
    """Skips the first batches of a batch sampler."""


class ReproducibleShuffleBatchSampler(ReproducibleShuffleSampler):
    """Shuffles the batches of a batch sampler."""


def adapt_batch_sampler(
    batch_sampler: Iterable[Any], repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Any:
    """Returns a batch sampler's batches for one rank: repeated for ever, if wanted, divided over the ranks, and then
    without the first `skip` of this rank."""
    if repeat:
        batch_sampler = RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = DistributedBatchSampler(batch_sampler, num_replicas, rank)
    return SkipBatchSampler(batch_sampler, skip) if skip > 0 else batch_sampler


__all__ = [
    "DistributedBatchSampler",
    "DistributedSampler",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
    "adapt_batch_sampler",
]
