"""The data that ranks see: one order of a sampler on all of them, equal losses where records do not fill the last step,
and no random number of a worker twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.cluster_info import CheckpointInfo
from gangline.config.optimization import Optimizations
from gangline.pytorch.parallel import choose_strategy
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.points_trial import Net, PointsTrial, WholePointsTrial, make_optimizer
from tests.support.rank import RunningTrial, Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config


@dataclass(frozen=True, slots=True)
class Uneven:
    """One training."""

    strategy: str
    count: int  # number of records
    aggregation: int = 1  # batches of an optimizer step
    batches: int = 6
    drop_last: bool = False


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


_GLOBAL_BATCH = 16


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a training."""

    reports: list[dict[str, float]]  # metrics of each batch
    model: dict[str, torch.Tensor]
    epochs: list[int]  # epochs that were completed after each batch


class _Reports(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.found.append({name: float(value) for name, value in avg_metrics.items()})


class _Records(pytorch.MetricReducer):
    """A trial's own class, which counts records."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        self.count = 0

    def per_slot_reduce(self) -> int:
        return self.count

    def cross_slot_reduce(self, per_slot_metrics: list[int]) -> int:
        return sum(per_slot_metrics)


class UnevenTrial(PointsTrial):
    """Trains doubles, so that rounding hides nothing. hyperparameters: count, drop_last."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.reports = _Reports()
        self.epochs: list[int] = []
        self.own = context.wrap_reducer(_Records(), name="own", for_validation=False)
        self.values = context.wrap_reducer(sum, name="values", for_validation=False)

    def make_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return Net().double()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"reports": self.reports}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        hparams = self.context.get_hparams()
        inputs = torch.randn(hparams["count"], 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        records = TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(records, batch_size=size, shuffle=True, drop_last=hparams["drop_last"])

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.epochs.append(epoch_idx)
        inputs, targets = batch
        self.own.count += len(inputs)  # type: ignore[attr-defined]  # its own class
        self.values.update(len(inputs))  # type: ignore[attr-defined]  # a FunctionReducer, as the call above makes it
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 0.5))
        return {"loss": loss, "double": 2 * float(loss.detach())}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


@in_folder
def train_uneven(directory: Path, runs: Sequence[Uneven]) -> list[Learned]:
    """One after another, in this folder."""
    return [_train(run) for run in runs]


def _train(run: Uneven) -> Learned:
    configuration = {
        "parallelism": run.strategy,
        "scheduling_unit": 1,
        "optimizations": {"aggregation_frequency": run.aggregation},
    }
    hparams = {
        "global_batch_size": _GLOBAL_BATCH,
        "optimizer": "sgd",
        "count": run.count,
        "drop_last": run.drop_last,
    }
    with pytorch.init(hparams=hparams, exp_conf=configuration, enable_tensorboard_logging=False) as context:
        trial = UnevenTrial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(run.batches), checkpoint_policy="none")
        return Learned(trial.reports.found, context.get_full_model_state(trial.model), trial.epochs)


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


class _Plain(WholePointsTrial):
    """Without anything that the ranks exchange besides gradients."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


@in_folder
def count_reductions(directory: Path, strategy: str, aggregation: int, batches: int) -> tuple[int, int]:
    """How many reductions of gradients a training makes on this rank, and how many bytes go into them."""
    configuration = {"parallelism": strategy, "optimizations": {"aggregation_frequency": aggregation}}
    with (
        pytorch.init(hparams={"global_batch_size": 8}, exp_conf=configuration) as context,
        _counted_reductions() as sizes,
    ):
        trial = _Plain(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), checkpoint_policy="none")
    return len(sizes), sum(sizes)


@contextmanager
def _counted_reductions() -> Iterator[list[int]]:
    """The bytes of each reduce-scatter meanwhile, as fully_shard calls it."""
    # Older releases of torch have the second one only.
    name = next(name for name in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(dist, name))
    original: Any = getattr(dist, name)
    sizes: list[int] = []

    def counted(output: torch.Tensor, input: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sizes.append(input.numel() * input.element_size())
        return original(output, input, *arguments, **options)

    setattr(dist, name, counted)
    try:
        yield sizes
    finally:
        setattr(dist, name, original)


@pytest.mark.parametrize(("size", "strategy"), [(2, "zero2"), (2, "zero3"), (4, "hsdp")])
def test_aggregated_batches_exchange_gradients_once_a_step(tmp_path: Path, size: int, strategy: str) -> None:
    """Three groups of parameters: two blocks, and what belongs to none."""
    storage = tmp_path / "storage"
    storage.mkdir()
    single = run_gang(size, tmp_path / "single", count_reductions, storage, strategy, 1, 2)
    aggregated = run_gang(size, tmp_path / "aggregated", count_reductions, storage, strategy, 4, 8)
    assert [count for count, _ in single] == [2 * 3] * size
    assert aggregated == single


def clip(strategy_name: str, bounds: Sequence[float]) -> list[tuple[float, bool, float]]:
    """For each bound: the norm that clipping returns, whether it left the gradients as they were bit for bit, and the
    norm that they have afterwards."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    strategy = choose_strategy(strategy_name, size, torch.device("cpu"), Optimizations())
    torch.manual_seed(0)
    model = strategy.prepare_model(Net())
    optimizer = strategy.prepare_optimizer(make_optimizer(model, "sgd"))
    results = []
    for bound in bounds:
        functional.mse_loss(model(torch.ones(4, 6)), torch.zeros(4, 3)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        before = [_local(parameter.grad).clone() for parameter in model.parameters()]
        norm = float(strategy.clip_gradients(model.parameters(), bound))
        after = [_local(parameter.grad) for parameter in model.parameters()]
        is_same = all(torch.equal(old, other) for old, other in zip(before, after, strict=True))
        results.append((norm, is_same, float(strategy.clip_gradients(model.parameters(), float("inf")))))
        optimizer.zero_grad()
    return results


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


@pytest.mark.parametrize(("size", "strategy"), [(2, "ddp"), (2, "zero1"), (2, "zero2"), (2, "zero3"), (4, "hsdp")])
def test_clipping_leaves_gradients_below_the_bound_as_they_are(tmp_path: Path, size: int, strategy: str) -> None:
    ((norm, _, _),) = clip("none", [1.0])
    for outcome in run_gang(size, tmp_path, clip, strategy, [norm * 4, norm * 1.01, norm / 2]):
        assert [before for before, _, _ in outcome] == pytest.approx([norm] * 3, rel=1e-5)
        assert [is_same for _, is_same, _ in outcome] == [True, True, False]
        assert [after for _, _, after in outcome] == pytest.approx([norm, norm, norm / 2], rel=1e-5)
