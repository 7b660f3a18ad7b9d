"""Invariants of every order of training data: each record once, no record twice, the same order on any ranks.

A batch with the weight 0 repeats records of another rank, and counts nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from gangline.errors import GanglineError
from gangline.pytorch import DataLoader
from gangline.pytorch.trial.unit import Position
from tests.support.examples import examples


class Numbers(Dataset[int]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


SIZES = st.integers(1, 5)
SHAPES = st.tuples(st.integers(1, 60), st.integers(1, 7), st.booleans(), st.booleans()).map(
    lambda shape: {"count": shape[0], "batch_size": shape[1], "shuffle": shape[2], "drop_last": shape[3]}
)


def _loader(count: int, **options: Any) -> DataLoader:
    return DataLoader(Numbers(count), collate_fn=list, **options)


def _steps(loader: DataLoader, size: int) -> int:
    """0 where no step would be whole and drop_last leaves out the others."""
    try:
        return loader.steps_per_epoch(size)
    except GanglineError:
        return 0


def _train(  # noqa: PLR0917  the six numbers that make a stream
    loader: DataLoader, rank: int, size: int, skip: int, steps: int, seed: int
) -> list[list[int]]:
    stream = loader.training_batches(skip=skip, shift=0, num_replicas=size, rank=rank, seed=seed)
    return [batch if weight else [] for batch, weight in itertools.islice(stream, steps)]


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, SIZES, st.integers(0, 2**40))
def test_epoch_has_each_record_once_and_only_drop_last_leaves_records_out(
    shape: dict[str, Any], size: int, seed: int
) -> None:
    loader = _loader(**shape)
    steps = _steps(loader, size)
    if steps == 0:
        return
    by_rank = [_train(loader, rank, size, 0, steps, seed) for rank in range(size)]
    records = [record for batches in by_rank for batch in batches for record in batch]
    assert len(set(records)) == len(records)
    assert set(records) <= set(range(shape["count"]))
    left_out = shape["count"] % (size * shape["batch_size"]) if shape["drop_last"] else 0
    assert shape["count"] - len(records) == left_out


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, SIZES, st.integers(0, 2**40))
def test_each_record_of_a_step_counts_alike(shape: dict[str, Any], size: int, seed: int) -> None:
    """The mean over the ranks of what their records count is the mean over the step's records."""
    loader = _loader(**shape)
    steps = _steps(loader, size)
    if steps == 0:
        return
    place = {"skip": 0, "shift": 0, "num_replicas": size, "seed": seed}
    streams = [loader.training_batches(rank=rank, **place) for rank in range(size)]
    for step in itertools.islice(zip(*streams, strict=True), steps):
        total = sum(len(batch) for batch, weight in step if weight)
        for batch, weight in step:
            assert len(batch) > 0
            if weight:
                assert math.isclose(weight / size / len(batch), 1 / total)


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, SIZES, st.integers(0, 2**40))
def test_ranks_together_see_the_batches_of_one_process(shape: dict[str, Any], size: int, seed: int) -> None:
    loader = _loader(**shape)
    steps = _steps(loader, size)
    if steps == 0:
        return
    together = list(zip(*(_train(loader, rank, size, 0, steps, seed) for rank in range(size)), strict=True))
    alone = _train(_loader(**{**shape, "batch_size": shape["batch_size"] * size}), 0, 1, 0, steps, seed)
    assert [[record for batch in step for record in batch] for step in together] == alone


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, SIZES, st.integers(0, 40), st.integers(0, 2**40))
def test_resumed_stream_is_the_rest_of_the_whole_one(shape: dict[str, Any], size: int, skip: int, seed: int) -> None:
    loader = _loader(**shape)
    if _steps(loader, size) == 0:
        return
    for rank in range(size):
        uninterrupted = _train(loader, rank, size, 0, skip + 10, seed)
        assert _train(loader, rank, size, skip, 10, seed) == uninterrupted[skip:]


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, SIZES)
def test_validation_sees_each_record_exactly_once(shape: dict[str, Any], size: int) -> None:
    loader = _loader(**{**shape, "drop_last": False})
    batches_by_rank = [loader.get_data_loader(num_replicas=size, rank=rank) for rank in range(size)]
    records = sorted(record for rank_batches in batches_by_rank for batch in rank_batches for record in batch)
    assert records == list(range(shape["count"]))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(30, 200), st.integers(0, 2**40), st.integers(0, 2**40))
def test_seeds_and_epochs_have_orders_of_their_own(count: int, seed: int, other_seed: int) -> None:
    loader = _loader(count, batch_size=count, shuffle=True)
    first, second = _train(loader, 0, 1, 0, 2, seed)
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second
    if seed != other_seed:
        assert first != _train(loader, 0, 1, 0, 1, other_seed)[0]


STAGES = st.lists(st.tuples(st.integers(1, 7), SIZES, st.integers(0, 12)), min_size=2, max_size=4)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 60), STAGES, st.booleans(), st.booleans(), st.integers(0, 2**40))
def test_epoch_that_goes_on_with_other_batches_has_each_record_once(
    count: int, stages: list[tuple[int, int, int]], shuffle: bool, drop_last: bool, seed: int
) -> None:
    """stages: batch size, ranks, and steps before the next stage; the last one ends the epoch."""
    (order,) = _train(_loader(count, batch_size=count, shuffle=shuffle), 0, 1, 0, 1, seed)
    seen: list[int] = []
    for number, (batch_size, size, wanted) in enumerate(stages):
        loader = _loader(count, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        steps = _steps(loader, size)
        if steps == 0:
            return
        position = Position(steps, records_per_batch=0)
        position.go_on(0, *loader.place_after(len(seen), size))
        left = steps - position.offset if position.epoch == 0 else 0
        is_last = number == len(stages) - 1 or wanted >= left
        by_rank = [_go_on(loader, rank, size, position, left + 1, seed) for rank in range(size)]
        steps_now = left if is_last else wanted
        seen += [record for step in range(steps_now) for batches in by_rank for record in batches[step]]
        if is_last:
            # The next epoch begins at its first record.
            assert [batches[left] for batches in by_rank] == [
                _train(loader, rank, size, steps, 1, seed)[0] for rank in range(size)
            ]
            break
    assert seen == order[: len(seen)]
    assert count - len(seen) < (size * batch_size if drop_last else 1)


def _go_on(  # noqa: PLR0917  as above
    loader: DataLoader, rank: int, size: int, position: Position, steps: int, seed: int
) -> list[list[int]]:
    place = {"skip": position.loader_step, "shift": position.shift}
    stream = loader.training_batches(num_replicas=size, rank=rank, seed=seed, **place)
    return [batch if weight else [] for batch, weight in itertools.islice(stream, steps)]


SAMPLERS: list[Callable[[int], Sampler[int]]] = [
    lambda count: RandomSampler(range(count)),
    lambda count: RandomSampler(range(count), generator=torch.Generator().manual_seed(count)),
    lambda count: WeightedRandomSampler([1.0] * count, count, replacement=False),
    lambda count: SubsetRandomSampler(range(count)),
]


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(SAMPLERS), st.integers(2, 60), STAGES, st.booleans(), st.integers(0, 2**40))
def test_random_sampler_has_one_order_on_all_ranks_also_where_they_change(
    make: Callable[[int], Sampler[int]], count: int, stages: list[tuple[int, int, int]], in_batches: bool, seed: int
) -> None:
    """Each rank has random numbers of its own, which stay as they are."""
    seen: list[int] = []
    for number, (batch_size, size, wanted) in enumerate(stages):
        left = 0
        by_rank: list[list[list[int]]] = []
        for rank in range(size):
            torch.manual_seed(1000 * number + rank)
            expected = torch.rand(3)
            torch.manual_seed(1000 * number + rank)
            sampler = make(count)
            options: dict[str, Any] = {"sampler": sampler, "batch_size": batch_size}
            if in_batches:
                # Of one record each, so that any stage can go on with them.
                options = {"batch_sampler": BatchSampler(sampler, 1, False)}
            loader = _loader(count, **options)
            position = Position(loader.steps_per_epoch(size), records_per_batch=0)
            position.go_on(0, *loader.place_after(len(seen), size))
            left = position.epoch_length - position.offset if position.epoch == 0 else 0
            by_rank.append(_go_on(loader, rank, size, position, left, seed))
            assert torch.equal(torch.rand(3), expected)
        steps = left if number == len(stages) - 1 else min(wanted, max(0, left - 1))
        seen += [record for step in range(steps) for batches in by_rank for record in batches[step]]
    assert sorted(seen) == list(range(count))


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**40), st.integers(0, 9))
def test_fewer_ranks_train_the_batches_of_the_full_gang_in_rounds(
    shape: dict[str, Any], size: int, rounds: int, seed: int, skip: int
) -> None:
    loader = _loader(**shape)
    full_size = size * rounds
    steps = _steps(loader, full_size)
    if steps == 0:
        return
    assert loader.steps_per_epoch(size, rounds) == loader.steps_per_epoch(full_size) == steps
    count = 2 * steps + 1
    place: dict[str, Any] = {"skip": skip, "shift": min(skip, 1), "seed": seed}
    full = [loader.training_batches(num_replicas=full_size, rank=rank, **place) for rank in range(full_size)]
    few = [loader.training_batches(num_replicas=size, rank=rank, rounds=rounds, **place) for rank in range(size)]
    for _ in range(count):
        batches = [next(stream) for _ in range(rounds) for stream in few]
        assert batches == [next(stream) for stream in full], "the same batches and weights, none cut or merged"


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_rounds_read_a_sampler_of_the_users_as_the_full_gang_does(
    count: int, batch_size: int, size: int, rounds: int, in_batches: bool
) -> None:
    options: dict[str, Any] = {"sampler": RandomSampler(range(count)), "batch_size": batch_size}
    if in_batches:
        options = {"batch_sampler": BatchSampler(RandomSampler(range(count)), batch_size, False)}
    loader = _loader(count, **options)
    full_size = size * rounds
    steps = 2 * loader.steps_per_epoch(size, rounds) + 1
    place: dict[str, Any] = {"skip": 0, "shift": 0, "seed": 3}
    full = [loader.training_batches(num_replicas=full_size, rank=rank, **place) for rank in range(full_size)]
    few = [loader.training_batches(num_replicas=size, rank=rank, rounds=rounds, **place) for rank in range(size)]
    for _ in range(steps):
        assert [next(stream) for _ in range(rounds) for stream in few] == [next(stream) for stream in full]
