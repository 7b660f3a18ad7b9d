"""Two models that train against each other, each with a zero_grad of its own, where one step takes several batches.

They train as without these calls, and as a loop of plain torch, or are refused in one line.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch.trial import context as trial_context
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang

WIDTH = 6
# Of each of the two models.
NUM_STEPS = 2
INPUTS = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)).double()


class Net(nn.Module):
    """layers, so that it has blocks; scale, a parameter that cannot be divided."""

    def __init__(self, num_outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(WIDTH, num_outputs)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x) * self.scale
        return out


class Divisible(Net):
    """Has no parameter that is kept whole."""

    def __init__(self, num_outputs: int, dtype: torch.dtype) -> None:
        super().__init__(num_outputs, dtype)
        scale = self.scale.detach()
        del self.scale
        self.register_buffer("scale", scale)


class Around(nn.Module):
    """A trial's own module around a wrapped model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.extra = nn.Linear(2, 2)


class OwnZeroGrad(Net):
    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters():
            parameter.grad = None


def build(make: type[Net] = Net, dtype: torch.dtype = torch.float64) -> tuple[Net, Net]:
    torch.manual_seed(7)
    return make(1, dtype), make(WIDTH, dtype)


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


@contextmanager
def frozen(net: nn.Module, is_on: bool) -> Iterator[None]:
    net.requires_grad_(not is_on)
    yield
    net.requires_grad_(True)


class Game(pytorch.PyTorchTrial):
    """clears: what calls zero_grad, none, module, zeros, around, compiled or optimizer. freezes: whether the
    generator's loss leaves no gradients in the discriminator. detaches: whether the discriminator's loss leaves none in
    the generator. adds_at_ends: whether they do leave such gradients where none of earlier calls wait for the step.
    copies: whether there is a copy of each wrapped model."""

    clears = "none"
    freezes = detaches = True
    adds_at_ends = copies = False
    make: type[Net] = Net

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        dtype = torch.float32 if context.setting.optimizations.autocast_type else torch.float64
        judge, maker = build(type(self).make, dtype)
        self.judge, self.maker = context.wrap_model(judge), context.wrap_model(maker)
        self.judging = context.wrap_optimizer(optimizer_of(self.judge))
        self.making = context.wrap_optimizer(optimizer_of(self.maker))
        self.copied = copy.deepcopy([self.judge, self.maker]) if self.copies else []
        self.inputs = INPUTS.to(dtype)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(self.inputs), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(self.inputs[:4]), batch_size=4)

    def clear(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.clears == "optimizer":
            optimizer.zero_grad()
        elif self.clears == "zeros":
            net.zero_grad(set_to_none=False)
            optimizer.zero_grad(set_to_none=False)
        elif self.clears != "none":
            ways: dict[str, Callable[[nn.Module], Any]] = {
                "module": lambda net: net,
                "around": Around,
                "compiled": lambda net: torch.compile(Around(net)),
            }
            ways[self.clears](net).zero_grad()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        context, (real,) = self.context, batch
        frequency = context.setting.optimizations.aggregation_frequency
        detaches = self.detaches and not (self.adds_at_ends and batch_idx % frequency == 0)
        freezes = self.freezes and not (self.adds_at_ends and (batch_idx + 1) % frequency == 0)
        self.clear(self.judge, self.judging)
        context.backward((self.judge(real) - 1).square().mean())
        fake = self.maker(real.flip(1))
        context.backward(self.judge(fake.detach() if detaches else fake).square().mean(), retain_graph=True)
        context.step_optimizer(self.judging)
        self.clear(self.maker, self.making)
        with frozen(self.judge, freezes):
            context.backward((self.judge(fake) - 1).square().mean())
            context.step_optimizer(self.making)
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"value": self.judge(batch[0]).mean()}


State = dict[str, torch.Tensor]


def play(parallelism: str, optimizations: dict[str, Any], more: dict[str, Any] | None = None, **traits: Any) -> State:
    kind = type("Playing", (Game,), traits)
    config = {"scheduling_unit": 100, "parallelism": parallelism, "optimizations": optimizations, **(more or {})}
    with pytorch.init(hparams={"global_batch_size": 16}, exp_conf=config) as context:
        trial: Game = kind(context)
        num_batches = NUM_STEPS * context.setting.optimizations.aggregation_frequency
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(num_batches), checkpoint_policy="none")
        states = [context.get_full_model_state(net) for net in (trial.judge, trial.maker)]
    return {f"{index} {name}": value for index, state in enumerate(states) for name, value in state.items()}


def play_plain(frequency: int) -> State:
    """The same in plain torch, with each loss's gradients from torch.autograd.grad."""
    judge, maker = build()
    optimizers: dict[nn.Module, torch.optim.Optimizer] = {net: optimizer_of(net) for net in (judge, maker)}
    sums: dict[nn.Parameter, torch.Tensor] = {}

    def add(loss: torch.Tensor, net: nn.Module) -> None:
        parameters = list(net.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            sums[parameter] = sums.get(parameter, torch.zeros_like(parameter)) + gradient / frequency

    def step(net: nn.Module) -> None:
        for parameter in net.parameters():
            parameter.grad = sums.pop(parameter)
        optimizers[net].step()

    for number in range(NUM_STEPS * frequency):
        start = number % 4 * 16
        real, is_step = INPUTS[start : start + 16], (number + 1) % frequency == 0
        fake = maker(real.flip(1))
        add((judge(real) - 1).square().mean() + judge(fake.detach()).square().mean(), judge)
        if is_step:
            step(judge)
        add((judge(fake) - 1).square().mean(), maker)
        if is_step:
            step(maker)
    return {f"{index} {name}": value for index, net in enumerate((judge, maker)) for name, value in _detached(net)}


def _detached(net: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, value.detach()) for name, value in net.state_dict().items())


def distance(state: State, other: State) -> float:
    assert state.keys() == other.keys()
    return max(float((state[name] - other[name]).abs().max()) for name in state)


CLEARING: list[dict[str, Any]] = [
    {"clears": "module"},
    {"clears": "optimizer"},
    {"clears": "zeros"},
    {"clears": "around"},
    {"clears": "compiled"},
    {"clears": "module", "copies": True},
    {"clears": "module", "make": OwnZeroGrad},
    {"clears": "module", "adds_at_ends": True},
    {"clears": "around", "adds_at_ends": True},
    {"clears": "optimizer", "adds_at_ends": True},
]


@in_folder
def play_cleared(directory: Path, parallelism: str, frequency: int) -> tuple[float, list[float]]:
    """Returns the distance of training without a zero_grad from plain torch, and that of each way to call it from
    training without."""
    options = {"aggregation_frequency": frequency}
    without = play(parallelism, options)
    cleared = [distance(play(parallelism, options, **traits), without) for traits in CLEARING]
    return distance(without, play_plain(frequency)), cleared


@pytest.mark.parametrize("parallelism", ["none", "ddp", "zero1", "zero2", "zero3"])
def test_both_models_train_as_if_no_zero_grad_was_called(parallelism: str, tmp_path: Path) -> None:
    size = 1 if parallelism == "none" else 2
    for from_plain, cleared in run_gang(size, tmp_path / "gang", play_cleared, tmp_path / "work", parallelism, 2):
        assert from_plain < 1e-12
        assert cleared == [0.0] * len(CLEARING)


def test_more_batches_for_a_step_train_alike(tmp_path: Path) -> None:
    from_plain, cleared = play_cleared(tmp_path, "none", 4)
    assert from_plain < 1e-12
    assert cleared == [0.0] * len(CLEARING)


def test_calls_on_fewer_slots_train_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial_context, "_rounds_of", lambda core: 2)
    shrinks = {"resources": {"slots_per_trial": 2, "min_slots_per_trial": 1}}
    without = play("none", {}, shrinks)
    assert distance(play("none", {}, shrinks, clears="module"), without) == 0
    with pytest.raises(GanglineError, match=r"makes several calls of a batch on fewer slots.*min_slots_per_trial out"):
        play("none", {}, shrinks, clears="module", freezes=False)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_trains_alike(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"mixed_precision": precision, "aggregation_frequency": 2}
    without = play("none", options)
    assert all(math.isfinite(float(value.sum())) for value in without.values())
    assert [distance(play("none", options, **traits), without) for traits in CLEARING] == [0.0] * len(CLEARING)


@in_folder
def refuse(directory: Path, parallelism: str, traits: dict[str, Any]) -> str:
    try:
        play(parallelism, {"aggregation_frequency": 2}, **traits)
    except GanglineError as error:
        return error.message
    return ""


MIXED: list[tuple[dict[str, Any], str]] = [
    ({"clears": "module", "freezes": False}, "Net"),
    ({"clears": "optimizer", "freezes": False}, "Net"),
    ({"clears": "around", "freezes": False}, "Net"),
    ({"clears": "module", "freezes": False, "copies": True}, "Net"),
    ({"clears": "module", "freezes": False, "make": OwnZeroGrad}, "OwnZeroGrad"),
    ({"clears": "module", "detaches": False}, "Net"),
    ({"clears": "module", "detaches": False, "make": Divisible}, "Divisible"),
    # Without a zero_grad the sum is what the trial asks for.
    ({"freezes": False}, ""),
]


@in_folder
def refuse_each(directory: Path, parallelism: str) -> list[str]:
    return [refuse(directory / str(number), parallelism, traits) for number, (traits, _) in enumerate(MIXED)]


@pytest.mark.parametrize("parallelism", ["none", "ddp", "zero2", "zero3"])
def test_a_sum_that_cannot_be_taken_apart_is_refused(parallelism: str, tmp_path: Path) -> None:
    size = 1 if parallelism == "none" else 2
    expected = [
        name
        and f"train_batch clears gradients of {name} that a backward pass after step_optimizer has added to those of "
        "earlier calls, but aggregation_frequency makes one step of 2 batches; call zero_grad before the backward pass "
        "alone, keep other losses from this model's gradients with requires_grad_(False) or detach(), or set "
        "optimizations.aggregation_frequency to 1"
        for _, name in MIXED
    ]
    for told in run_gang(size, tmp_path / "gang", refuse_each, tmp_path / "work", parallelism):
        assert told == expected


def test_a_step_of_one_call_clears_as_torch_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cleared = play("none", {}, clears="module", freezes=False, detaches=False)
    assert distance(cleared, play_plain(1)) < 1e-12
