"""DataLoader of the trial API: torch's loader, with an order of the data that Gangline determines.

Owns the seeded order of an epoch, which depends on seed and epoch alone (not on ranks or worker processes). Also owns
the division of this order over the ranks, and the start in the middle of an epoch at the exact record. A user's sampler
draws under the same rule. Reading records, workers and collation stay with torch.utils.data.

A TensorDataset is read a batch at a time: torch reads it record by record, with some hundred small operations for each
batch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, cast

import torch
from torch.autograd.profiler import record_function
from torch.utils import data

from gangline.errors import invalid
from gangline.pytorch.data import seed as seeds
from gangline.pytorch.data.shard import Part, Row, Shard, shards_of, weight_of

# The name of a read in torch's traces, as its own iterator marks it.
_TRACE_MARK = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


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
        batched_data = batched(dataset.dataset)
        return None if batched_data is None else data.Subset(batched_data, dataset.indices)
    return None


def keep(batch: Any) -> Any:
    """Returns the batch unchanged: the collation for whole batches."""
    return batch


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized


Read = Callable[[int, int], list[Any]]
"""Gives the entries of an epoch from one position up to another one; positions never fall from call to call."""


class Order(Protocol):
    """Order of the entries of any epoch, in which they are trained on."""

    def __len__(self) -> int: ...

    def open(self, epoch: int, seed: int) -> Read: ...


class _RecordOrder:
    """Order of record numbers, unchanged or shuffled."""

    def __init__(self, length: int, shuffle: bool) -> None:
        self._length = length
        self._shuffle = shuffle

    def __len__(self) -> int:
        return self._length

    def open(self, epoch: int, seed: int) -> Read:
        if not self._shuffle:
            return lambda first, last: list(range(first, last))
        # An array: taking a few numbers out of a tensor costs more, and a list of all would take far more memory.
        order = torch.randperm(self._length, generator=_generator(seed, epoch)).numpy()
        return lambda first, last: order[first:last].tolist()


class _SampledOrder:
    """Order of a user's sampler or batch sampler. The sampler draws from random streams of (seed, epoch), so all ranks
    see one order, and it draws no further ahead than training needs."""

    def __init__(self, sampler: Any) -> None:
        if not isinstance(sampler, Sized):
            raise invalid("pytorch.loader_length", f"{type(sampler).__name__} has no len(); give the sampler a __len__")
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def open(self, epoch: int, seed: int) -> Read:
        number = seeds.number_of(seed, epoch)
        for part in _parts_of(self._sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            seeds.seed_generators(getattr(part, "__dict__", {}), number)
        streams = seeds.SharedStreams(number)
        with streams:
            entries = iter(cast("Iterable[Any]", self._sampler))
        num_drawn = 0

        def read(first: int, last: int) -> list[Any]:
            nonlocal num_drawn
            with streams:
                drawn = list(itertools.islice(entries, first - num_drawn, last - num_drawn))
            num_drawn = last
            if len(drawn) < last - first:
                name = type(self._sampler).__name__
                raise invalid(
                    "pytorch.loader_length",
                    f"{name} ended after fewer than {last} entries, but its len() is {len(self)}; correct its __len__",
                )
            return drawn

        return read


class _ShardSampler(data.Sampler[Any]):
    """Yields this rank's batches for torch's DataLoader. first_step: None for one pass that leaves out nothing. shift:
    of the first epoch. rounds: batches of this rank in one step of training. has_batches: whether the order's entries
    are batches.

    weights: receives the weight of each batch that torch's loader asks for. torch asks ahead, and returns batches in
    the order in which it asked. None where the weights are not wanted.
    """

    def __init__(  # noqa: PLR0917  all of them by name
        self,
        order: Order,
        row: Callable[[], Row],
        shard: Shard,
        rounds: int,
        first_step: int | None,
        seed: int,
        shift: int,
        has_batches: bool,
    ) -> None:
        self.weights: deque[float] | None = None
        self._order = order
        self._row = row
        self._shard = shard
        self._in_rounds = shards_of(shard.rank, shard.size, rounds)
        self._first_step = first_step
        self._seed = seed
        self._shift = shift
        self._has_batches = has_batches

    def __iter__(self) -> Iterator[Any]:
        return self._validate() if self._first_step is None else self._train(self._first_step)

    def __len__(self) -> int:
        if self._first_step is not None:
            return self._in_rounds[0].steps_per_epoch(self._row()) * len(self._in_rounds)
        return len(self._shard.validation_positions(self._row().num_batches))

    def _validate(self) -> Iterator[Any]:
        row, read = self._row(), self._order.open(0, self._seed)
        for position in self._shard.validation_positions(row.num_batches):
            entries = row.batch(position)
            drawn = read(entries.start, entries.stop)
            yield drawn[0] if self._has_batches else drawn

    def _train(self, first_step: int) -> Iterator[Any]:
        shift = self._shift
        first = self._in_rounds[0]
        for epoch, steps in first.training_steps(first.steps_per_epoch(self._row()), first_step):
            row, read = self._row(), self._order.open(epoch, self._seed)
            # A few additions for each batch: nearly all steps are whole, and a short step would feel more.
            whole = range(steps.start, steps.start) if self._has_batches else first.whole_steps(row, steps, shift)
            length, full_step = row.batch_size, row.batch_size * first.size
            begins = [shard.begin(row, whole.start, shift) for shard in self._in_rounds]
            for moved in range(0, len(whole) * full_step, full_step):
                for begin in begins:
                    if self.weights is not None:
                        self.weights.append(1.0)
                    yield read(begin + moved, begin + moved + length)
            for step in steps[len(whole) :]:
                parts = [shard.part(row, step, shift) for shard in self._in_rounds]
                for batch, weight in self._take(read, parts):
                    if self.weights is not None:
                        self.weights.append(weight)
                    yield batch
            # Only the epoch that was begun with another batch size has a shift.
            shift = 0

    def _take(self, read: Read, parts: list[Part]) -> list[tuple[Any, float]]:
        """Returns this rank's batches of one step, and the weight of the mean of each."""
        size = self._in_rounds[0].size
        step = parts[0].step
        if not self._has_batches:
            # One read for all parts: a spare part is before the parts of earlier rounds, and positions never fall.
            first, last = min(part.entries.start for part in parts), max(part.entries.stop for part in parts)
            records = read(first, last)
            return [
                (
                    records[part.entries.start - first : part.entries.stop - first],
                    0.0 if part.is_spare else weight_of(len(part.entries), len(step), size),
                )
                for part in parts
            ]
        batches = read(step.start, step.stop)
        # A batch that is no list has an unknown number of records and counts as one.
        counts = [len(batch) if isinstance(batch, list) else 1 for batch in batches]
        places = [part.entries.start - step.start for part in parts]
        return [
            (batches[place], 0.0 if part.is_spare else weight_of(counts[place], sum(counts), size))
            for place, part in zip(places, parts, strict=True)
        ]


class DataLoader:
    """Loads data for a trial. Takes the arguments of torch.utils.data.DataLoader; the trainer makes each rank's loader
    from it.

    batch_size counts records of one rank: context.get_per_slot_batch_size(). The dataset has a length. Shuffling
    follows the trial's seed, and so does a sampler's random order. The remaining records in the last step of an epoch
    are divided over the ranks, and weighted by their number, unless drop_last leaves them out.
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
        _check_choice(batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last)
        self._has_batches = batch_sampler is not None
        self._drop_last = drop_last and not self._has_batches
        self._order: Order = (
            _RecordOrder(len(cast("Sized", dataset)), shuffle)
            if sampler is None and batch_sampler is None
            else _SampledOrder(sampler if sampler is not None else batch_sampler)
        )
        self._options = {"num_workers": num_workers, "collate_fn": collate_fn, "pin_memory": pin_memory, **options}
        # A user's sampler may yield other values than numbers.
        self._may_be_batched = sampler is None and batch_sampler is None and collate_fn is None

    def __len__(self) -> int:
        """Returns the number of batches of one pass over all data, before it is divided over the ranks."""
        return self._row().num_batches

    def __iter__(self) -> Iterator[Any]:
        """Returns one pass over all data, in the order of epoch 0 with seed 0."""
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
        """Returns torch's loader for one rank of num_replicas.

        repeat: epoch after epoch without an end, for training. It begins skip steps after the start and, in that epoch,
        shift entries later. rounds: batches of this rank in one step; 1 in a gang of full size. Where the last step of
        an epoch has too few records for all ranks, some repeat others' records; `training_batches` shows which. Without
        repeat: one pass that leaves out nothing.
        """
        first_step = skip if repeat else None
        shard = Shard(rank, num_replicas)
        sampler = _ShardSampler(self._order, self._row, shard, rounds, first_step, seed, shift, self._has_batches)
        # Workers draw their seeds from this generator. After a resume no rank may repeat the draws of a rank at the
        # start, also with more or fewer ranks now.
        options: dict[str, Any] = {"generator": _generator(seed, rank, num_replicas, skip), **self._options}
        batched_data = batched(self.dataset) if self._may_be_batched else None
        if batched_data is not None:
            return data.DataLoader(batched_data, batch_sampler=sampler, **{**options, "collate_fn": keep})
        return data.DataLoader(self.dataset, batch_sampler=sampler, **options)

    def training_batches(
        self, *, skip: int, shift: int, num_replicas: int, rank: int, seed: int, rounds: int = 1
    ) -> Iterator[tuple[Any, float]]:
        """Yields a rank's endless stream as from get_data_loader, each batch with its weight: the weight of its mean in
        the mean over all ranks and rounds. 0 for a batch of records that another rank trains on."""
        loader = self.get_data_loader(True, skip, num_replicas, rank, seed, shift=shift, rounds=rounds)
        sampler = cast("_ShardSampler", loader.batch_sampler)
        weights = sampler.weights = deque[float]()
        is_plain = type(loader) is data.DataLoader and "generator" not in self._options
        if loader.num_workers or loader.pin_memory or not is_plain:
            for batch in loader:
                yield batch, weights.popleft()
            return
        # As torch's loader reads in this process, without what its iterator does around each batch.
        dataset, collate = loader.dataset, cast("Callable[[Any], Any]", loader.collate_fn)
        read = getattr(dataset, "__getitems__", None) or (lambda indices: [dataset[index] for index in indices])

        is_traced = torch._C._autograd._profiler_enabled
        for indices in sampler:
            if is_traced():
                with record_function(_TRACE_MARK):
                    batch = collate(read(indices))
            else:
                batch = collate(read(indices))
            yield batch, weights.popleft()

    def place_after(self, entries: int, num_replicas: int) -> tuple[int, int]:
        """Returns the place at which an epoch continues after so many entries: steps, and shift, for `skip` and `shift`
        above. entries: batches where a batch sampler makes them. num_replicas: of the full gang."""
        return Shard(0, num_replicas).place_after(self._row(), entries)

    def steps_per_epoch(self, num_replicas: int, rounds: int = 1) -> int:
        """Returns the steps of each rank in one epoch, of `rounds` batches each. Raises GanglineError when there is
        none."""
        steps = Shard(0, num_replicas * rounds).steps_per_epoch(self._row())
        if steps < 1:
            records = len(cast("Sized", self.dataset))
            raise invalid(
                "pytorch.dataset_too_short",
                f"the training data has {records} records and makes no whole batch for {num_replicas * rounds} slots; "
                "use a smaller batch, fewer slots or more data, or leave out drop_last",
            )
        return steps

    def describe_shortage(self, num_replicas: int) -> str | None:
        """Describes an epoch that does not fill a single step on so many slots; None where it does."""
        row = self._row()
        full_step = row.batch_size * num_replicas
        if row.length >= full_step:
            return None
        what = "batches" if self._has_batches else "records"
        return (
            f"the training data has {row.length} {what}, and one step takes {full_step} ({row.batch_size} for each of "
            f"{num_replicas} slots); every step trains on {row.length} {what} and is an epoch; use a smaller "
            "global_batch_size or more data"
        )

    def describe_last_step(self, num_replicas: int) -> str | None:
        """Describes the last step of each epoch on so many slots; None where it is like all others."""
        row, shard = self._row(), Shard(0, num_replicas)
        full_step = row.batch_size * num_replicas
        left = row.length % full_step
        if num_replicas == 1 or left == 0 or row.drop_last:
            return None
        what, num_spare = "batches" if self._has_batches else "records", num_replicas - shard.num_holders(row, left)
        spare = f"; {num_spare} slots get none, repeat other slots' {what} and count nothing" if num_spare else ""
        return (
            f"the last step of each epoch has {left} of {full_step} {what} for {num_replicas} slots; gradients and "
            f"metrics of a slot count by its number of records{spare}"
        )

    def _row(self) -> Row:
        """Returns the entries of an epoch. Called again at each epoch, because a sampler may change its length."""
        return Row(len(self._order), self.batch_size or 1, self._drop_last)


def _generator(seed: int, *numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(seeds.number_of(seed, *numbers))


def _parts_of(sampler: Any, parts: list[Any] | None = None) -> list[Any]:
    """Returns the sampler, and samplers among its attributes and theirs."""
    parts = [] if parts is None else parts
    parts.append(sampler)
    for value in getattr(sampler, "__dict__", {}).values():
        if isinstance(value, data.Sampler) and not any(value is part for part in parts):
            _parts_of(value, parts)
    return parts


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, data.IterableDataset):
        raise invalid(
            "pytorch.iterable_dataset",
            "DataLoader got an IterableDataset, which can neither be sharded nor resumed; give it a dataset "
            "with __len__ and __getitem__",
        )
    if not isinstance(dataset, Sized):
        raise invalid("pytorch.loader_length", f"{type(dataset).__name__} has no len(); give the dataset a __len__")


def _check_choice(batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any, *, drop_last: bool) -> None:
    # As in torch, a batch size of 1 is the default that nobody has given.
    has_others = shuffle or sampler is not None or drop_last or batch_size not in (1, None)
    if batch_sampler is not None and has_others:
        text = "DataLoader: batch_sampler makes the batches, so it excludes batch_size, shuffle, sampler and drop_last"
        raise invalid("pytorch.loader_arguments", text)
    if sampler is not None and shuffle:
        raise invalid("pytorch.loader_arguments", "DataLoader: sampler excludes shuffle")
    for part in _parts_of(sampler if sampler is not None else batch_sampler):
        if isinstance(part, data.DistributedSampler) and part.num_replicas > 1:
            raise invalid(
                "pytorch.loader_arguments",
                "DataLoader: a DistributedSampler divides the data once more, which the loader divides over the slots "
                "by itself; leave it out and say shuffle=True",
            )
    if batch_sampler is None and (batch_size is None or batch_size < 1):
        raise invalid("pytorch.loader_arguments", f"DataLoader: batch_size is {batch_size}; it must be at least 1")
