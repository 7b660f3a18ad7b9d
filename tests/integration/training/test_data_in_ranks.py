"""The data that ranks see: one order of a sampler on all of them, equal losses where records do not fill the last step,
and no random number of a worker twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from gangline.cluster_info import CheckpointInfo
from tests.support.data_work import Learned, Uneven, clip, count_reductions, train_uneven
from tests.support.gang import run_gang
from tests.support.rank import RunningTrial, Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config

_OF_TWO = [
    Uneven("ddp", 21),
    *(Uneven(strategy, count) for strategy in ("zero1", "zero2", "zero3") for count in (30, 17)),
    Uneven("zero2", 30, aggregation=2),
]
_OF_FOUR = [
    *(Uneven("ddp", count) for count in (30, 20, 3)),
    *(Uneven(strategy, 20, aggregation=2) for strategy in ("ddp", "zero1", "zero3", "hsdp")),
    Uneven("hsdp", 30),
    Uneven("ddp", 20, drop_last=True),
]


def _trial(code: str, size: int, batches: int, latest: CheckpointInfo | None = None) -> Trial:
    config = linear_config({"batches": batches})
    return Trial({"model_def.py": code}, config, {"global_batch_size": 16}, size, latest)


def _run(directory: Path, trial: Trial) -> RunningTrial:
    running, codes = run_trial(directory, trial)
    assert codes == [0] * trial.size, running.output(0)
    return running


def _records(running: RunningTrial, size: int) -> list[int]:
    """Returns the records of all ranks and batches."""
    lines = [line.split(maxsplit=3) for rank in range(size) for line in running.output(rank).splitlines()]
    return [record for line in lines if line[0] == "records" for record in ast.literal_eval(line[3])]


@pytest.mark.parametrize(
    "sampler",
    [
        "torch.utils.data.RandomSampler(Points(96))",
        "torch.utils.data.WeightedRandomSampler([1.0] * 96, 96, replacement=False)",
        "torch.utils.data.SubsetRandomSampler(range(96), generator=torch.Generator())",
    ],
)
def test_ranks_divide_the_order_of_a_sampler_also_when_they_become_fewer(tmp_path: Path, sampler: str) -> None:
    code = LINEAR.replace("Points(100)", "Points(96)").replace("shuffle=True", f"sampler={sampler}")
    whole = _run(tmp_path / "whole", _trial(code, 1, 12))
    first = _run(tmp_path / "first", _trial(code, 4, 8))
    second = _run(tmp_path / "second", _trial(code, 2, 12, first.latest_checkpoint()))
    seen = [*_records(first, 4), *_records(second, 2)]
    # Twelve batches are two epochs; 8 end in the middle of the second one.
    assert sorted(seen) == sorted([*range(96)] * 2)
    losses = {**first.runner.metric("training", "loss"), **second.runner.metric("training", "loss")}
    assert losses == pytest.approx(whole.runner.metric("training", "loss"), abs=1e-5)
    epochs = _records(whole, 1)
    assert epochs[:96] != epochs[96:]


def test_sampler_that_is_divided_already_is_refused(tmp_path: Path) -> None:
    sampler = "torch.utils.data.DistributedSampler(Points(96), num_replicas=2, rank=0)"
    code = LINEAR.replace("shuffle=True", f"sampler={sampler}")
    running, codes = run_trial(tmp_path, _trial(code, 2, 1))
    assert codes == [1, 1]
    assert running.runner.of(0, "failure")[0].message == (
        "DataLoader: a DistributedSampler divides the data once more, which the loader divides over the slots by "
        "itself; leave it out and say shuffle=True"
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[Uneven, Learned]:
    runs = [Uneven("none", run.count, run.aggregation, run.batches, run.drop_last) for run in (*_OF_TWO, *_OF_FOUR)]
    return dict(zip(runs, train_uneven(tmp_path_factory.mktemp("alone"), runs), strict=True))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[list[Learned]]:
    return run_gang(2, tmp_path_factory.mktemp("two"), train_uneven, tmp_path_factory.mktemp("here"), _OF_TWO)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> list[list[Learned]]:
    return run_gang(4, tmp_path_factory.mktemp("four"), train_uneven, tmp_path_factory.mktemp("here"), _OF_FOUR)


def _check(run: Uneven, by_rank: list[Learned], alone: dict[Uneven, Learned]) -> None:
    """The same epochs, metrics, counts of records and parameters as one process with the same global batches."""
    expected = alone[Uneven("none", run.count, run.aggregation, run.batches, run.drop_last)]
    for learned in by_rank:
        assert learned.epochs == expected.epochs
        for report, other in zip(learned.reports, expected.reports, strict=True):
            assert report == pytest.approx(other, abs=1e-12)
        for name, value in learned.model.items():
            torch.testing.assert_close(value, expected.model[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("run", _OF_TWO, ids=str)
def test_uneven_records_on_two_ranks_train_as_on_one(
    run: Uneven, of_two: list[list[Learned]], alone: dict[Uneven, Learned]
) -> None:
    _check(run, [learned[_OF_TWO.index(run)] for learned in of_two], alone)


@pytest.mark.parametrize("run", _OF_FOUR, ids=str)
def test_uneven_records_on_four_ranks_train_as_on_one(
    run: Uneven, of_four: list[list[Learned]], alone: dict[Uneven, Learned]
) -> None:
    """Also where ranks have no record at all in the last step."""
    _check(run, [learned[_OF_FOUR.index(run)] for learned in of_four], alone)


def test_last_step_with_few_records_is_told(tmp_path: Path) -> None:
    code = LINEAR.replace("Points(100)", "Points(20)").replace("drop_last=True", "drop_last=False")
    code = f"import logging\nlogging.basicConfig(level=logging.INFO)\n{code}"
    running = _run(tmp_path, _trial(code, 4, 2))
    line = (
        "training data: the last step of each epoch has 4 of 16 records for 4 slots; gradients and metrics of a slot "
        "count by its number of records; 2 slots get none, repeat other slots' records and count nothing"
    )
    assert [line in running.output(rank) for rank in range(4)] == [True, False, False, False]


def test_batch_larger_than_the_data_is_told_before_training(tmp_path: Path) -> None:
    """Without any configuration of logging."""
    code = LINEAR.replace("Points(100)", "Points(10)").replace("drop_last=True", "drop_last=False")
    running = _run(tmp_path, _trial(code, 2, 2))
    line = (
        "the training data has 10 records, and one step takes 16 (8 for each of 2 slots); every step trains on 10 "
        "records and is an epoch; use a smaller global_batch_size or more data"
    )
    assert [line in running.output(rank) for rank in range(2)] == [True, False]


_AUGMENTED = LINEAR.replace(
    "return self.inputs[index], self.targets[index], index",
    "return self.inputs[index] + 0.01 * (noise := torch.rand(())), self.targets[index], noise",
).replace("drop_last=True)", "drop_last=True, num_workers=1)")


def _draws(running: RunningTrial, rank: int) -> list[float]:
    lines = re.findall(r"^records \d+ \d+ (.*)$", running.output(rank), re.MULTILINE)
    return [number for line in lines for number in ast.literal_eval(line)]


def test_workers_draw_nothing_twice_after_a_resume(tmp_path: Path) -> None:
    """On as many ranks and on fewer."""
    first = _run(tmp_path / "first", _trial(_AUGMENTED, 4, 2))
    latest = first.latest_checkpoint()
    runs = [(first, 4)] + [(_run(tmp_path / f"on{size}", _trial(_AUGMENTED, size, 4, latest)), size) for size in (4, 1)]
    drawn = [[number for rank in range(size) for number in _draws(running, rank)] for running, size in runs]
    assert [len(numbers) for numbers in drawn] == [32, 32, 32]
    together = [number for numbers in drawn for number in numbers]
    assert len(set(together)) == len(together)


@pytest.mark.parametrize(("size", "strategy"), [(2, "zero2"), (2, "zero3"), (4, "hsdp")])
def test_aggregated_batches_exchange_gradients_once_a_step(tmp_path: Path, size: int, strategy: str) -> None:
    """Three groups of parameters: two blocks, and what belongs to none."""
    storage = tmp_path / "storage"
    storage.mkdir()
    single = run_gang(size, tmp_path / "single", count_reductions, storage, strategy, 1, 2)
    aggregated = run_gang(size, tmp_path / "aggregated", count_reductions, storage, strategy, 4, 8)
    assert [count for count, _ in single] == [2 * 3] * size
    assert aggregated == single


@pytest.mark.parametrize(("size", "strategy"), [(2, "ddp"), (2, "zero1"), (2, "zero2"), (2, "zero3"), (4, "hsdp")])
def test_clipping_leaves_gradients_below_the_bound_as_they_are(tmp_path: Path, size: int, strategy: str) -> None:
    ((norm, _, _),) = clip("none", [1.0])
    for outcome in run_gang(size, tmp_path, clip, strategy, [norm * 4, norm * 1.01, norm / 2]):
        assert [before for before, _, _ in outcome] == pytest.approx([norm] * 3, rel=1e-5)
        assert [is_same for _, is_same, _ in outcome] == [True, True, False]
        assert [after for _, _, after in outcome] == pytest.approx([norm, norm, norm / 2], rel=1e-5)
