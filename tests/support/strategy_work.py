"""Work of a gang's ranks in tests of strategies and checkpoints: small trainings whose losses can be compared.

All of it is called on every rank; the same work in one process is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.config.optimization import Optimizations
from gangline.errors import GanglineError
from gangline.pytorch.parallel import Strategy, choose_strategy
from gangline.pytorch.parallel.divided.shard_meter import parameter_groups
from tests.support.folder_work import in_folder

_CPU = torch.device("cpu")
_GLOBAL_BATCH = 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.narrow(functional.gelu(self.widen(self.norm(x))))
        return out


class Net(nn.Module):
    """Blocks in a list, a head with fewer rows than a gang of four has ranks, and a mask among its buffers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 3)
        self.register_buffer("mask", torch.tensor([True, True, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x) * self.mask
        return out


@dataclass(frozen=True, slots=True)
class Case:
    """One training."""

    strategy: Any
    optimizer: str = "sgd"
    precision: int = 32  # 32 or 64 bits
    parts: int = 1  # micro-batches of each step
    steps: int = 20


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


def make_optimizer(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    """Two groups, as trials that spare norms and biases from decay have."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9) if kind == "sgd" else torch.optim.AdamW(groups, lr=0.01)


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


class PointsTrial(pytorch.PyTorchTrial):
    """hyperparameters: optimizer, wide. losses: of every batch, over all ranks."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        hparams = context.get_hparams()
        self.model = context.wrap_model(self.make_model())
        self.optimizer = context.wrap_optimizer(make_optimizer(self.model, hparams.get("optimizer", "adamw")))
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.8)
        context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.count = context.wrap_reducer(sum, name="records", for_training=False)
        self.recorder = Recorder()

    def make_model(self) -> nn.Module:
        return Net(self.context.get_hparams().get("width", 8))

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(96), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(37), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 1.0))
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.count.update(len(inputs))  # type: ignore[attr-defined]  # a FunctionReducer, as the call above makes it
        return {"error": functional.mse_loss(self.model(inputs), targets)}


class WholePointsTrial(PointsTrial):
    """Evaluates all at once, on the chief."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        parts = [(len(inputs), functional.mse_loss(self.model(inputs), targets)) for inputs, targets in data_loader]
        return {"error": sum(count * float(error) for count, error in parts) / 37}


class SmallPointsTrial(WholePointsTrial):
    """Whose blocks are all that the model consists of."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


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


class Recorder(pytorch.PyTorchCallback):
    """losses and validations by batch, ids of checkpoints, and a state that a checkpoint keeps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.validations: list[dict[str, float]] = []
        self.checkpoints: list[str] = []
        self.seen = 0

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.losses.append(float(avg_metrics["loss"]))
        self.seen += 1

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validations.append(dict(metrics))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.checkpoints.append(uuid)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def fit(
    parallelism: Any,
    batches: int,
    latest: str | None = None,
    kind: type[PointsTrial] = PointsTrial,
    hparams: dict[str, Any] | None = None,
    **more: Any,
) -> Recorder:
    """Trains in the current folder, whose checkpoints it reads and adds to. more: of Trainer.fit."""
    configuration = {"parallelism": parallelism, "scheduling_unit": 1, "checkpoint_policy": "none"}
    values = {"global_batch_size": _GLOBAL_BATCH // 2, **(hparams or {})}
    with pytorch.init(hparams=values, exp_conf=configuration) as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), latest_checkpoint=latest, **more)
    return trial.recorder


@in_folder
def fit_many(directory: Path, runs: Sequence[dict[str, Any]]) -> list[Recorder]:
    """Each as fit, one after another in the same folder."""
    return [fit(**run) for run in runs]


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


def _points(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 6, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
