"""The data loader of the trial API: torch's, with the order of the data in Gangline's hands.

Owns the seeded order of an epoch, which depends on seed and epoch alone (not on ranks or worker processes), its
division over the ranks, and the start in the middle of an epoch at the exact record. Reading records, workers and
collation stay with torch.utils.data.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sized
from typing import Any, Protocol, cast

import torch
from torch.utils import data

from gangline.errors import invalid
from gangline.pytorch.shard import Shard
from gangline.pytorch.tensor_batches import batched, keep


class BatchSource(Protocol):
    """The batches of any epoch, as lists of record indices."""

    def __len__(self) -> int: ...

    def batches(self, epoch: int, seed: int, positions: range, shift: int) -> Iterator[Any]:
        """shift: by how many records they begin later than their positions say."""
        ...

    def place_after(self, records: int, size: int) -> tuple[int, int]:
        """The step at which `size` ranks go on in an epoch of which so many records are done, and the shift."""
        ...


class _IndexSource:
    """Batches of record numbers, in order or shuffled."""

    def __init__(self, length: int, batch_size: int, shuffle: bool, drop_last: bool) -> None:
        self._length = length
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._count = self._batches_of(length)

    def __len__(self) -> int:
        return self._count

    def batches(self, epoch: int, seed: int, positions: range, shift: int) -> Iterator[list[int]]:
        # As an array: taking a few numbers out of a tensor costs more, and a list of all would take far more memory.
        order = torch.randperm(self._length, generator=_generator(seed, epoch)).numpy() if self._shuffle else None
        for position in positions:
            first = position * self._batch_size + shift
            last = min(first + self._batch_size, self._length)
            yield list(range(first, last)) if order is None else order[first:last].tolist()

    def place_after(self, records: int, size: int) -> tuple[int, int]:
        left = self._batches_of(max(0, self._length - records))
        return Shard(0, size).place_after(self._count, left, records, self._batch_size)

    def _batches_of(self, records: int) -> int:
        return records // self._batch_size if self._drop_last else -(-records // self._batch_size)


class _SamplerSource:
    """Batches of a user's sampler, which gets set_epoch(epoch) where it has such a method."""

    def __init__(self, sampler: Any, batch_size: int | None, drop_last: bool) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._batches = sampler if batch_size is None else data.BatchSampler(sampler, batch_size, drop_last)
        if not isinstance(sampler, Sized):
            raise invalid("pytorch.loader_length", f"{type(sampler).__name__} has no len(); give the sampler a __len__")

    def __len__(self) -> int:
        return len(cast("Sized", self._batches))

    def batches(self, epoch: int, seed: int, positions: range, shift: int) -> Iterator[Any]:
        assert shift == 0, "a sampler's batches are as they are"
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        return itertools.islice(iter(self._batches), positions.start, positions.stop, positions.step)

    def place_after(self, records: int, size: int) -> tuple[int, int]:
        assert self._batch_size is not None
        return Shard(0, size).place_at_batch(records, self._batch_size)


class _ShardSampler(data.Sampler[Any]):
    """This rank's batches, for torch's DataLoader. shift: of the first epoch."""

    def __init__(self, source: BatchSource, shard: Shard, first_step: int | None, seed: int, shift: int = 0) -> None:
        self._source = source
        self._shard = shard
        self._first_step = first_step
        self._seed = seed
        self._shift = shift

    def __iter__(self) -> Iterator[Any]:
        count = len(self._source)
        if self._first_step is None:
            return self._source.batches(0, self._seed, self._shard.validation_positions(count), 0)
        epochs = self._shard.training_positions(count, self._first_step)
        shifts = itertools.chain([self._shift], itertools.repeat(0))
        return itertools.chain.from_iterable(
            self._source.batches(epoch, self._seed, positions, shift)
            for (epoch, positions), shift in zip(epochs, shifts, strict=False)
        )

    def __len__(self) -> int:
        count = len(self._source)
        is_training = self._first_step is not None
        per_epoch = self._shard.steps_per_epoch(count) * self._shard.rounds
        return per_epoch if is_training else len(self._shard.validation_positions(count))


class DataLoader:
    """Takes the arguments of torch.utils.data.DataLoader. The trainer makes each rank's loader from it.

    batch_size counts records of one rank: context.get_per_slot_batch_size(). The dataset has a length; shuffling
    follows the trial's seed. What fewer than all ranks could train on at the end of an epoch is left out of it.
    """

    def __init__(  # noqa: PLR0917  the order of torch's arguments
        self,
        dataset: data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        self.dataset = dataset
        self.batch_size = None if batch_sampler is not None else batch_size
        _check_dataset(dataset)
        _check_choice(self.batch_size, shuffle, sampler, batch_sampler)
        self._source = self._make_source(shuffle, sampler, batch_sampler, drop_last)
        self._options = {"num_workers": num_workers, "collate_fn": collate_fn, "pin_memory": pin_memory, **options}
        # A sampler of the user's may give other things than numbers.
        self._may_be_batched = sampler is None and batch_sampler is None and collate_fn is None

    def __len__(self) -> int:
        """Batches of one pass over all data, before it is divided over the ranks."""
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        """One pass over all data, in the order of epoch 0 with seed 0."""
        return iter(self.get_data_loader())

    def get_data_loader(
        self,
        repeat: bool = False,
        skip: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        *,
        shift: int = 0,
        rounds: int = 1,
    ) -> data.DataLoader[Any]:
        """torch's loader for one rank of num_replicas.

        repeat: epoch after epoch without an end, for training, beginning skip steps after the start and, in that
        epoch, shift records later. rounds: batches of this rank in one step; 1 in a gang of full size.
        Without repeat: one pass that leaves out nothing.
        """
        sampler = _ShardSampler(self._source, Shard(rank, num_replicas, rounds), skip if repeat else None, seed, shift)
        # Workers draw their seeds from it: those of a rank that goes on shall not repeat what they drew at the start.
        options: dict[str, Any] = {"generator": _generator(seed, rank + num_replicas * skip), **self._options}
        whole = batched(self.dataset) if self._may_be_batched else None
        if whole is not None:
            return data.DataLoader(whole, batch_sampler=sampler, **{**options, "collate_fn": keep})
        return data.DataLoader(self.dataset, batch_sampler=sampler, **options)

    def place_after(self, records: int, num_replicas: int) -> tuple[int, int]:
        """Where an epoch goes on of which so many records are done: batches of each rank, and shift, for `skip` and
        `shift` above. Only an order of its own has a shift; a sampler's epoch goes on at the begin of a batch. Needs
        a batch_size."""
        return self._source.place_after(records, num_replicas)

    def steps_per_epoch(self, num_replicas: int, rounds: int = 1) -> int:
        """Steps of each rank in one epoch, of `rounds` batches each. Raises GanglineError when there is none."""
        steps = Shard(0, num_replicas, rounds).steps_per_epoch(len(self))
        if steps < 1:
            records = len(cast("Sized", self.dataset))
            raise invalid(
                "pytorch.dataset_too_short",
                f"the training data has {records} records in {len(self)} batches, fewer than the "
                f"{num_replicas * rounds} slots; "
                "use a smaller batch, fewer slots or more data",
            )
        return steps

    def _make_source(self, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool) -> BatchSource:
        if batch_sampler is not None:
            return _SamplerSource(batch_sampler, None, drop_last)
        assert self.batch_size is not None
        if sampler is not None:
            return _SamplerSource(sampler, self.batch_size, drop_last)
        return _IndexSource(len(cast("Sized", self.dataset)), self.batch_size, shuffle, drop_last)


def _generator(seed: int, number: int) -> torch.Generator:
    """A stream of its own for every pair: neighbouring seeds must not share their epochs' orders."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, data.IterableDataset):
        raise invalid(
            "pytorch.iterable_dataset",
            "DataLoader got an IterableDataset, which can neither be sharded nor resumed; give it a dataset "
            "with __len__ and __getitem__",
        )
    if not isinstance(dataset, Sized):
        raise invalid("pytorch.loader_length", f"{type(dataset).__name__} has no len(); give the dataset a __len__")


def _check_choice(batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any) -> None:
    if batch_sampler is not None and (shuffle or sampler is not None):
        raise invalid("pytorch.loader_arguments", "DataLoader: batch_sampler excludes shuffle and sampler")
    if sampler is not None and shuffle:
        raise invalid("pytorch.loader_arguments", "DataLoader: sampler excludes shuffle")
    if batch_sampler is None and (batch_size is None or batch_size < 1):
        raise invalid("pytorch.loader_arguments", f"DataLoader: batch_size is {batch_size}; it must be at least 1")
