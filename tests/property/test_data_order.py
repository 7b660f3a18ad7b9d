"""What every order of training data must hold to: each record once, no record twice, the same order on any ranks."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from gangline.pytorch import DataLoader
from gangline.pytorch.unit import Position


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
    return len(loader) // size


def _train(  # noqa: PLR0917  the six numbers that make a stream
    loader: DataLoader, rank: int, size: int, skip: int, steps: int, seed: int
) -> list[list[int]]:
    stream = loader.get_data_loader(repeat=True, skip=skip, num_replicas=size, rank=rank, seed=seed)
    return list(itertools.islice(stream, steps))


@settings(max_examples=60, deadline=None)
@given(SHAPES, SIZES, st.integers(0, 2**40))
def test_epoch_has_each_record_at_most_once_and_misses_less_than_a_step(
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
    dropped = shape["count"] % shape["batch_size"] if shape["drop_last"] else 0
    assert shape["count"] - dropped - len(records) <= (size - 1) * shape["batch_size"]


@settings(max_examples=60, deadline=None)
@given(SHAPES, SIZES, st.integers(0, 2**40))
def test_ranks_together_see_the_batches_of_one_process(shape: dict[str, Any], size: int, seed: int) -> None:
    loader = _loader(**shape)
    steps = _steps(loader, size)
    if steps == 0:
        return
    together = list(zip(*(_train(loader, rank, size, 0, steps, seed) for rank in range(size)), strict=True))
    alone = _train(loader, 0, 1, 0, steps * size, seed)
    assert [batch for step in together for batch in step] == alone


@settings(max_examples=60, deadline=None)
@given(SHAPES, SIZES, st.integers(0, 40), st.integers(0, 2**40))
def test_resumed_stream_is_the_rest_of_the_whole_one(shape: dict[str, Any], size: int, skip: int, seed: int) -> None:
    loader = _loader(**shape)
    if _steps(loader, size) == 0:
        return
    for rank in range(size):
        whole = _train(loader, rank, size, 0, skip + 10, seed)
        assert _train(loader, rank, size, skip, 10, seed) == whole[skip:]


@settings(max_examples=60, deadline=None)
@given(SHAPES, SIZES)
def test_validation_sees_each_record_exactly_once(shape: dict[str, Any], size: int) -> None:
    loader = _loader(**{**shape, "drop_last": False})
    found = [loader.get_data_loader(num_replicas=size, rank=rank) for rank in range(size)]
    records = sorted(record for part in found for batch in part for record in batch)
    assert records == list(range(shape["count"]))


@settings(max_examples=60, deadline=None)
@given(st.integers(30, 200), st.integers(0, 2**40), st.integers(0, 2**40))
def test_seeds_and_epochs_have_orders_of_their_own(count: int, seed: int, other: int) -> None:
    loader = _loader(count, batch_size=count, shuffle=True)
    first, second = _train(loader, 0, 1, 0, 2, seed)
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second
    if seed != other:
        assert first != _train(loader, 0, 1, 0, 1, other)[0]


STAGES = st.lists(st.tuples(st.integers(1, 7), SIZES, st.integers(0, 12)), min_size=2, max_size=4)


@settings(max_examples=300, deadline=None)
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
    dropped = batch_size - 1 if drop_last else 0
    assert count - len(seen) <= dropped + (size - 1) * batch_size


def _go_on(  # noqa: PLR0917  as above
    loader: DataLoader, rank: int, size: int, position: Position, steps: int, seed: int
) -> list[list[int]]:
    place = {"skip": position.loader_step, "shift": position.shift}
    stream = loader.get_data_loader(repeat=True, num_replicas=size, rank=rank, seed=seed, **place)
    return list(itertools.islice(stream, steps))


@settings(max_examples=60, deadline=None)
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
    full = [_train(loader, rank, full_size, skip, count, seed) for rank in range(full_size)]
    place: dict[str, Any] = {"repeat": True, "skip": skip, "num_replicas": size, "rounds": rounds, "seed": seed}
    streams = [iter(loader.get_data_loader(**place, rank=rank)) for rank in range(size)]
    for step in range(count):
        found = [next(stream) for _ in range(rounds) for stream in streams]
        assert found == [batches[step] for batches in full], "the same batches, none cut or merged"
