"""The data loader: workers, samplers of the user's own, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

from gangline.errors import GanglineError
from gangline.pytorch import DataLoader

_DATA = TensorDataset(torch.arange(20))


def _take(loader: DataLoader, count: int, **options: Any) -> list[list[int]]:
    stream = loader.get_data_loader(repeat=True, **options)
    return [batch[0].tolist() for batch in itertools.islice(stream, count)]


def _weighted(loader: DataLoader, count: int, **place: int) -> list[tuple[list[int], float]]:
    stream = loader.training_batches(**{"skip": 0, "shift": 0, "seed": 5, **place})
    return [(batch[0].tolist(), weight) for batch, weight in itertools.islice(stream, count)]


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "prefetch_factor": 4}])
def test_worker_processes_do_not_change_the_order(options: dict[str, Any]) -> None:
    """From the middle of an epoch on, over the begin of the next."""
    alone = DataLoader(_DATA, batch_size=3, shuffle=True)
    helped = DataLoader(_DATA, batch_size=3, shuffle=True, **options)
    place = {"num_replicas": 2, "rank": 1, "seed": 5}
    expected = _take(alone, 8, **place)
    assert _take(helped, 7, skip=1, **place) == expected[1:]
    assert _weighted(helped, 8, **place) == _weighted(alone, 8, **place)


def test_reading_data_leaves_the_random_numbers_of_training_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    _take(DataLoader(_DATA, batch_size=3, shuffle=True), 9)
    assert torch.equal(torch.rand(3), expected)


_BATCHES = BatchSampler(SequentialSampler(range(10)), 4, False)
_EXCLUDES = "batch_sampler makes the batches, so it excludes batch_size, shuffle, sampler and drop_last"


class _Rotated(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        return iter([(index + self.epoch) % 6 for index in range(6)])


def test_sampler_learns_the_epoch() -> None:
    loader = DataLoader(_DATA, batch_size=2, sampler=_Rotated())
    assert _take(loader, 4, num_replicas=1) == [[0, 1], [2, 3], [4, 5], [1, 2]]
    assert _take(loader, 2, skip=3) == [[1, 2], [3, 4]]
    assert _take(loader, 2, num_replicas=3, rank=2) == [[4, 5], [5, 0]]


def test_batch_sampler_is_divided_by_its_batches() -> None:
    loader = DataLoader(_DATA, batch_sampler=BatchSampler(SequentialSampler(range(10)), 4, False))
    assert _take(loader, 1, num_replicas=2, rank=1) == [[4, 5, 6, 7]]
    assert loader.steps_per_epoch(2) == 2
    assert loader.describe_last_step(2) == (
        "the last step of each epoch has 1 of 2 batches for 2 slots; gradients and metrics of a slot count by its "
        "number of records; 1 slots get none, repeat other slots' batches and count nothing"
    )
    steps = [_weighted(loader, 3, num_replicas=2, rank=rank) for rank in range(2)]
    assert steps == [
        [([0, 1, 2, 3], 1.0), ([8, 9], 2.0), ([0, 1, 2, 3], 1.0)],
        [([4, 5, 6, 7], 1.0), ([8, 9], 0.0), ([4, 5, 6, 7], 1.0)],
    ]
    assert [weight for _, weight in _weighted(loader, 1, num_replicas=3, rank=2)] == [2 * 3 / 10]
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class _Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"dataset": _Endless()}, "pytorch.iterable_dataset", "can neither be sharded nor resumed"),
        ({"dataset": object()}, "pytorch.loader_length", "object has no len()"),
        ({"dataset": _DATA, "batch_size": 0}, "pytorch.loader_arguments", "batch_size is 0"),
        ({"dataset": _DATA, "shuffle": True, "sampler": _Rotated()}, "pytorch.loader_arguments", "excludes shuffle"),
        ({"dataset": _DATA, "batch_sampler": _BATCHES, "batch_size": 4}, "pytorch.loader_arguments", _EXCLUDES),
        ({"dataset": _DATA, "batch_sampler": _BATCHES, "drop_last": True}, "pytorch.loader_arguments", _EXCLUDES),
        ({"dataset": _DATA, "batch_sampler": _BATCHES, "shuffle": True}, "pytorch.loader_arguments", _EXCLUDES),
        ({"dataset": _DATA, "batch_size": 2, "sampler": iter([1])}, "pytorch.loader_length", "has no len()"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(GanglineError, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        DataLoader(**arguments)
    assert caught.value.code == code


def test_fewer_batches_than_slots() -> None:
    assert DataLoader(_DATA, batch_size=8).steps_per_epoch(4) == 1
    with pytest.raises(GanglineError, match="20 records and makes no whole batch for 4 slots"):
        DataLoader(_DATA, batch_size=8, drop_last=True).steps_per_epoch(4)


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"),
    [
        (30, 4, [4, 4, 3, 3]),
        (20, 4, [2, 2, 0, 0]),
        (21, 4, [3, 2, 0, 0]),
        (23, 4, [3, 2, 2, 0]),
        (17, 4, [1, 0, 0, 0]),
        (15, 2, [2, 2, 2, 1]),
        (7, 1, [1, 1, 1, 0]),
    ],
)
def test_last_step_is_divided_evenly_and_leaves_no_record_alone(count: int, batch_size: int, sizes: list[int]) -> None:
    """Batch normalisation cannot train on one record."""
    loader = DataLoader(TensorDataset(torch.arange(count)), batch_size=batch_size)
    steps = loader.steps_per_epoch(4)
    parts = [_weighted(loader, 1, num_replicas=4, rank=rank, skip=steps - 1)[0] for rank in range(4)]
    assert [len(records) if weight else 0 for records, weight in parts] == sizes
    assert [weight for _, weight in parts] == pytest.approx([4 * size / sum(sizes) for size in sizes])
    assert sorted(record for records, weight in parts if weight for record in records) == list(
        range(count - sum(sizes), count)
    )


class _Doubled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor[index] for tensor in self.tensors)


class _Backwards(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[-1 - index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


_WIDE = TensorDataset(
    torch.randn(20, 2, 3).transpose(1, 2),
    torch.arange(20),
    torch.arange(20) % 3 == 0,
    torch.randn(20, 4, dtype=torch.complex64),
)


@pytest.mark.parametrize(
    "dataset",
    [
        _DATA,
        _WIDE,
        Subset(_WIDE, [19, -1, 3, 3, 7, 0, 5]),
        Subset(Subset(_WIDE, range(10, 20)), torch.arange(9).tolist()),
        random_split(_WIDE, [12, 8], torch.Generator().manual_seed(1))[0],
        _Doubled(torch.arange(20)),
        Subset(_Doubled(torch.arange(20)), range(3, 12)),
        _Backwards(_WIDE, range(3, 12)),
        TensorDataset(torch.nn.Parameter(torch.randn(20, 2))),
    ],
    ids=["numbers", "wide", "subset", "nested", "split", "own class", "subset of it", "own subset", "parameter"],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_whole_batches_are_what_record_by_record_gives(dataset: Dataset[Any], shuffle: bool) -> None:
    """A collate_fn of the user's has the loader read record by record."""
    by_batch, by_record = (
        list(itertools.islice(loader.get_data_loader(repeat=shuffle, skip=int(shuffle), seed=3), 6))
        for loader in (
            DataLoader(dataset, batch_size=4, shuffle=shuffle),
            DataLoader(dataset, batch_size=4, shuffle=shuffle, collate_fn=default_collate),
        )
    )
    assert len(by_batch) == len(by_record) > 0
    for batch, expected in zip(by_batch, by_record, strict=True):
        assert type(batch) is type(expected)
        for value, expected_value in zip(batch, expected, strict=True):
            torch.testing.assert_close(value, expected_value, rtol=0, atol=0)
            assert value.requires_grad == expected_value.requires_grad


def test_batch_is_a_copy_of_the_data() -> None:
    records = torch.arange(8)
    for (batch,) in DataLoader(TensorDataset(records), batch_size=4):
        batch.zero_()
    assert records.tolist() == list(range(8))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_tensor_dataset_is_read_by_batches(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: TensorDataset, _index: int) -> None:
        raise AssertionError("a single record was read")

    monkeypatch.setattr(TensorDataset, "__getitem__", fail)
    loader = DataLoader(Subset(TensorDataset(torch.arange(8)), range(2, 8)), batch_size=3, **options)
    assert [batch[0].tolist() for batch in loader] == [[2, 3, 4], [5, 6, 7]]


def test_a_batch_larger_than_the_data_is_described() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=16)
    assert loader.describe_shortage(2) == (
        "the training data has 10 records, and one step takes 32 (16 for each of 2 slots); every step trains on 10 "
        "records and is an epoch; use a smaller global_batch_size or more data"
    )
    assert DataLoader(TensorDataset(torch.arange(32)), batch_size=16).describe_shortage(2) is None


@pytest.mark.parametrize("dataset", [_WIDE, _Doubled(torch.arange(20)), _Backwards(_WIDE, range(3, 20))])
def test_batches_read_in_this_process_are_those_of_torchs_loader(dataset: Dataset[Any]) -> None:
    loader = DataLoader(dataset, batch_size=3, shuffle=True)
    ours = itertools.islice(loader.training_batches(skip=1, shift=0, num_replicas=2, rank=1, seed=5), 9)
    theirs = itertools.islice(loader.get_data_loader(True, 1, 2, 1, 5), 9)
    for (batch, _), expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(batch, expected)


def test_generator_of_the_trial_is_used_as_torchs_loader_uses_it() -> None:
    """Which draws from it when it begins to read."""
    generator, expected = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    loader = DataLoader(_WIDE, batch_size=2, generator=generator)
    next(loader.training_batches(skip=0, shift=0, num_replicas=1, rank=0, seed=5))
    next(iter(data.DataLoader(_WIDE, batch_size=2, generator=expected)))
    assert torch.equal(generator.get_state(), expected.get_state())


def test_a_trace_shows_the_reads_as_that_of_torchs_loader_does() -> None:
    dataset = TensorDataset(torch.arange(8.0))
    names: list[set[str]] = []
    for batches in (
        iter(DataLoader(dataset, batch_size=2)),
        DataLoader(dataset, batch_size=2).training_batches(skip=0, shift=0, num_replicas=1, rank=0, seed=0),
    ):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            next(batches)
        names.append({event.key for event in trace.key_averages() if "DataLoader" in event.key})
    assert names[0] == names[1] != set()
