"""Trials that load data their own way: torch's DataLoader, samplers by hand, batches that stay where they are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch import sampler as samplers
from tests.support.small_trial import DATA, SmallTrial, fit


class _OwnLoader(SmallTrial):
    """Divides, repeats and skips by itself; four batches an epoch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()
        self.inputs: list[float] = []

    def build_training_data_loader(self) -> Any:
        batches = BatchSampler(SequentialSampler(DATA), 3, False)
        repeated = samplers.RepeatBatchSampler(batches)
        return DataLoader(DATA, batch_sampler=samplers.SkipBatchSampler(repeated, self.context.get_initial_batch()))

    def build_validation_data_loader(self) -> Any:
        return DataLoader(DATA, batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.inputs.append(float(batch[0][0]))
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_own_loader_goes_on_where_training_was() -> None:
    uninterrupted = fit(_OwnLoader, max_length=pytorch.Epoch(2))
    assert [place[0] for place in uninterrupted.seen] == [0] * 4 + [1] * 4
    fit(_OwnLoader, max_length=pytorch.Batch(5), checkpoint_policy="none")
    names = {path.name for path in Path("checkpoints").iterdir()}
    (five,) = [
        name for name in names if pytorch.load_checkpoint(Path("checkpoints") / name)["progress"]["batches"] == 5
    ]
    resumed = fit(_OwnLoader, max_length=pytorch.Epoch(2), latest_checkpoint=five)
    assert resumed.context.get_initial_batch() == 5
    assert resumed.inputs == uninterrupted.inputs[5:]


def test_finite_loader_starts_again_at_the_end() -> None:
    class Finite(_OwnLoader):
        def build_training_data_loader(self) -> Any:
            return DataLoader(DATA, batch_size=6)

    trial = fit(Finite, max_length=pytorch.Epoch(3))
    assert trial.inputs == [trial.inputs[0], trial.inputs[1]] * 3


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return itertools.repeat((torch.zeros(1),))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(_Stream(), batch_size=2), "the training loader over a _Stream has no len"),
        (DataLoader(TensorDataset(torch.zeros(0, 1))), "the training loader has no batch for this rank"),
    ],
)
def test_loader_that_has_no_epoch_is_refused(loader: Any, words: str) -> None:
    class Lengthless(_OwnLoader):
        def build_training_data_loader(self) -> Any:
            return loader

    with pytest.raises(GanglineError, match=words):
        fit(Lengthless, max_length=pytorch.Batch(1))


def test_batches_may_stay_where_the_loader_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Still(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.experimental.disable_auto_to_device()
            monkeypatch.setattr(context, "to_device", lambda _: pytest.fail("moved"))

    fit(Still, max_length=pytorch.Batch(1))


def test_samplers_shuffle_repeat_divide_and_skip() -> None:
    rows = SequentialSampler(range(6))
    shuffled = samplers.ReproducibleShuffleSampler(rows, seed=3)
    first, second = list(shuffled), list(shuffled)
    assert sorted(first) == sorted(second) == list(range(6))
    assert first != second
    assert list(samplers.ReproducibleShuffleSampler(range(5), 777)) == [0, 4, 1, 2, 3], "as Determined shuffles"
    again = samplers.ReproducibleShuffleSampler(rows, seed=3)
    assert [list(again), list(again)] == [first, second]
    repeated = samplers.RepeatSampler(rows)
    assert list(itertools.islice(repeated, 8)) == [0, 1, 2, 3, 4, 5, 0, 1]
    parts = [samplers.DistributedSampler(rows, num_workers=4, rank=rank) for rank in range(4)]
    assert [list(part) for part in parts] == [[0, 4], [1, 5], [2], [3]]
    assert [len(part) for part in parts] == [2, 2, 1, 1]
    assert list(samplers.SkipBatchSampler([[0], [1], [2]], 2)) == [[2]]
    with pytest.raises(GanglineError, match="rank 4 is none of 4 workers"):
        samplers.DistributedBatchSampler(rows, 4, 4)
