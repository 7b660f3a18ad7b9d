"""Every strategy trains to the losses and parameters of one process, and says in time what it cannot do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gangline import pytorch
from gangline.config.optimization import Optimizations
from gangline.errors import GanglineError
from gangline.pytorch import Batch
from gangline.pytorch.parallel import Strategy, choose_strategy
from gangline.pytorch.parallel.divided.announcement import Announcements
from gangline.pytorch.parallel.divided.shard_meter import parameter_groups
from gangline.pytorch.parallel.divided.sharded import ShardedStrategy
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.points_trial import Net, PointsTrial, Recorder, WholePointsTrial, fit, make_optimizer


@dataclass(frozen=True, slots=True)
class Case:
    """One training."""

    strategy: Any
    optimizer: str = "sgd"
    precision: int = 32  # 32 or 64 bits
    parts: int = 1  # micro-batches of each step
    steps: int = 20


# A strategy of several machines needs four ranks; everything else is as true of two, and takes half the time.
_OF_TWO = [
    Case(strategy, optimizer, precision, parts)
    for strategy in ("ddp", "zero1", "zero2", "zero3")
    for optimizer, precision, parts in (("sgd", 32, 1), ("adamw", 64, 1), ("sgd", 64, 2))
]
_OF_FOUR = [
    *(Case(strategy, "sgd", 32) for strategy in ("ddp", "zero1", "zero3", "hsdp")),
    *(Case(strategy, "adamw", 64) for strategy in ("zero1", "hsdp")),
    Case("hsdp", "adamw", 32, steps=10),
]
_LOSS_TOLERANCE = {32: 1e-5, 64: 1e-12}
_PARAMETER_TOLERANCE = {32: 1e-5, 64: 1e-10}
_CPU = torch.device("cpu")
_GLOBAL_BATCH = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case."""

    losses: list[float]
    norms: list[float]  # norms of the gradients before clipping
    model: dict[str, torch.Tensor]
    state_numel: int  # numbers in this rank's optimizer state


def train_cases(cases: Sequence[Case]) -> list[Outcome]:
    """Each on the same global batches, however many ranks there are."""
    return [_train(case) for case in cases]


def _train(case: Case) -> Outcome:
    torch.manual_seed(0)
    kind = torch.float64 if case.precision == 64 else torch.float32
    strategy = choose_strategy(case.strategy, _size(), _CPU, Optimizations())
    model = strategy.prepare_model(Net().to(kind))
    optimizer = strategy.prepare_optimizer(make_optimizer(model, case.optimizer))
    generator = torch.Generator().manual_seed(1)
    losses, norms = [], []
    for _ in range(case.steps):
        inputs = torch.randn(_GLOBAL_BATCH, 6, generator=generator).to(kind)
        targets = torch.randn(_GLOBAL_BATCH, 3, generator=generator).to(kind)
        losses.append(_backward(strategy, model, inputs, targets, case.parts))
        norms.append(float(strategy.clip_gradients(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    numbers = [value for entries in optimizer.state_dict()["state"].values() for value in entries.values()]
    held = sum(_local(value).numel() for value in numbers if isinstance(value, torch.Tensor))
    return Outcome(losses, norms, strategy.full_model_state(model), held)


def _backward(strategy: Strategy, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, parts: int) -> float:
    total = torch.zeros((), dtype=inputs.dtype)
    for part in range(parts):
        own = (tensor.chunk(parts)[part].chunk(_size())[_rank()] for tensor in (inputs, targets))
        with nullcontext() if part == parts - 1 else strategy.accumulate():
            x, y = own
            loss = functional.mse_loss(model(x), y) / parts
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        total += loss.detach()
    if _size() > 1:
        dist.all_reduce(total)
    return float(total) / _size()


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[list[Outcome]]:
    return run_gang(2, tmp_path_factory.mktemp("two"), train_cases, _OF_TWO)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> list[list[Outcome]]:
    return run_gang(4, tmp_path_factory.mktemp("four"), train_cases, _OF_FOUR)


@cache
def _alone(case: Case) -> Outcome:
    return train_cases([case])[0]


def _check(case: Case, by_rank: list[Outcome]) -> None:
    alone = _alone(Case("none", case.optimizer, case.precision, case.parts, case.steps))
    for outcome in by_rank:
        assert outcome.losses == pytest.approx(alone.losses, abs=_LOSS_TOLERANCE[case.precision])
        assert outcome.norms == pytest.approx(alone.norms, abs=_LOSS_TOLERANCE[case.precision] * 10)
        assert outcome.model.keys() == alone.model.keys()
        for name, value in outcome.model.items():
            if case.optimizer == "sgd" or case.precision == 64:
                difference = (value.double() - alone.model[name].double()).abs().max()
                assert difference <= _PARAMETER_TOLERANCE[case.precision], name


@pytest.mark.parametrize("case", _OF_TWO, ids=str)
def test_two_ranks_train_as_one(case: Case, of_two: list[list[Outcome]]) -> None:
    _check(case, [outcomes[_OF_TWO.index(case)] for outcomes in of_two])


@pytest.mark.parametrize("case", _OF_FOUR, ids=str)
def test_four_ranks_train_as_one(case: Case, of_four: list[list[Outcome]]) -> None:
    _check(case, [outcomes[_OF_FOUR.index(case)] for outcomes in of_four])


def test_ranks_share_the_state_of_the_optimizer(of_two: list[list[Outcome]]) -> None:
    held = {
        case.strategy: [outcomes[index].state_numel for outcomes in of_two]
        for index, case in enumerate(_OF_TWO)
        if case.optimizer == "adamw"
    }
    whole = held["ddp"][0]
    assert held["ddp"] == [whole, whole]
    for strategy in ("zero1", "zero2", "zero3"):
        assert all(number < 0.6 * whole for number in held[strategy]), held


def refusals() -> dict[str, str]:
    """Returns the error message for each mistake that appears when a trial wraps its objects."""
    message_by_mistake: dict[str, str] = {}

    def attempt(name: str, strategy: str, work: Any) -> None:
        try:
            work(choose_strategy(strategy, _size(), _CPU, Optimizations()))
        except GanglineError as error:
            message_by_mistake[name] = error.message

    def early(strategy: Strategy) -> None:
        model = Net()
        optimizer = make_optimizer(model, "sgd")
        strategy.prepare_model(model)
        strategy.prepare_optimizer(optimizer)

    def tied_late(strategy: Strategy) -> None:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
        strategy.prepare_model(model)
        model[2].weight = model[0].weight
        strategy.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def joined(strategy: Strategy) -> None:
        model = strategy.prepare_model(Net())
        strategy.prepare_optimizer(torch.optim.LBFGS(model.parameters()))

    def closure(strategy: Strategy) -> None:
        model = strategy.prepare_model(Net())
        optimizer = strategy.prepare_optimizer(make_optimizer(model, "sgd"))
        model(torch.randn(2, 6)).sum().backward()
        optimizer.step(lambda: 0.0)

    attempt("optimizer before wrap_model", "zero3", early)
    attempt("tied after wrap_model", "zero3", tied_late)
    attempt("LBFGS with zero1", "zero1", joined)
    attempt("LBFGS with zero2", "zero2", joined)
    attempt("closure with zero1", "zero1", closure)
    attempt("unknown block", {"strategy": "zero3", "blocks": ["Layer"]}, lambda strategy: strategy.prepare_model(Net()))  # type: ignore[arg-type]  # a mapping, as in a file
    return message_by_mistake


def test_mistakes_show_when_things_are_wrapped(tmp_path: Path) -> None:
    messages, other = run_gang(2, tmp_path / "gang", refusals)
    assert other == messages
    expected = {
        "optimizer before wrap_model": (
            "16 of 16 parameters of SGD belong to no wrapped model; zero3 replaces a model's parameters by shards in "
            "wrap_model, so build the optimizer after that, from the parameters of every model that was wrapped"
        ),
        "tied after wrap_model": (
            "Sequential had 2 parameters when it was wrapped and has others now; tie, add and replace parameters "
            "before context.wrap_model, and leave assign=True out of load_state_dict"
        ),
        "LBFGS with zero1": ("LBFGS joins all parameters in one row, which zero1 divides over ranks; use ddp"),
        "LBFGS with zero2": ("LBFGS joins all parameters in one row, which zero2 divides over ranks; use ddp"),
        "closure with zero1": (
            "zero1 cannot step SGD with a closure, which would see a part of the parameters; call step_optimizer "
            "without a closure, or use ddp"
        ),
        "unknown block": (
            "parallelism.blocks: Net has no module of class 'Layer'; its classes are Block, LayerNorm, Linear, "
            "ModuleList, Net"
        ),
    }
    assert messages == expected


def scaled_steps(strategy_name: str) -> list[bool]:
    """Whether each of two steps changed the model: of the first one, one gradient is infinite, on all ranks where they
    hold the same ones, else on the last."""
    strategy = choose_strategy(strategy_name, _size(), _CPU, Optimizations())
    model = strategy.prepare_model(Net())
    optimizer = strategy.prepare_optimizer(make_optimizer(model, "sgd"))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    changed = []
    for step in range(2):
        before = strategy.full_model_state(model)
        scaler.scale(model(torch.ones(2, 6)).sum()).backward()
        if step == 0 and (not strategy.needs_all_ranks or _rank() == _size() - 1):
            # Of the stem, whose last rows lie on the last rank.
            _local(next(model.parameters()).grad).view(-1)[-1] = float("inf")
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after = strategy.full_model_state(model)
        changed.append(any(not torch.equal(before[name], after[name]) for name in before))
    return changed


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_one_infinite_gradient_skips_the_step_on_all_ranks(tmp_path: Path, strategy: str) -> None:
    assert run_gang(2, tmp_path / "gang", scaled_steps, strategy) == [[False, True]] * 2


def whole_blocks(strategy_name: str) -> list[list[bool]]:
    """Whether each block has its whole parameters: after a forward pass, while all are gathered, after that, and after
    the next forward pass."""
    strategy = choose_strategy(strategy_name, _size(), _CPU, Optimizations())
    model = strategy.prepare_model(Net())
    seen: list[list[bool]] = []

    def look() -> None:
        groups = [group for block in model.blocks for group in parameter_groups(block)]  # type: ignore[union-attr]  # torch types modules loosely
        seen.append([group.is_unsharded for group in groups])

    model(torch.ones(2, 6)).sum().backward()
    model(torch.ones(2, 6))
    look()
    with strategy.gather():
        look()
    look()
    model(torch.ones(2, 6))
    look()
    return seen


@pytest.mark.parametrize(("strategy", "is_whole_after_forward"), [("zero2", True), ("zero3", False)])
def test_blocks_are_gathered_for_a_while_and_then_as_before(
    tmp_path: Path, strategy: str, is_whole_after_forward: bool
) -> None:
    """zero3 gives the whole parameters of a block up after its forward pass, which saves memory."""
    expected = [[is_whole] * 2 for is_whole in (is_whole_after_forward, True, False, is_whole_after_forward)]
    assert run_gang(2, tmp_path / "gang", whole_blocks, strategy) == [expected] * 2


def running_means(strategy_name: str) -> list[float]:
    """Returns a batch normalisation's running means after each rank saw other records, once buffers are shared."""
    strategy = choose_strategy(strategy_name, _size(), _CPU, Optimizations())
    torch.manual_seed(0)
    model = strategy.prepare_model(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    torch.manual_seed(_rank())
    model(torch.randn(8, 2)).sum().backward()
    strategy.share_buffers([model])
    means: list[float] = model.state_dict()["1.running_mean"].tolist()
    return means


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_ranks_agree_on_running_statistics(tmp_path: Path, strategy: str) -> None:
    first, second = run_gang(2, tmp_path / "gang", running_means, strategy)
    assert first == second
    assert any(first)


@in_folder
def fit_many(directory: Path, runs: Sequence[dict[str, Any]]) -> list[Recorder]:
    """Each as fit, one after another in the same folder."""
    return [fit(**run) for run in runs]


def test_sharded_model_is_validated_as_a_whole_one(tmp_path: Path) -> None:
    """Five batches of 37 records on two ranks: one of them has a batch less, and makes up for it."""
    whole: dict[str, Any] = {"kind": WholePointsTrial}
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (("ddp", whole), ("zero3", whole), ("zero3", {}), ("zero2", {}))
    runs = [{"parallelism": strategy, "batches": 3, **kind} for strategy, kind in kinds]
    by_rank: list[list[Recorder]] = run_gang(2, tmp_path / "gang", fit_many, tmp_path, runs)
    error = by_rank[0][0].validations[-1]["error"]
    for recorders in by_rank:
        for recorder in recorders:
            assert recorder.validations[-1]["error"] == pytest.approx(error, abs=1e-6)
        assert [recorder.validations[-1]["records"] for recorder in recorders[2:]] == [37, 37]


class SmallPointsTrial(WholePointsTrial):
    """Whose blocks are all that the model consists of."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize(("size", "strategies"), [(2, ("zero2", "zero3")), (4, ("hsdp",))])
def test_training_goes_on_after_the_chief_has_evaluated_alone(
    tmp_path: Path, size: int, strategies: tuple[str, ...]
) -> None:
    """Whose passes through the model no other rank has made."""
    moments: tuple[dict[str, Any], ...] = ({"validation_period": Batch(2)}, {"step_zero_validation": True})
    runs = [
        {"parallelism": strategy, "batches": 5, "kind": SmallPointsTrial, **moment}
        for strategy in ("ddp", *strategies)
        for moment in moments
    ]
    by_rank: list[list[Recorder]] = run_gang(size, tmp_path / "gang", fit_many, tmp_path, runs)
    whole = by_rank[0][0].losses
    for recorders in by_rank:
        for recorder in recorders:
            assert recorder.losses == pytest.approx(whole, abs=1e-5)
        assert [len(recorder.validations) for recorder in recorders] == [3, 2] * (1 + len(strategies))


class PairTrial(pytorch.PyTorchTrial):
    """Two models with an optimizer each. Both backward passes come after both forward passes. again: whose loss has a
    second backward pass at the end, by number; None for none."""

    again: int | None = None

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(5)
        self.models = [context.wrap_model(Net(width)) for width in (8, 4)]
        self.optimizers = [context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)) for model in self.models]

    build_training_data_loader = PointsTrial.build_training_data_loader
    build_validation_data_loader = PointsTrial.build_validation_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        losses = [functional.mse_loss(model(inputs), targets) for model in self.models]
        for loss in losses if self.again is None else [losses[self.again]] * 2:
            self.context.backward(loss, retain_graph=True)
        for optimizer in self.optimizers:
            self.context.step_optimizer(optimizer)
        return {"loss": losses[0]}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


class GreedyPairTrial(PairTrial):
    again = 1


@in_folder
def fit_pairs(
    directory: Path, strategies: Sequence[str], kind: type[PairTrial] = PairTrial
) -> list[dict[str, torch.Tensor]]:
    """The states of both models after a few batches, whole, for each strategy."""
    states_by_strategy = []
    for strategy in strategies:
        with pytorch.init(hparams={"global_batch_size": 8}, exp_conf={"parallelism": strategy}) as context:
            trial = kind(context)
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(6), checkpoint_policy="none")
            states = [context.get_full_model_state(model) for model in trial.models]
        states_by_strategy.append(
            {f"{index}.{name}": value for index, state in enumerate(states) for name, value in state.items()}
        )
    return states_by_strategy


@pytest.mark.parametrize("kind", [PairTrial, GreedyPairTrial])
def test_two_models_have_backward_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PairTrial]
) -> None:
    monkeypatch.chdir(tmp_path)
    (alone,) = fit_pairs(tmp_path, ["none"], kind)
    strategies = ["ddp", "zero1", "zero3"]
    by_rank = run_gang(2, tmp_path / "gang", fit_pairs, tmp_path, strategies, kind)
    for strategy, first, second in zip(strategies, *by_rank, strict=True):
        assert first.keys() == second.keys() == alone.keys()
        for name, value in alone.items():
            assert torch.equal(first[name], second[name]), (strategy, name)
            assert torch.allclose(first[name].double(), value.double(), atol=1e-5), (strategy, name)


@in_folder
def refuse_pair(directory: Path) -> str:
    """Returns the error where the second model's loss has two backward passes, and the first one's none, while torch
    searches the output of a forward pass for unused parameters.
    """
    try:
        parallelism = {"strategy": "ddp", "find_unused_parameters": True}
        with pytorch.init(hparams={"global_batch_size": 8}, exp_conf={"parallelism": parallelism}) as context:
            pytorch.Trainer(GreedyPairTrial(context), context).fit(max_length=pytorch.Batch(1))
    except GanglineError as error:
        return error.message
    return ""


def test_one_of_two_models_has_no_second_backward_pass(tmp_path: Path) -> None:
    message = (
        "context.backward reached Net again without another forward pass of that model since the last time, so its "
        "gradients would stay on this rank; add losses up for one context.backward, or call the wrapped model itself "
        "again before the next one"
    )
    assert run_gang(2, tmp_path / "gang", refuse_pair, tmp_path) == [message] * 2


def test_reference_uses_plain_tensors(of_two: list[list[Outcome]]) -> None:
    kinds = {type(value) for outcome in of_two[0] for value in outcome.model.values()}
    assert kinds == {torch.Tensor}


def lonely_collective(seconds: float) -> list[float]:
    """On the chief, for each process group of hsdp: how long a collective has waited for ranks that never come."""
    timeout = timedelta(seconds=seconds)
    strategy = choose_strategy("hsdp", dist.get_world_size(), torch.device("cpu"), Optimizations(), timeout=timeout)
    assert isinstance(strategy, ShardedStrategy)
    announcements = Announcements(torch.device("cpu"), timeout)
    groups = [strategy.mesh.get_group("replicate"), strategy.mesh.get_group("shard"), announcements._group]
    dist.barrier()
    waits = []
    for group in groups if _rank() == 0 else ():
        began = time.perf_counter()
        try:
            dist.all_reduce(torch.zeros(1), group=group)
        except RuntimeError:
            waits.append(time.perf_counter() - began)
    # Of the default group, which has torch's own timeout of half an hour.
    dist.barrier()
    return waits


def test_groups_of_hsdp_have_the_timeout_of_the_trial(tmp_path: Path) -> None:
    waits, *others = run_gang(4, tmp_path / "gang", lonely_collective, 2.0)
    assert len(waits) == 3
    assert all(1.0 < seconds < 20.0 for seconds in waits), waits
    assert others == [[]] * 3
